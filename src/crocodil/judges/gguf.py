"""Convert a Llama from a GGUF file, the format of llama.cpp, to the files that transformers loads.

The package `gguf` reads the file and its quantised weights. `transformers` reads GGUF files too, but it cannot
save what it read.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

_CONTROL_TOKEN = 3

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

    def tensor(self, name: str) -> Tensor:
        """Return a tensor in float32, whatever its stored type is."""
        from gguf import dequantize

        stored = self.tensors[name]
        try:
            values = dequantize(stored.data, stored.tensor_type)
        except NotImplementedError as error:
            raise ValueError(f"{self.file}: {name} cannot be decoded: {error}") from error
        return torch.from_numpy(np.array(values, dtype=np.float32))


def convert_llama(file: Path, directory: Path, *, start: str) -> None:
    """Write config.json, model.safetensors and tokenizer.json; `start` is the token that begins a document."""
    stored = GGUF.open(file)
    if stored.metadata["general.architecture"] != "llama":
        raise ValueError(f"{file} holds a {stored.metadata['general.architecture']}, not a Llama")
    config = llama_config(stored, start_id=stored.metadata["tokenizer.ggml.tokens"].index(start))
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(llama_weights(stored), directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "model.safetensors").chmod(0o644)
    smollm_tokenizer(stored).save(str(directory / "tokenizer.json"))


def llama_config(stored: GGUF, *, start_id: int) -> dict[str, Any]:
    """Return the config of `LlamaForCausalLM`."""
    metadata = {name.removeprefix("llama."): value for name, value in stored.metadata.items()}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": metadata["embedding_length"],
        "num_hidden_layers": metadata["block_count"],
        "intermediate_size": metadata["feed_forward_length"],
        "num_attention_heads": metadata["attention.head_count"],
        "num_key_value_heads": metadata["attention.head_count_kv"],
        "max_position_embeddings": metadata["context_length"],
        "rms_norm_eps": round(metadata["attention.layer_norm_rms_epsilon"], 12),
        "rope_theta": metadata["rope.freq_base"],
        "rope_parameters": {"rope_type": "default", "rope_theta": metadata["rope.freq_base"]},
        "vocab_size": metadata["vocab_size"],
        "tie_word_embeddings": "output.weight" not in stored.tensors,
        "bos_token_id": start_id,
        "eos_token_id": start_id,
        "dtype": "float16",
    }


def llama_weights(stored: GGUF) -> dict[str, Tensor]:
    """Return the weights in float16, which is closer to scaled four-bit numbers than bfloat16 is."""
    num_heads = {
        "attn_q": stored.metadata["llama.attention.head_count"],
        "attn_k": stored.metadata["llama.attention.head_count_kv"],
    }
    weights = {}
    for name in stored.tensors:
        *block, module, leaf = name.split(".")
        weight = stored.tensor(name)
        if module in num_heads:
            weight = _for_transformers_rope(weight, num_heads[module])
        path = f"model.layers.{block[1]}.{_BLOCK[module]}" if block else _TOP[module]
        weights[f"{path}.{leaf}"] = weight.half().contiguous()
    return weights


def _for_transformers_rope(weight: Tensor, num_heads: int) -> Tensor:
    """Reorder the rows of each head: llama.cpp rotates neighbouring rows, transformers rows half a head apart."""
    return weight.unflatten(0, (num_heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def smollm_tokenizer(stored: GGUF) -> Tokenizer:
    """Return SmolLM's byte-level BPE, which splits digits. Rare bytes without a token become the unknown token."""
    metadata = stored.metadata
    if (metadata["tokenizer.ggml.model"], metadata["tokenizer.ggml.pre"]) != ("gpt2", "smollm"):
        raise ValueError(f"{stored.file}: only SmolLM's tokenizer is supported")
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [(left, right) for left, right in (merge.split(" ") for merge in metadata["tokenizer.ggml.merges"])]
    vocab = {token: index for index, token in enumerate(tokens)}
    unknown = tokens[metadata["tokenizer.ggml.unknown_token_id"]]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = metadata["tokenizer.ggml.token_type"]
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return tokenizer
