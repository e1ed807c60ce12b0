"""How commands print texts, costs and differences, and store registers. Imports torch."""

import difflib
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch
import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text
from safetensors import SafetensorError, safe_open

from crocodil.checkpoints.tensors import write_tensors
from crocodil.cli.root import Format
from crocodil.cli.texts import NewFolder, printable, source_name
from crocodil.pipeline import Base, Crocodil, Generation, Registers
from crocodil.pipeline.completing import Answers
from crocodil.pipeline.generating import generation_job
from crocodil.pipeline.results import HIDDEN, SEPARATOR, OnSnapshot, Snapshot
from crocodil.pipeline.settings import Method
from crocodil.runtime.atomic import whole_file
from crocodil.runtime.config import Length, parse_as, read_as
from crocodil.sampling.cost import NO_COST, Cost
from crocodil.shapes import RegisterBank
from crocodil.text.positions import Place

# ---------------------------------------------------------------- reading


def fitting(pipe: Crocodil, text: str, file: Path) -> str:
    """Return the part of a text that fits on the longest canvas; warn about the rest."""
    kept, lost = pipe.fitting(text)
    if lost:
        typer.echo(
            f"crocodil: {source_name(file)} is longer than the model's {pipe.settings.lengths[-1]} tokens: the "
            f"last {len(lost)} of {len(text)} characters are cut, starting at {lost[:30]!r}",
            err=True,
        )
    return kept


def tell_note(pipe: Crocodil, asked: Mapping[str, Any]) -> str:
    """Print the note on a generation before it begins, and return it. The note on the base follows its result."""
    note = "" if asked["method"] is Method.BASE else generation_job(pipe, **asked).note
    if note:
        typer.echo(f"crocodil: {note}", err=True)
    return note


def warn_of_cut(place: Place, answers: Answers) -> None:
    """Say how much of the text around a place the model did not see."""
    cut = [len(place.prefix) - len(answers.prompt), len(place.suffix) - len(answers.suffix)]
    if any(cut):
        typer.echo(
            f"crocodil: the text is longer than a canvas: the first {cut[0]} characters before the place and the "
            f"last {cut[1]} after it are not seen",
            err=True,
        )


class Stored(NamedTuple):
    """The content of a file that `crocodil encode` wrote."""

    registers: Registers | RegisterBank  # a bare bank in files of older versions: they lack the canvas length
    files: list[str]  # the file of each row


def read_registers(file: Path) -> Stored:
    try:
        with safe_open(file, framework="pt") as handle:
            about = handle.metadata() or {}
            bank = handle.get_tensor("registers") if "registers" in handle.keys() else None  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{file} is not a safetensors file: {error}") from None
    if bank is None or bank.ndim != 3 or not bank.is_floating_point():
        raise ValueError(f"{file} holds no registers: make such a file with `crocodil encode`")
    if not torch.isfinite(bank).all():
        raise ValueError(f"{file} holds registers that are not finite: encode the texts again")
    files = _file_names(about.get("files"), len(bank), file)
    return Stored(Registers(bank, parse_as(Length, about["length"])) if "length" in about else bank, files)


def _file_names(stored: str | None, count: int, source: Path) -> list[str]:
    if stored is None:
        return [str(number) for number in range(count)]
    names = read_as(list[str], json.loads(stored), source)
    if len(names) != count:
        raise ValueError(f"{source} holds {count} registers and {len(names)} names: encode the texts again")
    return names


def write_registers(registers: Registers, out: Path, *, files: Sequence[Path]) -> None:
    about = {"length": str(registers.length), "files": json.dumps([source_name(file) for file in files])}
    with whole_file(out) as unfinished:
        write_tensors({"registers": registers.bank.float().cpu().contiguous()}, unfinished, about)


# ---------------------------------------------------------------- showing


class Printer:
    """Prints texts one by one, as text with separators or as rows of JSON. A folder gets a file for each text."""

    def __init__(
        self, format: Format, *, timings: bool, about: Mapping[str, object], folder: NewFolder | None = None
    ) -> None:
        self.format, self.timings, self.about, self.folder = format, timings, about, folder
        self.count = 0

    def add(self, text: str, cost: Cost, seconds: float, **about: object) -> None:
        row: dict[str, object] = {"sample": self.count, **self.about, **about}
        if self.folder is not None:
            row["file"] = printable(self.folder.write(self.count, text))
        if self.format is Format.JSONL:
            row |= {"text": text, **vars(cost)} | ({"seconds": seconds} if self.timings else {})
            typer.echo(json.dumps(row, ensure_ascii=False))
        elif self.folder is not None:
            typer.echo(row["file"])
        else:
            typer.echo(f"{SEPARATOR}\n{text}" if self.count else text)
        self.count += 1


