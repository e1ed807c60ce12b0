"""A judge with a cache on disk: scoring the same text again costs nothing."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from crocodil.judges.language_model import LanguageModel, TextScore, strip_end
from crocodil.metrics import TextFeatures
from crocodil.runtime.atomic import whole_file

FEATURES = "both-features"  # files named `features` are older and hold no means
TEXTS_PER_FILE = 512  # the most that is lost when a long evaluation is stopped


@dataclass(frozen=True)
class CachedJudge:
    """A language model whose scores and features are kept in a folder.

    Files are added whole and never changed, so several processes may share the folder. Judges with different
    weights, precision or tokenizer have separate files, even under the same name.
    """

    judge: LanguageModel
    folder: str | os.PathLike[str]

    @property
    def name(self) -> str:
        return self.judge.name

    @property
    def families(self) -> tuple[str, ...]:
        return self.judge.families

    def scores(self, texts: Sequence[str], *, batch_size: int = 8) -> list[TextScore]:
        """Return `LanguageModel.scores`."""
        known = self._stored_scores()
        keys = [_key(text) for text in texts]
        for batch in _missing(texts, keys, known):
            new = dict(zip(batch, self.judge.scores(list(batch.values()), batch_size=batch_size), strict=True))
            lines = [json.dumps({"text": key, **score._asdict()}) + "\n" for key, score in new.items()]
            with whole_file(self._file("scores", batch, "jsonl")) as file:
                file.write_text("".join(lines))
            known |= new
        return [known[key] for key in keys]

    def scores_given(
        self, prompts: Sequence[str], texts: Sequence[str], *, batch_size: int = 8
    ) -> list[TextScore]:
        """Return `LanguageModel.scores_given`, which is not cached."""
        return self.judge.scores_given(prompts, texts, batch_size=batch_size)

    def features(self, texts: Sequence[str], *, batch_size: int = 8) -> TextFeatures:
        """Return `LanguageModel.features`."""
        known = self._stored_features()
        texts = [strip_end(text) for text in texts]
        keys = [_key(text) for text in texts]
        for batch in _missing(texts, keys, known):
            features = self.judge.features(list(batch.values()), batch_size=batch_size)
            rows = torch.stack([features.last, features.pooled], dim=1)
            new = {key: row.clone() for key, row in zip(batch, rows, strict=True)}
            with whole_file(self._file(FEATURES, batch, "safetensors")) as file:
                save_file(new, file)
            known |= new
        return TextFeatures(*torch.stack([known[key] for key in keys]).unbind(dim=1))

    def _stored_scores(self) -> dict[str, TextScore]:
        rows = (json.loads(line) for file in self._files("scores") for line in file.read_text().splitlines())
        return {row.pop("text"): TextScore(**row) for row in rows}

    def _stored_features(self) -> dict[str, Tensor]:
        return {key: row for file in self._files(FEATURES) for key, row in load_file(file).items()}

    def _files(self, kind: str) -> list[Path]:
        return sorted(self._directory.glob(f"{kind}-*"))

    def _file(self, kind: str, texts: dict[str, str], suffix: str) -> Path:
        """Return a file named after its texts: two processes that score the same texts write the same file."""
        self._directory.mkdir(parents=True, exist_ok=True)
        return self._directory / f"{kind}-{_key(' '.join(texts))}.{suffix}"

    @property
    def _directory(self) -> Path:
        return Path(self.folder) / f"{self.name.replace('/', '--')}-{self.judge.fingerprint}"


def _key(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _missing(texts: Sequence[str], keys: Sequence[str], known: dict) -> Iterator[dict[str, str]]:
    """Yield the texts that are not cached, each once and by key, in batches of one file."""
    if not texts:
        raise ValueError("there are no texts to evaluate")
    new = [(key, text) for key, text in dict(zip(keys, texts, strict=True)).items() if key not in known]
    for start in range(0, len(new), TEXTS_PER_FILE):
        yield dict(new[start : start + TEXTS_PER_FILE])
