"""A protocol that is a file, fixed before anything is measured on test programs (decision D44).

The file holds every value that a result depends on besides the model. Rows hold the sha256 of the file, and a
folder of results takes rows of one file only.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import Any

from crocodil.reproduce.protocol import CRITERION, MATCHING, PROTOCOLS, Protocol
from crocodil.reproduce.store import Row, Store, read_rows
from crocodil.runtime.atomic import whole_file
from crocodil.runtime.config import Seed, checked_by, config, config_from_json, read_json

PROTOCOL = "protocol"  # the condition that holds the sha256 of the file
TEST_CORPUS = "test_corpus"  # the condition that names the corpus of the test programs, if it is another one


def _day(text: Any) -> Any:
    try:
        date.fromisoformat(text)
    except (TypeError, ValueError):
        raise ValueError(f"should be a date such as 2026-11-16, not {text!r}") from None
    return text


def _stated_as(rule: str) -> Any:
    """A field that states a rule of the code. A file with another rule is refused, not followed."""

    def check(text: Any) -> Any:
        if text != rule:
            raise ValueError(f"should be the rule of this version, {rule!r}, not {text!r}")
        return text

    return checked_by(check)


@config
class FixedProtocol:
    """What the file holds."""

    date: checked_by(_day)  # type: ignore[valid-type]
    judges: tuple[str, ...]  # the first chooses and measures; the others add their numbers to the rows of test
    embedder: str | None  # for BERTScore
    seed: Seed
    test_corpus: str  # the fingerprint of the corpus of the test programs
    choice: _stated_as(CRITERION) = CRITERION  # type: ignore[valid-type]  # among the candidates of a sweep
    matching: _stated_as(MATCHING) = MATCHING  # type: ignore[valid-type]  # of a method and the base, for a speed-up
    protocol: Protocol

    def __post_init__(self) -> None:
        if not self.judges:
            raise ValueError("judges should name at least one judge")
        if self.protocol.name in PROTOCOLS:
            raise ValueError(f"protocol.name {self.protocol.name!r} is the name of a preset: choose another")

    def save(self, file: str | os.PathLike[str]) -> None:
        with whole_file(Path(file)) as unfinished:
            unfinished.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")


def read_protocol(file: Path) -> tuple[FixedProtocol, str]:
    """Return the protocol of a file, which must have exactly the fields of this version, and its sha256."""
    values = read_json(file)
    return config_from_json(FixedProtocol, values, file), sha256(file.read_bytes()).hexdigest()


def check_test_corpus(expected: str, found: str) -> None:
    if expected != found:
        raise ValueError(
            f"the protocol fixes a test corpus with fingerprint {expected}, and this one has {found}: "
            "give the fixed one as --test"
        )


def check_same_protocol(store: Store, names: Iterable[str]) -> None:
    """Refuse to measure on test programs if rows of these names were measured by another protocol file.

    Rows without a file count too, unless they were measured on other test programs.
    """
    own, programs = store.conditions.get(PROTOCOL), _test_programs(store.conditions)
    for name in names:
        for row in read_rows(store.file(name)):
            other = row.get(PROTOCOL)
            if other != own and (other is not None or _test_programs(row) == programs):
                raise ValueError(
                    f"{store.file(name)} has rows of {_described(other)}, and this run has {_described(own)}: "
                    "choose another --out, test programs are measured by one protocol only"
                )


def _test_programs(row: Row) -> str | None:
    """Return the fingerprint of the corpus of the test programs."""
    return row.get(TEST_CORPUS, row.get("corpus"))


def _described(digest: str | None) -> str:
    return "no protocol file" if digest is None else f"the protocol file with sha256 {digest[:12]}..."
