"""Numbers that are not finite stop sampling, with one line that names the network they came from."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool
from torch import Tensor


def check_finite(values: Tensor, what: str) -> None:
    """Waits for a device: call it where values are looked at anyway."""
    check_all([values.isfinite().all()], what)


def check_all(found: Sequence[Bool[Tensor, ""]], what: str) -> None:
    """The same for what was found finite, or not, on the way."""
    if found and not torch.stack(list(found)).all():
        raise FloatingPointError(
            f"{what} are not finite: its weights are damaged (check with `crocodil verify MODEL`), "
            "or the precision is too low"
        )
