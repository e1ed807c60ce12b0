"""Write a causal checkpoint with a trimmed vocabulary: fewer rows of the embedding and the head, nothing else.

The folder has the layout of transformers: config.json, safetensors, tokenizer.json. Files of tensors are read and
written one after the other, so a sharded checkpoint needs the memory of its largest shard.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor

from crocodil.checkpoints.causal import CAUSAL_TYPES, PARENTS, TOKENIZER_FILE, family_of
from crocodil.checkpoints.tensors import CONFIG_FILE, INDEX_FILE, Stored, stored_tensors, tensors_in, write_tensors
from crocodil.runtime.atomic import whole_directory
from crocodil.runtime.config import read_json
from crocodil.text.tokenizer import SPECIAL_TOKENS
from crocodil.text.trimming import Trimmed

_TABLES = ("model.embed_tokens.weight", "lm_head.weight")


def write_trimmed(source: Path, target: Path, trimmed: Trimmed) -> None:
    """Write the model of the folder `source` with the vocabulary `trimmed` to the new folder `target`."""
    values = read_json(source / CONFIG_FILE)
    if (kind := values.get("model_type")) not in CAUSAL_TYPES:
        raise ValueError(
            f"{source / CONFIG_FILE}: model_type is {kind!r}; {', '.join(CAUSAL_TYPES)} can be trimmed"
        )
    config = trimmed_config(values, num_rows=len(trimmed.old_ids))
    stored = stored_tensors(source)
    with whole_directory(target) as unfinished:
        size = sum(_write_file(file, unfinished / file.name, trimmed) for file in sorted(set(stored.values())))
        if (source / INDEX_FILE).exists():
            _write_json(unfinished / INDEX_FILE, _index(stored, size))
        _write_json(unfinished / CONFIG_FILE, config)
        _write_json(unfinished / "tokenizer_config.json", _tokenizer_config())
        trimmed.tokenizer.save(unfinished / TOKENIZER_FILE)


def trimmed_config(values: Mapping[str, Any], *, num_rows: int) -> dict[str, Any]:
    """Return config.json with the new size, the special ids, and the family that the weights come from."""
    _, bos, eos, pad = range(len(SPECIAL_TOKENS))
    special = {"bos_token_id": bos, "eos_token_id": eos, "pad_token_id": pad}
    parents = values.get(PARENTS) or [family_of(values)]
    return {**values, "vocab_size": num_rows, **special, PARENTS: list(parents)}


def trimmed_rows(table: Shaped[Tensor, "V D"], old_ids: Sequence[int | None]) -> Shaped[Tensor, "R D"]:
    """Return the row of each old id; a new row is the mean of all old rows."""
    largest = max(old for old in old_ids if old is not None)
    if largest >= len(table):
        raise ValueError(f"the tokenizer has a token {largest}, but the embedding only {len(table)} rows")
    rows = table[torch.tensor([0 if old is None else old for old in old_ids])]
    is_new = torch.tensor([old is None for old in old_ids])
    rows[is_new] = table.mean(dim=0, dtype=torch.float32).to(table.dtype)
    return rows


def _write_file(source: Path, target: Path, trimmed: Trimmed) -> int:
    """Write one file of tensors with fewer rows; return their size in bytes."""
    tensors = tensors_in(source)
    for name in _TABLES:
        if name in tensors:
            tensors[name] = trimmed_rows(tensors[name], trimmed.old_ids)
    write_tensors(tensors, target, {"format": "pt"})
    return sum(tensor.nbytes for tensor in tensors.values())


def _index(stored: Stored, size: int) -> dict[str, Any]:
    return {"metadata": {"total_size": size}, "weight_map": {name: file.name for name, file in stored.items()}}


def _tokenizer_config() -> dict[str, Any]:
    names = dict(zip(("mask_token", "bos_token", "eos_token", "pad_token"), SPECIAL_TOKENS, strict=True))
    return {"tokenizer_class": "PreTrainedTokenizerFast", **names, "clean_up_tokenization_spaces": False}


def _write_json(file: Path, values: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
