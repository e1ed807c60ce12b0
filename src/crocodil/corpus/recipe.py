"""The recipe of a corpus: its source and all options of the build. Presets are in presets/corpora.py."""

import hashlib
from dataclasses import dataclass, fields
from pathlib import Path

from crocodil.corpus.documents import Cut, definitions
from crocodil.corpus.filters import FOR_PYTHON, Filter
from crocodil.corpus.sources import Source

MIN_VOCABULARY, MAX_VOCABULARY = 260, 1 << 20  # at least all bytes and four special tokens


@dataclass(frozen=True, kw_only=True)
class Recipe:
    source: Source
    filters: tuple[Filter, ...] = FOR_PYTHON
    cut: Cut = definitions  # where long files are cut, and where shorter programs may start
    strip_notice: bool = True  # remove leading licence comments, which all files of a package share
    permissive_only: bool = True
    max_chars: int = 20_000  # longer files are cut into their definitions
    package_cap_chars: int = 12_000_000
    near_duplicate: float = 0.7  # estimated Jaccard similarity of 5-word shingles
    against: tuple[Path, ...] = ()  # other corpora: documents that also occur in one of them are dropped
    hold_out_families: bool = True  # hold out whole package families; False: single documents
    valid_share: float = 0.01
    test_share: float = 0.01
    split_key: str = "split"  # another key holds out other families or documents
    tokenizer: Path | None = None  # an existing tokenizer.json; None trains one
    vocab_size: int = 8192
    tokenizer_chars: int = 60_000_000  # size of the part of train that a new tokenizer is trained on
    shard_chars: int = 100_000_000

    def __post_init__(self) -> None:
        if not MIN_VOCABULARY <= self.vocab_size <= MAX_VOCABULARY:
            raise ValueError(f"vocab_size must be {MIN_VOCABULARY} to {MAX_VOCABULARY:,}, not {self.vocab_size}")
        for_training = self.valid_share >= 0 and self.test_share >= 0 and self.valid_share + self.test_share < 1
        if not (for_training or self.only_test):
            raise ValueError(
                f"valid_share {self.valid_share} and test_share {self.test_share} leave nothing to train"
            )

    @property
    def only_test(self) -> bool:
        """Whether all documents are for tests, and none for training."""
        return (self.valid_share, self.test_share) == (0, 1)

    def fingerprint(self, *names: str) -> str:
        """Return a digest of these fields, to recognise files built with another recipe."""
        described = [f"{name}={_described(getattr(self, name))}" for name in names]
        return hashlib.sha256("\n".join(described).encode()).hexdigest()[:16]

    def harvest_fingerprint(self) -> str:
        return self.fingerprint("source", "filters", "cut", "strip_notice", "permissive_only", "max_chars")

    def corpus_fingerprint(self) -> str:
        names = [field.name for field in fields(self)]
        if not self.against:
            names.remove("against")  # as before this field was added: begun builds can be continued
        return self.fingerprint(*names)


def _described(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(_described(item) for item in value)})"
    return getattr(value, "__name__", None) or repr(value)
