"""Tiny causal checkpoints in the layout of transformers, each with a byte-level tokenizer."""

import json
from pathlib import Path

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

NUM_TOKENS = 258  # all bytes and two special tokens
KINDS = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 12}),  # unlike hidden_size / num_attention_heads
}


def save_causal(
    directory: Path,
    kind: str = "llama",
    *,
    num_rows: int = 320,
    num_layers: int = 3,
    num_shards: int = 1,
    **values,
) -> PreTrainedModel:
    """Write a random checkpoint and its tokenizer; return the network. Biases and norms are random too."""
    make_config, make_model, special = KINDS[kind]
    fields = {
        "vocab_size": num_rows, "hidden_size": 32, "num_hidden_layers": num_layers, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}, "tie_word_embeddings": True,
        "bos_token_id": 256, "eos_token_id": 256,
    }  # fmt: skip
    model = make_model(make_config(**{**fields, **special, **values})).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    size = sum(parameter.numel() for parameter in model.parameters()) * 4
    model.save_pretrained(directory, max_shard_size=size // num_shards + 1 if num_shards > 1 else "1GB")
    byte_level_tokenizer().save(str(directory / "tokenizer.json"))
    return model


def byte_level_tokenizer(*special: str) -> tokenizers.Tokenizer:
    """A tokenizer of single bytes, whose last tokens are EOS, padding and these."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = tokenizers.Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(["<|endoftext|>", "<|pad|>", *special])
    return raw


def save_dream(directory: Path) -> PreTrainedModel:
    """Write a checkpoint in Dream's format: a Qwen2 that attends both ways; return the Qwen2."""
    model = save_causal(directory, "qwen2", tie_word_embeddings=False)
    file = directory / "config.json"
    values = json.loads(file.read_text()) | {"model_type": "Dream", "architectures": ["DreamModel"]}
    file.write_text(json.dumps(values | {"mask_token_id": 300, "pad_token_id": 256}))
    model.config.is_causal = False
    return model
