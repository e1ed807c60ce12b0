"""Which device work is done on unless one is named, how precisely, and how much memory it has free."""

import os
import re
from collections.abc import Sequence

import torch
from jaxtyping import Bool
from torch import Tensor


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def checked_device(name: str) -> str:
    """The name again, if it is that of a device of this machine."""
    match = re.fullmatch(r"cpu|cuda(?::([0-9]{1,4}))?", name)
    if match is None:
        raise ValueError(f"no device {name!r}: take cpu, cuda, or cuda:N for the GPU of number N, from 0 on")
    if name == "cpu":
        return name
    if not torch.cuda.is_available():
        raise ValueError(f"device {name}: PyTorch finds no NVIDIA GPU on this machine, take cpu")
    if match[1] is not None and int(match[1]) >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise ValueError(f"device {name}: the GPUs of this machine are cuda:0 to cuda:{last}")
    return name


def default_dtype(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def free_memory(device: torch.device) -> int:
    """In bytes; 4 GiB where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if "SC_AVPHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 4 << 30


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
