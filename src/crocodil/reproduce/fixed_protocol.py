"""A protocol that is a file, fixed before anything is measured on test programs (decision D44).

The file holds every value that a result depends on besides the model. Rows hold the sha256 of the file, and a
folder of results takes rows of one file only.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import Any

from crocodil.reproduce.choice import BY_MAUVE, Aims, rule_of
from crocodil.reproduce.protocol import MATCHING, PROTOCOLS, Protocol
from crocodil.reproduce.store import Row, Store, read_rows
from crocodil.runtime.atomic import whole_file
from crocodil.runtime.config import Length, Positive, Seed, Share, checked_by, config, config_from_json, read_json

KEPT_FILE = "protocol.json"  # the file of a folder of results
DRAFT = "draft"  # instead of a date: nothing may be measured by such a file
PROTOCOL = "protocol"  # the condition that holds the sha256 of the file
TEST_CORPUS = "test_corpus"  # the condition that names the corpus of the test programs, if it is another one


def _day(text: Any) -> Any:
    if text == DRAFT:
        return text
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
class Targets(Aims):
    """What the model should reach on test programs, at one length and number of calls unless said otherwise.

    The aims are for the samples of one guided method at a time; real programs are those of `anchor`.
    """

    length: Length
    calls: Length
    speedup: Mapping[str, Positive]  # by length: by FLOPs, over the base at its best number of calls, at least
    lengths_within_above: int  # at how many lengths ConWithinDisc is above ConThenDisc at equal cost, at least
    bits_per_byte: Positive  # the bound of the base, at most
    cer: Share  # of copies through all registers in one block, at most


@config
class FixedProtocol:
    """What the file holds."""

    date: checked_by(_day)  # type: ignore[valid-type]
    judges: tuple[str, ...]  # the first chooses and measures; the others add their numbers to the rows of test
    embedder: str | None  # for BERTScore
    seed: Seed
    test_corpus: str  # the fingerprint of the corpus of the test programs
    choice: str = BY_MAUVE  # among the candidates of a sweep: the rule that follows from `protocol.aims`
    matching: _stated_as(MATCHING) = MATCHING  # type: ignore[valid-type]  # of a method and the base, for a speed-up
    targets: Targets | None = None  # what the model should reach: the report says what it does reach
    protocol: Protocol

    def __post_init__(self) -> None:
        if not self.judges:
            raise ValueError("judges should name at least one judge")
        if self.choice != (rule := rule_of(self.protocol.aims)):
            raise ValueError(f"choice should be {rule!r}, the rule for these protocol.aims, not {self.choice!r}")
        if self.protocol.name in PROTOCOLS:
            raise ValueError(f"protocol.name {self.protocol.name!r} is the name of a preset: choose another")

    def save(self, file: str | os.PathLike[str]) -> None:
        with whole_file(Path(file)) as unfinished:
            unfinished.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")


def read_protocol(file: Path) -> tuple[FixedProtocol, str]:
    """Return the protocol of a file, which must have exactly the fields of this version, and its sha256."""
    values = read_json(file)
    return config_from_json(FixedProtocol, values, file), sha256(file.read_bytes()).hexdigest()


def keep_protocol(file: Path, directory: Path) -> None:
    """Copy the file into the folder of results, where the report finds it."""
    content, kept = file.read_bytes(), directory / KEPT_FILE
    if not kept.exists():
        directory.mkdir(parents=True, exist_ok=True)
        with whole_file(kept) as unfinished:
            unfinished.write_bytes(content)
    elif kept.read_bytes() != content:
        raise ValueError(
            f"{kept} is not the given file: choose another --out, test programs are measured by one protocol only"
        )


def kept_targets(directory: Path, rows: Sequence[Row]) -> Targets | None:
    """Return the targets of the protocol file of a folder, if these rows were measured by it."""
    kept = directory / KEPT_FILE
    if not kept.is_file():
        return None
    fixed, digest = read_protocol(kept)
    return fixed.targets if all(row.get(PROTOCOL) == digest for row in rows) else None


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
