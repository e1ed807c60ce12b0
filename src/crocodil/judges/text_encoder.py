"""A bidirectional encoder for BERTScore, or CodeBERTScore where the encoder is a CodeBERT."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer

from crocodil.judges.folders import load_network, load_tokenizer, name_of, padded
from crocodil.judges.packaged import DEFAULT_ENCODER
from crocodil.metrics.embeddings import EmbeddedTexts


@dataclass(frozen=True)
class TextEncoder:
    """A bidirectional encoder with its tokenizer.

    The default is a surrogate: a small encoder of English sentences, which ignores case and white space. Its
    scores cannot be compared with those of a CodeBERT.
    """

    name: str
    network: Any  # a transformers model
    tokenizer: Tokenizer  # truncates texts to the network's positions
    layer: int  # whose output is used; by default the last

    @classmethod
    def load(
        cls,
        name_or_path: str | os.PathLike[str] = DEFAULT_ENCODER,
        *,
        device: str = "cpu",
        layer: int | None = None,
    ) -> "TextEncoder":
        """Load a folder with safetensors and tokenizer.json, an installed encoder, or one from the hub."""
        from transformers import AutoModel

        network = load_network(AutoModel, name_or_path, device=device)
        num_layers = network.config.num_hidden_layers
        if layer is not None and not 0 <= layer <= num_layers:
            raise ValueError(f"{name_or_path} has layers 0 (its embeddings) to {num_layers}, not {layer}")
        # RoBERTa numbers its positions from pad_token_id + 1.
        reserved = network.config.pad_token_id + 1 if network.config.model_type == "roberta" else 0
        context = network.config.max_position_embeddings - reserved
        tokenizer = load_tokenizer(name_or_path)
        tokenizer.enable_truncation(context)
        return cls(name_of(name_or_path), network, tokenizer, num_layers if layer is None else layer)

    @torch.no_grad()
    def embed(self, texts: Sequence[str]) -> EmbeddedTexts:
        """Embed the texts in one batch, each truncated to the encoder's positions."""
        if not texts:
            raise ValueError("there are no texts to embed")
        rows = self.tokenizer.encode_batch(list(texts))
        device = self.network.device
        ids = padded([row.ids for row in rows], fill=self.network.config.pad_token_id or 0, device=device)
        present = padded([row.attention_mask for row in rows], fill=0, device=device)
        special = padded([row.special_tokens_mask for row in rows], fill=1, device=device)
        states = self.network(input_ids=ids, attention_mask=present, output_hidden_states=True).hidden_states
        return EmbeddedTexts(states[self.layer], present.bool(), ~special.bool())
