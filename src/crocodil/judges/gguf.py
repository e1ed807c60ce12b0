"""Convert a Llama or a Qwen2 from a GGUF file, the format of llama.cpp, to the files that transformers loads.

The package `gguf` reads the file and its quantised weights. `transformers` reads GGUF files too, but it cannot
save what it read.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch import Tensor

_CONTROL_TOKEN, _USER_TOKEN, _UNUSED_TOKEN = 3, 4, 5  # types of tokens; a plain one has type 1
_END = "<|endoftext|>"  # of a document, in both kinds
_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
# How Qwen splits text: English clitics, words, single digits, punctuation, line breaks, and white space.
_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
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
_HEAD_COUNTS = {"attn_q": "attention.head_count", "attn_k": "attention.head_count_kv"}


@dataclass(frozen=True)
class GGUF:
    """The metadata and the tensors of a GGUF file; a tensor is decoded when it is asked for."""

    file: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Any]  # gguf.ReaderTensor by name

    @classmethod
    def open(cls, file: Path) -> "GGUF":
        """Read the header; the tensors stay on disk."""
        from gguf import GGUFReader

        try:
            reader = GGUFReader(file)
        except (ValueError, KeyError, IndexError) as error:
            raise ValueError(f"{file} is not a GGUF file of version 2 or 3: {error}") from error
        metadata = {name: field.contents() for name, field in reader.fields.items()}
        return cls(file, metadata, {tensor.name: tensor for tensor in reader.tensors})

    @property
    def architecture(self) -> str:
        return str(self.metadata["general.architecture"])

    def tensor(self, name: str) -> Tensor:
        """Return a tensor in float32, whatever its stored type is."""
        from gguf import dequantize

        stored = self.tensors[name]
        try:
            values = dequantize(stored.data, stored.tensor_type)
        except NotImplementedError as error:
            raise ValueError(f"{self.file}: {name} cannot be decoded: {error}") from error
        return torch.from_numpy(np.array(values, dtype=np.float32))


def convert(file: Path, directory: Path, *, start: str) -> None:
    """Write config.json, model.safetensors and tokenizer.json; `start` is the token before a text."""
    stored = GGUF.open(file)
    if stored.architecture not in _CLASSES:
        raise ValueError(f"{file} holds a {stored.architecture}, not a Llama or a Qwen2")
    tokenizer = tokenizer_of(stored)
    start_id, end_id = tokenizer.token_to_id(start), tokenizer.token_to_id(_END)
    assert start_id is not None, f"{file} has no token {start}"
    config = config_of(stored, start_id=start_id, end_id=start_id if end_id is None else end_id)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(weights_of(stored), directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "model.safetensors").chmod(0o644)
    tokenizer.save(str(directory / "tokenizer.json"))


def config_of(stored: GGUF, *, start_id: int, end_id: int) -> dict[str, Any]:
    """Return the config of `LlamaForCausalLM` or `Qwen2ForCausalLM`."""
    prefix = f"{stored.architecture}."
    metadata = {name.removeprefix(prefix): value for name, value in stored.metadata.items()}
    return {
        "architectures": [_CLASSES[stored.architecture]],
        "model_type": stored.architecture,
        "hidden_size": metadata["embedding_length"],
        "num_hidden_layers": metadata["block_count"],
        "intermediate_size": metadata["feed_forward_length"],
        "num_attention_heads": metadata["attention.head_count"],
        "num_key_value_heads": metadata["attention.head_count_kv"],
        "max_position_embeddings": metadata["context_length"],
        "rms_norm_eps": round(metadata["attention.layer_norm_rms_epsilon"], 12),
        "rope_theta": metadata["rope.freq_base"],
        "rope_parameters": {"rope_type": "default", "rope_theta": metadata["rope.freq_base"]},
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        "tie_word_embeddings": "output.weight" not in stored.tensors,
        "bos_token_id": start_id,
        "eos_token_id": end_id,
        "dtype": "float16",
    }


def weights_of(stored: GGUF) -> dict[str, Tensor]:
    """Return the weights in float16, which is closer to scaled four-bit numbers than bfloat16 is."""
    weights = {}
    for name in stored.tensors:
        *block, module, leaf = name.split(".")
        weight = stored.tensor(name)
        if stored.architecture == "llama" and module in _HEAD_COUNTS:
            weight = _for_transformers_rope(weight, stored.metadata[f"llama.{_HEAD_COUNTS[module]}"])
        path = f"model.layers.{block[1]}.{_BLOCK[module]}" if block else _TOP[module]
        weights[f"{path}.{leaf}"] = weight.half().contiguous()
    return weights


def _for_transformers_rope(weight: Tensor, num_heads: int) -> Tensor:
    """Reorder the rows of each head of a Llama: llama.cpp rotates neighbouring rows, transformers rows half a head
    apart. The file of a Qwen2 has the order of transformers.
    """
    return weight.unflatten(0, (num_heads, -1, 2)).transpose(1, 2).flatten(0, 2)


# ---------------------------------------------------------------- tokenizers


def tokenizer_of(stored: GGUF) -> Tokenizer:
    """Return the byte-level BPE of the file. Its control tokens are special, its unused tokens are left out."""
    metadata = stored.metadata
    kind = metadata["tokenizer.ggml.pre"]
    if metadata["tokenizer.ggml.model"] != "gpt2" or kind not in _SPLITS:
        raise ValueError(f"{stored.file}: only the tokenizers of SmolLM and Qwen2 are supported, not {kind}")
    tokens = list(zip(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"], strict=True))
    vocab = {token: index for index, (token, type_) in enumerate(tokens) if type_ != _UNUSED_TOKEN}
    merges = [(left, right) for left, right in (merge.split(" ") for merge in metadata["tokenizer.ggml.merges"])]
    unknown = metadata.get("tokenizer.ggml.unknown_token_id")  # SmolLM lacks tokens for some bytes
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token=None if unknown is None else tokens[unknown][0]))
    _SPLITS[kind](tokenizer)
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, type_ in tokens if type_ in (_CONTROL_TOKEN, _USER_TOKEN)]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


def _split_as_smollm(tokenizer: Tokenizer) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )


def _split_as_qwen2(tokenizer: Tokenizer) -> None:
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


_SPLITS: Mapping[str, Callable[[Tokenizer], None]] = {"smollm": _split_as_smollm, "qwen2": _split_as_qwen2}
