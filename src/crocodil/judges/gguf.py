"""A Llama out of a GGUF file, the format of llama.cpp, as the files that transformers loads.

Only what the default judge needs is read: version 2 or 3, little endian, and three of the many types of numbers.
The format is described in the repository of ggml; `transformers` reads it through a package of its own, and then
refuses to save what it read.
"""

import json
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.float32]

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_CONTROL_TOKEN = 3


# ---------------------------------------------------------------- the file


@dataclass(frozen=True)
class GGUF:
    """What a file says of itself, and its tensors, each decoded when it is asked for."""

    file: Path
    about: Mapping[str, Any]
    tensors: Mapping[str, "StoredTensor"]
    data_at: int  # the offset of the first tensor

    @classmethod
    def open(cls, file: Path) -> "GGUF":
        """Reads the header only."""
        reader = _Reader(np.memmap(file, np.uint8, mode="r"))
        magic, version = reader.take(4), reader.number("I")
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError(f"{file} is no GGUF file of version 2 or 3")
        num_tensors, num_entries = reader.number("Q"), reader.number("Q")
        about = {reader.string(): reader.value(reader.number("I")) for _ in range(num_entries)}
        tensors = {reader.string(): reader.stored_tensor() for _ in range(num_tensors)}
        alignment = about.get("general.alignment", 32)
        return cls(file, about, tensors, math.ceil(reader.at / alignment) * alignment)

    def tensor(self, name: str) -> Tensor:
        """In float32, whatever it is stored as."""
        stored = self.tensors[name]
        if stored.kind not in _KINDS:
            raise ValueError(
                f"{self.file}: {name} holds numbers of type {stored.kind}; known are {sorted(_KINDS)}"
            )
        kind = _KINDS[stored.kind]
        num_blocks = math.prod(stored.shape) // kind.numbers_a_block
        content = np.memmap(
            self.file, np.uint8, mode="r", offset=self.data_at + stored.offset,
            shape=(num_blocks, kind.bytes_a_block),
        )  # fmt: skip
        return torch.from_numpy(kind.decode(np.array(content)).reshape(stored.shape))


@dataclass(frozen=True)
class StoredTensor:
    shape: tuple[int, ...]
    kind: int
    offset: int  # from the first tensor


@dataclass
class _Reader:
    content: Bytes
    at: int = 0

    def take(self, count: int) -> bytes:
        self.at += count
        return self.content[self.at - count : self.at].tobytes()

    def number(self, form: str) -> Any:
        return struct.unpack(f"<{form}", self.take(struct.calcsize(form)))[0]

    def string(self) -> str:
        return self.take(self.number("Q")).decode()

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            of, count = self.number("I"), self.number("Q")
            return [self.value(of) for _ in range(count)]
        return self.number(_SCALARS[kind])

    def stored_tensor(self) -> StoredTensor:
        sizes = [self.number("Q") for _ in range(self.number("I"))]
        return StoredTensor(tuple(reversed(sizes)), self.number("I"), self.number("Q"))


# ---------------------------------------------------------------- numbers


@dataclass(frozen=True)
class _Kind:
    """A type of numbers: blocks that share a scale."""

    numbers_a_block: int
    bytes_a_block: int
    decode: Callable[[Bytes], Numbers]


def _float32(blocks: Bytes) -> Numbers:
    return blocks.view(np.float32)


def _halves(blocks: Bytes) -> Numbers:
    """The scales at the head of each block."""
    return np.ascontiguousarray(blocks).view(np.float16).astype(np.float32)


def _q4_1(blocks: Bytes) -> Numbers:
    """A step and a smallest value, then 32 numbers of four bits: the low halves of all bytes, then the high."""
    step, smallest = _halves(blocks[:, :2]), _halves(blocks[:, 2:4])
    return step * np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1) + smallest


def _q8_0(blocks: Bytes) -> Numbers:
    """A step, then 32 signed bytes."""
    return _halves(blocks[:, :2]) * blocks[:, 2:].view(np.int8)


_KINDS = {0: _Kind(1, 4, _float32), 3: _Kind(32, 20, _q4_1), 8: _Kind(32, 34, _q8_0)}


# ---------------------------------------------------------------- a Llama for transformers

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert_llama(file: Path, directory: Path, *, start: str) -> None:
    """Write config.json, model.safetensors and tokenizer.json; `start` is the token that begins a document."""
    stored = GGUF.open(file)
    if stored.about["general.architecture"] != "llama":
        raise ValueError(f"{file} holds a {stored.about['general.architecture']}, not a Llama")
    config = llama_config(stored, start_id=stored.about["tokenizer.ggml.tokens"].index(start))
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(llama_weights(stored), directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "model.safetensors").chmod(0o644)
    smollm_tokenizer(stored).save(str(directory / "tokenizer.json"))


def llama_config(stored: GGUF, *, start_id: int) -> dict[str, Any]:
    said = {name.removeprefix("llama."): value for name, value in stored.about.items()}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": said["embedding_length"],
        "num_hidden_layers": said["block_count"],
        "intermediate_size": said["feed_forward_length"],
        "num_attention_heads": said["attention.head_count"],
        "num_key_value_heads": said["attention.head_count_kv"],
        "max_position_embeddings": said["context_length"],
        "rms_norm_eps": round(said["attention.layer_norm_rms_epsilon"], 12),
        "rope_theta": said["rope.freq_base"],
        "rope_parameters": {"rope_type": "default", "rope_theta": said["rope.freq_base"]},
        "vocab_size": said["vocab_size"],
        "tie_word_embeddings": "output.weight" not in stored.tensors,
        "bos_token_id": start_id,
        "eos_token_id": start_id,
        "dtype": "float16",
    }


def llama_weights(stored: GGUF) -> dict[str, Tensor]:
    """In float16, which holds four-bit numbers with a scale closer than bfloat16 does."""
    num_heads = {
        "attn_q": stored.about["llama.attention.head_count"],
        "attn_k": stored.about["llama.attention.head_count_kv"],
    }
    weights = {}
    for name in stored.tensors:
        *block, module, leaf = name.split(".")
        weight = stored.tensor(name)
        if module in num_heads:
            weight = _halves_apart(weight, num_heads[module])
        home = f"model.layers.{block[1]}.{_BLOCK[module]}" if block else _TOP[module]
        weights[f"{home}.{leaf}"] = weight.half().contiguous()
    return weights


def _halves_apart(weight: Tensor, num_heads: int) -> Tensor:
    """llama.cpp rotates neighbouring rows of a head, transformers rows half a head apart."""
    return weight.unflatten(0, (num_heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def smollm_tokenizer(stored: GGUF) -> Tokenizer:
    """Byte-level BPE whose digits stand alone. Some rare bytes have no token: they count as the unknown one."""
    about = stored.about
    if (about["tokenizer.ggml.model"], about["tokenizer.ggml.pre"]) != ("gpt2", "smollm"):
        raise ValueError(f"{stored.file}: only the tokenizer of SmolLM is known")
    tokens = about["tokenizer.ggml.tokens"]
    merges = [(left, right) for left, right in (merge.split(" ") for merge in about["tokenizer.ggml.merges"])]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token=tokens[about["tokenizer.ggml.unknown_token_id"]]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = about["tokenizer.ggml.token_type"]
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return tokenizer
