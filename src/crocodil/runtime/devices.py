"""Devices: the default device and precision, free memory, and checks for finite values."""

import os
import re
from collections.abc import Sequence

import torch
from jaxtyping import Bool
from torch import Tensor


def checked_device(device: str | torch.device | None) -> str:
    """Return the name of a device, by default of the GPU; raise an error if this machine does not have it."""
    name = str(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    match = re.fullmatch(r"cpu|cuda(?::([0-9]{1,4}))?", name)
    if match is None:
        raise ValueError(f"no device {name!r}: use cpu, cuda, or cuda:N for GPU number N, counted from 0")
    if name == "cpu":
        return name
    if not torch.cuda.is_available():
        raise ValueError(f"device {name}: PyTorch finds no NVIDIA GPU on this machine, use cpu")
    if match[1] is not None and int(match[1]) >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise ValueError(f"device {name}: this machine has the GPUs cuda:0 to cuda:{last}")
    return name


def default_dtype(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def free_memory(device: torch.device) -> int:
    """Return the free memory in bytes; 4 GiB if the system does not report it."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if "SC_AVPHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 4 << 30


def check_finite(values: Tensor, what: str) -> None:
    """Raise an error if a value is NaN or infinite. This waits for the device."""
    check_all([values.isfinite().all()], what)


def check_all(are_finite: Sequence[Bool[Tensor, ""]], what: str) -> None:
    """Raise the same error if any of these flags, collected earlier on the device, is False."""
    if are_finite and not torch.stack(list(are_finite)).all():
        raise FloatingPointError(
            f"{what} are not finite: its weights are damaged (check with `crocodil verify MODEL`), "
            "or the precision is too low"
        )
