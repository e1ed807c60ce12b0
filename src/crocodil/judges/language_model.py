"""A causal language model as a judge: the log-likelihood of a text, and feature vectors for MAUVE."""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import tokenizers
import torch
import torch.nn.functional as F
from torch import Tensor

from crocodil.judges.folders import load_network, load_tokenizer, name_of, padded
from crocodil.judges.lineage import families_of
from crocodil.judges.packaged import DEFAULT_JUDGE
from crocodil.metrics import TextFeatures

LONGEST_WINDOW = 1024  # tokens per window, as in GPT-2; the logits of more take gigabytes


class TextScore(NamedTuple):
    """The negative log-likelihood of a text. These are totals: the scores of several texts add up."""

    nats: float
    num_tokens: int  # of the judge's tokenizer
    num_bytes: int


class Window(NamedTuple):
    """A window of a text's tokens, start token included, and how many of its last tokens it scores."""

    text: int  # index of the text
    tokens: list[int]
    num_scored: int


@dataclass(frozen=True)
class LanguageModel:
    """A causal language model with its tokenizer."""

    name: str
    network: Any  # a transformers model
    tokenizer: tokenizers.Tokenizer
    start_id: int  # the token before the first token of a text
    context: int  # tokens per window

    @classmethod
    def load(cls, name_or_path: str | os.PathLike[str] = DEFAULT_JUDGE, *, device: str = "cpu") -> "LanguageModel":
        """Load a folder with safetensors and tokenizer.json, an installed judge, or a model from the hub."""
        from transformers import AutoModelForCausalLM

        network = load_network(AutoModelForCausalLM, name_or_path, device=device)
        config = network.config
        start_id = config.eos_token_id if config.bos_token_id is None else config.bos_token_id
        if not isinstance(start_id, int):
            raise ValueError(f"the judge {name_or_path} has no start token: set bos_token_id in its config.json")
        context = min(getattr(config, "max_position_embeddings", LONGEST_WINDOW), LONGEST_WINDOW)
        return cls(name_of(name_or_path), network, load_tokenizer(name_or_path), start_id, context)

    @property
    def families(self) -> tuple[str, ...]:
        return families_of(self.network)

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, without special tokens."""
        return [row.ids for row in self.tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    @torch.no_grad()
    def scores(self, texts: Sequence[str], *, batch_size: int = 8) -> list[TextScore]:
        """Score whole texts, from the first token on; the end of the text is not scored.

        A text longer than the context is scored in windows that overlap by half: from the second window on, each
        token has at least half a context before it.
        """
        tokens = self._nonempty_tokens(texts)
        windows = [
            window
            for text, row in enumerate(tokens)
            for window in windows_of(text, [self.start_id, *row], self.context)
        ]
        return self._text_scores(texts, tokens, self._nats(windows, len(texts), batch_size))

    @torch.no_grad()
    def scores_given(
        self, prompts: Sequence[str], texts: Sequence[str], *, batch_size: int = 8
    ) -> list[TextScore]:
        """Score each text given the prompt before it. The two are tokenized apart: no token has bytes of both.

        Only the end of a long prompt is read. Every token of a text has at least half a context before it, where
        there is that much.
        """
        given, tokens = self._nonempty_tokens(prompts), self._nonempty_tokens(texts)
        windows = [
            window
            for text, (before, row) in enumerate(zip(given, tokens, strict=True))
            for window in windows_after(text, [self.start_id, *before], row, self.context)
        ]
        return self._text_scores(texts, tokens, self._nats(windows, len(texts), batch_size))

    def _nats(self, windows: "Sequence[Window]", num_texts: int, batch_size: int) -> list[float]:
        """Return the nats of each text: what its windows score."""
        nats = [0.0] * num_texts
        for batch in _by_length(windows, batch_size):
            ids = padded([window.tokens for window in batch], fill=self.start_id, device=self.network.device)
            # The padding is on the right, where a causal model does not look.
            logits = self.network(input_ids=ids, use_cache=False).logits
            for window, row_ids, row_logits in zip(batch, ids, logits, strict=True):
                scored = slice(len(window.tokens) - window.num_scored, len(window.tokens))
                before = row_logits[scored.start - 1 : scored.stop - 1].float()
                nats[window.text] += (
                    F.cross_entropy(before, row_ids[scored], reduction="none").double().sum().item()
                )
        self._require_finite(all(map(math.isfinite, nats)))
        return nats

    @staticmethod
    def _text_scores(texts: Sequence[str], tokens: Sequence[list[int]], nats: Sequence[float]) -> list[TextScore]:
        return [
            TextScore(total, len(row), len(text.encode()))
            for total, row, text in zip(nats, tokens, texts, strict=True)
        ]

    @torch.no_grad()
    def features(self, texts: Sequence[str], *, batch_size: int = 8) -> TextFeatures:
        """Return the last hidden state of the last token, and the mean of the last hidden states.

        The mean leaves out the start token. White space at the end of a text is removed first (`strip_end`). Only
        the last part of a text longer than the context is read; an empty text is read as the start token.
        """
        windows = [
            Window(text, ([self.start_id, *row])[-self.context :], min(len(row), self.context))
            for text, row in enumerate(self._nonempty_tokens([strip_end(text) for text in texts]))
        ]
        last: dict[int, Tensor] = {}
        pooled: dict[int, Tensor] = {}
        for batch in _by_length(windows, batch_size):
            ids = padded([window.tokens for window in batch], fill=self.start_id, device=self.network.device)
            states = self.network.base_model(input_ids=ids, use_cache=False).last_hidden_state
            for window, row in zip(batch, states.float(), strict=True):
                end = len(window.tokens)
                last[window.text] = row[end - 1].cpu().clone()
                pooled[window.text] = row[end - max(window.num_scored, 1) : end].mean(dim=0).cpu()
        features = TextFeatures(
            *(torch.stack([states[text] for text in range(len(texts))]) for states in (last, pooled))
        )
        self._require_finite(all(bool(states.isfinite().all()) for states in features))
        return features

    def _require_finite(self, is_finite: bool) -> None:
        if not is_finite:
            raise FloatingPointError(f"the judge {self.name} gives non-finite numbers: its weights are damaged")

    def _nonempty_tokens(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            raise ValueError("there are no texts to evaluate")
        return self.tokens(texts)


def windows_of(text: int, tokens: list[int], context: int) -> Iterator[Window]:
    """Yield windows that score each token exactly once, except the start token, which is given."""
    end = min(context, len(tokens))
    if end > 1:
        yield Window(text, tokens[:end], end - 1)
    while end < len(tokens):
        scored_to = min(end + context // 2, len(tokens))
        yield Window(text, tokens[scored_to - context : scored_to], scored_to - end)
        end = scored_to


def windows_after(text: int, given: list[int], tokens: list[int], context: int) -> Iterator[Window]:
    """Yield windows that score each of these tokens exactly once, after those that are given."""
    whole, end = [*given, *tokens], len(given)
    while end < len(whole):
        scored_to = min(end + context // 2, len(whole))
        yield Window(text, whole[max(0, scored_to - context) : scored_to], scored_to - end)
        end = scored_to


def _by_length(windows: Sequence[Window], batch_size: int) -> Iterator[list[Window]]:
    """Yield batches of windows of similar length, the longest first: if memory is short, it fails at once."""
    ordered = sorted(windows, key=lambda window: -len(window.tokens))
    for start in range(0, len(ordered), batch_size):
        yield ordered[start : start + batch_size]


def strip_end(text: str) -> str:
    """Remove white space at the end: a final line break says nothing about a program."""
    return text.rstrip()
