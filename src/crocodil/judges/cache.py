"""Scores and features kept by content, so that judging the same text again costs nothing."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor

from crocodil.judges.language_model import LanguageModel, TextScore, as_compared
from crocodil.metrics import TextFeatures
from crocodil.runtime.atomic import whole_file

FEATURES = "both-features"  # files of features alone are older, and hold no means
TEXTS_A_FILE = 512  # what is lost at most when a long evaluation is stopped


@dataclass(frozen=True)
class Cached:
    """A language model that remembers its judgements in a folder.

    Files are only ever added, each whole, so several processes may share the folder. Judges that differ in their
    weights, precision or tokenizer do not mix, whatever they are called.
    """

    judge: LanguageModel
    folder: str | os.PathLike[str]

    @property
    def name(self) -> str:
        return self.judge.name

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        return self.judge.tokens(texts)

    def scores(self, texts: Sequence[str], *, batch_size: int = 8) -> list[TextScore]:
        found = self._stored_scores()
        keys = [_key(text) for text in texts]
        for some in _missing(texts, keys, found):
            new = dict(zip(some, self.judge.scores(list(some.values()), batch_size=batch_size), strict=True))
            lines = [json.dumps({"text": key, **score._asdict()}) + "\n" for key, score in new.items()]
            with whole_file(self._file("scores", some, "jsonl")) as file:
                file.write_text("".join(lines))
            found |= new
        return [found[key] for key in keys]

    def features(self, texts: Sequence[str], *, batch_size: int = 8) -> Float[Tensor, "N D"]:
        return self.both_features(texts, batch_size=batch_size).last

    def both_features(self, texts: Sequence[str], *, batch_size: int = 8) -> TextFeatures:
        found = self._stored_features()
        texts = [as_compared(text) for text in texts]
        keys = [_key(text) for text in texts]
        for some in _missing(texts, keys, found):
            both = self.judge.both_features(list(some.values()), batch_size=batch_size)
            rows = torch.stack([both.last, both.pooled], dim=1)
            new = {key: row.clone() for key, row in zip(some, rows, strict=True)}
            with whole_file(self._file(FEATURES, some, "safetensors")) as file:
                save_file(new, file)
            found |= new
        return TextFeatures(*torch.stack([found[key] for key in keys]).unbind(dim=1))

    def _stored_scores(self) -> dict[str, TextScore]:
        rows = (json.loads(line) for file in self._files("scores") for line in file.read_text().splitlines())
        return {row.pop("text"): TextScore(**row) for row in rows}

    def _stored_features(self) -> dict[str, Tensor]:
        return {key: row for file in self._files(FEATURES) for key, row in load_file(file).items()}

    def _files(self, kind: str) -> list[Path]:
        return sorted(self._home.glob(f"{kind}-*"))

    def _file(self, kind: str, texts: dict[str, str], ending: str) -> Path:
        """Named after its texts: two processes that judge the same write the same file."""
        self._home.mkdir(parents=True, exist_ok=True)
        return self._home / f"{kind}-{_key(' '.join(texts))}.{ending}"

    @property
    def _home(self) -> Path:
        return Path(self.folder) / f"{self.name.replace('/', '--')}-{self.judge.fingerprint}"


def _key(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _missing(texts: Sequence[str], keys: Sequence[str], found: dict) -> Iterator[dict[str, str]]:
    """What is not yet known, every text once, by key and in portions."""
    if not texts:
        raise ValueError("there are no texts to judge")
    new = [(key, text) for key, text in dict(zip(keys, texts, strict=True)).items() if key not in found]
    for start in range(0, len(new), TEXTS_A_FILE):
        yield dict(new[start : start + TEXTS_A_FILE])
