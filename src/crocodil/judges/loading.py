"""A judge's network and tokenizer from its folder, or from the hub by name."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from tokenizers import Tokenizer
from torch import Tensor, nn

from crocodil.judges.folders import find, not_found

VALUES_A_TENSOR = 256  # enough to tell two networks apart


def load_network(auto_class: Any, name_or_path: str | os.PathLike[str], *, device: str) -> Any:
    """In float32 on a CPU, else in bfloat16; complete, but for the pooler of an encoder, which is not used."""
    source = find(name_or_path)
    dtype = torch.float32 if torch.device(device).type == "cpu" else torch.bfloat16
    try:
        with _quietly():
            network, found = auto_class.from_pretrained(
                source, dtype=dtype, output_loading_info=True, use_safetensors=True
            )
    except Exception as error:  # transformers raises whatever its parts raise
        raise _not_loaded(name_or_path, error) from error
    missing = sorted(name for name in found["missing_keys"] if "pooler" not in name)
    if missing:
        raise ValueError(f"the judge {name_or_path} has no weights for {', '.join(missing[:5])}")
    return network.to(device).eval().requires_grad_(False)


def load_tokenizer(name_or_path: str | os.PathLike[str]) -> Tokenizer:
    """As its file says, but whole texts, unpadded, and special tokens written out in a text are plain text."""
    from transformers import AutoTokenizer
    from transformers.utils import cached_file

    source = find(name_or_path)
    try:
        file = cached_file(source, "tokenizer.json", _raise_exceptions_for_missing_entries=False)
        tokenizer = Tokenizer.from_file(file) if file else AutoTokenizer.from_pretrained(source).backend_tokenizer
    except Exception as error:  # tokenizers has none of its own
        raise _not_loaded(name_or_path, error) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer


def _not_loaded(name_or_path: str | os.PathLike[str], error: Exception) -> ValueError:
    if not isinstance(error, OSError | ValueError) and Path(name_or_path).is_dir():
        reason = str(error).strip().split("\n")[0]
        return ValueError(f"the judge in {name_or_path} is damaged, or of another kind: {reason[:200]}")
    return not_found(os.fspath(name_or_path), error)


def name_of(name_or_path: str | os.PathLike[str]) -> str:
    """As a result names its judge: a folder by its last part, not by where it happens to lie."""
    path = Path(name_or_path)
    return path.resolve().name if path.is_dir() else os.fspath(name_or_path)


def fingerprint(network: nn.Module, tokenizer: Tokenizer) -> str:
    """Tells judges apart that only share a name: other weights, another precision, another tokenizer."""
    digest = blake2b(tokenizer.to_str().encode(), digest_size=8)
    for name, weight in network.state_dict().items():
        values = weight.flatten()[:: max(1, weight.numel() // VALUES_A_TENSOR)].float().cpu()
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode() + values.numpy().tobytes())
    return digest.hexdigest()


def padded(rows: Sequence[Sequence[int]], *, fill: int, device: torch.device) -> Int[Tensor, "B N"]:
    """Rows of token ids, filled up on the right."""
    longest = max(map(len, rows))
    if not longest:
        raise ValueError("the judge's tokenizer finds no token in these texts: it is of another judge, or damaged")
    return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows], device=device)


@contextmanager
def _quietly() -> Iterator[None]:
    """Without bars, and without tables of what does not fit: that is an error, which says so in one line."""
    from transformers.utils import logging

    was_shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if was_shown:
            logging.enable_progress_bar()