def print_texts(
    made: Generation,
    format: Format,
    *,
    timings: bool,
    verbose: bool,
    files: Sequence[str] = (),
    folder: NewFolder | None = None,
) -> None:
    """Print all texts, or write each to a file. With names of files, the pieces of one file are one text."""
    if format is Format.TEXT:
        joined = groupby(enumerate(made.texts), lambda piece: files[piece[0]] if files else piece[0])
        texts = ["".join(text for _, text in pieces) for _, pieces in joined]
        if folder is None:
            typer.echo(f"\n{SEPARATOR}\n".join(texts))
        else:
            typer.echo("\n".join(printable(folder.write(number, text)) for number, text in enumerate(texts)))
    else:
        printer, seconds = Printer(format, timings=timings, about={}), made.seconds / len(made.texts)
        for number, (text, cost) in enumerate(zip(made.texts, made.costs, strict=True)):
            printer.add(text, cost, seconds, **({"file": files[number]} if files else {}))
    num_joined = len(made) if format is Format.JSONL else len(texts)
    Totals(made, num_joined=num_joined).print(verbose=verbose)


class Totals:
    """The number of texts, their time and their cost, summed over batches."""

    def __init__(self, *batches: Generation, num_joined: int | None = None, told: str = "") -> None:
        """`num_joined` texts were joined from pieces. The note `told` is not printed again."""
        self.num_joined, self.told = num_joined, told
        self.count, self.seconds, self.note = 0, 0.0, ""
        self.cost, self.nfe, self.flop_nfe = NO_COST, 0.0, 0.0
        for batch in batches:
            self.add(batch)

    def add(self, batch: Generation) -> None:
        count = len(batch.texts)
        self.count += count
        self.seconds += batch.seconds
        self.cost = sum(batch.costs, self.cost)
        self.nfe += count * batch.nfe
        self.flop_nfe += count * batch.flop_nfe
        self.note = "" if batch.note == self.told else batch.note

    def print(self, *, verbose: bool) -> None:
        typer.echo(self.seconds_line(), err=True)
        if verbose:
            typer.echo(self.cost_line(), err=True)

    def seconds_line(self) -> str:
        num_texts = self.num_joined or self.count
        pieces = f" from {self.count} pieces" if num_texts != self.count else ""
        each = f", {self.seconds / num_texts:.1f} s each" if num_texts > 1 else ""
        note = f" ({self.note})" if self.note else ""
        return f"{num_texts} text{'s' if num_texts > 1 else ''}{pieces} in {self.seconds:.1f} s{each}{note}"

    def cost_line(self) -> str:
        """Return the mean cost of a text: calls of each network, and NFE in both units."""
        calls = (
            f"{getattr(self.cost, f'{network}_calls') / self.count:.4g} of the {network}"
            for network in ("demasker", "denoiser", "encoder")
        )
        nfe = f"{self.nfe / self.count:.1f} in the paper's unit, {self.flop_nfe / self.count:.1f} by FLOPs"
        return f"calls per text: {', '.join(calls)}; NFE {nfe}"


@contextmanager
def watching(pipe: Crocodil | Base, show: bool) -> Iterator[OnSnapshot | None]:
    """Show the first text of each batch live on stderr, with a block for each masked token."""
    if not show:
        yield None
        return
    console = Console(stderr=True)
    with Live(console=console, transient=True, auto_refresh=False, redirect_stdout=sys.stdout.isatty()) as live:

        def on_call(snapshot: Snapshot) -> None:
            num_tokens = snapshot.tokens.shape[1]
            num_shown = int((snapshot.tokens[0] != pipe.mask_id).sum())
            status = (
                f"call {snapshot.call + 1} of {snapshot.num_calls}, {num_shown} of {num_tokens} tokens, "
                f"NFE {pipe.nfe(snapshot.cost):.1f}"
            )
            text = Text(snapshot.texts[0])
            text.highlight_regex(f"{HIDDEN}+", "dim")
            live.update(Text.assemble((f"{status}\n\n", "cyan"), text), refresh=True)

        yield on_call


def difference(old: str, new: str, *, coloured: bool) -> Text:
    """Return both texts in one: deletions in red, insertions in green; without colour, marked as by wdiff."""
    before, after = (re.findall(r"\w+|\s|.", text) for text in (old, new))
    view = Text()
    for kind, a, b, c, d in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        lost, new_part = "".join(before[a:b]), "".join(after[c:d])
        if kind == "equal":
            view.append(lost)
            continue
        if lost:
            view.append(lost if coloured else f"[-{lost}-]", "red strike")
        if new_part:
            view.append(new_part if coloured else f"{{+{new_part}+}}", "green")
    return view
