"""A causal language model as a judge: how probable a text is, and a vector that stands for it."""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import tokenizers
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from crocodil.judges.folders import DEFAULT_JUDGE
from crocodil.judges.loading import fingerprint, load_network, load_tokenizer, name_of, padded
from crocodil.metrics import TextFeatures
from crocodil.text.tokenizer import Tokenizer

LONGEST_WINDOW = 1024  # tokens seen at once, as by GPT-2; logits of more take gigabytes


class TextScore(NamedTuple):
    """How probable a judge finds a text. Totals, so that the scores of many texts add up."""

    nats: float
    num_tokens: int  # the judge's
    num_bytes: int


class Window(NamedTuple):
    """A stretch of a text's tokens, the start token among them, and how many of its last ones count here."""

    text: int
    tokens: list[int]
    num_scored: int


@dataclass(frozen=True)
class LanguageModel:
    """A causal language model with its tokenizer."""

    name: str
    network: Any  # as transformers makes it
    tokenizer: tokenizers.Tokenizer
    start_id: int  # what the first token of a text is conditioned on
    context: int  # tokens seen at once

    @classmethod
    def load(cls, name_or_path: str | os.PathLike[str] = DEFAULT_JUDGE, *, device: str = "cpu") -> "LanguageModel":
        """A folder with safetensors and tokenizer.json, an installed judge, or any causal model of the hub."""
        from transformers import AutoModelForCausalLM

        network = load_network(AutoModelForCausalLM, name_or_path, device=device)
        config = network.config
        start_id = config.eos_token_id if config.bos_token_id is None else config.bos_token_id
        if not isinstance(start_id, int):
            raise ValueError(f"the judge {name_or_path} names no token that begins a text (bos_token_id)")
        context = min(getattr(config, "max_position_embeddings", LONGEST_WINDOW), LONGEST_WINDOW)
        return cls(name_of(name_or_path), network, load_tokenizer(name_or_path), start_id, context)

    @cached_property
    def fingerprint(self) -> str:
        return f"{fingerprint(self.network, self.tokenizer)}-{self.start_id}-{self.context}"

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """The texts in this judge's tokens, for entropies that do not depend on who wrote them."""
        return [row.ids for row in self.tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    @torch.no_grad()
    def scores(self, texts: Sequence[str], *, batch_size: int = 8) -> list[TextScore]:
        """Of whole texts, the first token included, their end not.

        A text longer than the context is read in windows that overlap by half: from the second on, a token has at
        least half a context before it.
        """
        tokens = self._tokens_of(texts)
        nats = [0.0] * len(texts)
        windows = [
            window
            for text, row in enumerate(tokens)
            for window in windows_of(text, [self.start_id, *row], self.context)
        ]
        for batch in _by_length(windows, batch_size):
            ids = padded([window.tokens for window in batch], fill=self.start_id, device=self.network.device)
            # What fills a row stands behind it, where a causal model does not look.
            logits = self.network(input_ids=ids, use_cache=False).logits
            for window, row_ids, row_logits in zip(batch, ids, logits, strict=True):
                scored = slice(len(window.tokens) - window.num_scored, len(window.tokens))
                before = row_logits[scored.start - 1 : scored.stop - 1].float()
                nats[window.text] += (
                    F.cross_entropy(before, row_ids[scored], reduction="none").double().sum().item()
                )
        self._require_finite(all(map(math.isfinite, nats)))
        return [
            TextScore(total, len(row), len(text.encode()))
            for total, row, text in zip(nats, tokens, texts, strict=True)
        ]

    def features(self, texts: Sequence[str], *, batch_size: int = 8) -> Float[Tensor, "N D"]:
        """The last hidden state of the last token, which has read the text in its order; a mean has not."""
        return self.both_features(texts, batch_size=batch_size).last

    @torch.no_grad()
    def both_features(self, texts: Sequence[str], *, batch_size: int = 8) -> TextFeatures:
        """The last hidden state of the last token, and the mean over the text's tokens, the start token left out.

        Texts are read by the rule of `as_compared`. Of a text longer than the context, its last part is read; of
        an empty one, the start token.
        """
        windows = [
            Window(text, ([self.start_id, *row])[-self.context :], min(len(row), self.context))
            for text, row in enumerate(self._tokens_of([as_compared(text) for text in texts]))
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
        found = TextFeatures(*(torch.stack([of[text] for text in range(len(texts))]) for of in (last, pooled)))
        self._require_finite(all(bool(states.isfinite().all()) for states in found))
        return found

    def _require_finite(self, is_finite: bool) -> None:
        if not is_finite:
            raise FloatingPointError(f"what the judge {self.name} says is not finite: its weights are damaged")

    def _tokens_of(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            raise ValueError("there are no texts to judge")
        return self.tokens(texts)


def windows_of(text: int, tokens: list[int], context: int) -> Iterator[Window]:
    """Cover every token but the first, which is given, exactly once."""
    end = min(context, len(tokens))
    if end > 1:
        yield Window(text, tokens[:end], end - 1)
    while end < len(tokens):
        scored_to = min(end + context // 2, len(tokens))
        yield Window(text, tokens[scored_to - context : scored_to], scored_to - end)
        end = scored_to


def _by_length(windows: Sequence[Window], batch_size: int) -> Iterator[list[Window]]:
    """Batches of windows that are about equally long, the longest first: what does not fit fails at once."""
    ordered = sorted(windows, key=lambda window: -len(window.tokens))
    for start in range(0, len(ordered), batch_size):
        yield ordered[start : start + batch_size]


def as_compared(text: str) -> str:
    """Without white space at its end: a final line break says nothing about a program."""
    return text.rstrip()


def cut_alike(texts: Sequence[str], tokenizer: Tokenizer, *, length: int) -> list[str]:
    """The texts as a canvas of this length holds them: the beginning takes one place, what does not fit is cut."""
    room = length - 1
    return [
        text if len(ids) <= room else tokenizer.decode(ids[:room])
        for text, ids in zip(texts, tokenizer.encode_all(texts), strict=True)
    ]
