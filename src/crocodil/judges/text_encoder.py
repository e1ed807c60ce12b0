"""What embeds tokens for BERTScore: a bidirectional encoder (a CodeBERT in the paper), or a layer of the judge."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer

from crocodil.judges.folders import is_causal, load_network, load_tokenizer, name_of, padded
from crocodil.judges.language_model import LanguageModel
from crocodil.judges.lineage import families_of
from crocodil.judges.packaged import DEFAULT_ENCODER
from crocodil.metrics.embeddings import EmbeddedTexts

DEPTH = 2 / 3  # the layer of a judge whose states are used, as a share of its layers (docs/evaluation.md)


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

    @property
    def families(self) -> tuple[str, ...]:
        return families_of(self.network)

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


@dataclass(frozen=True)
class JudgeLayer:
    """The states of a causal language model after one of its layers.

    A token's state depends only on the text before it. The judge reads case, white space and up to 1,024 tokens.
    """

    judge: LanguageModel
    layer: int

    @classmethod
    def of(cls, judge: LanguageModel, *, layer: int | None = None) -> "JudgeLayer":
        """Return a layer of a judge; by default `DEPTH` of all layers."""
        num_layers = judge.network.config.num_hidden_layers
        if layer is not None and not 0 <= layer <= num_layers:
            raise ValueError(f"{judge.name} has layers 0 (its embeddings) to {num_layers}, not {layer}")
        return cls(judge, round(DEPTH * num_layers) if layer is None else layer)

    @property
    def name(self) -> str:
        return f"{self.judge.name}, layer {self.layer}"

    @property
    def families(self) -> tuple[str, ...]:
        return self.judge.families

    @torch.no_grad()
    def embed(self, texts: Sequence[str]) -> EmbeddedTexts:
        """Embed the texts in one batch, each truncated to the judge's context; the start token does not count."""
        if not texts:
            raise ValueError("there are no texts to embed")
        judge, device = self.judge, self.judge.network.device
        rows = [[judge.start_id, *row][: judge.context] for row in judge.tokens(texts)]
        ids = padded(rows, fill=judge.start_id, device=device)
        present = padded([[1] * len(row) for row in rows], fill=0, device=device).bool()
        states = judge.network.base_model(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states
        counted = present.clone()
        counted[:, 0] = False
        return EmbeddedTexts(states[self.layer].float(), present, counted)


def load_embedder(name_or_path: str | os.PathLike[str], *, device: str = "cpu") -> TextEncoder | JudgeLayer:
    """Load a bidirectional encoder, or the middle layer of a causal language model, by what config.json says."""
    if is_causal(name_or_path):
        return JudgeLayer.of(LanguageModel.load(name_or_path, device=device))
    return TextEncoder.load(name_or_path, device=device)
