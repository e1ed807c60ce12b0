"""Texts and registers as the verbs read and show them. Imported by verbs at work only: it loads everything."""

import difflib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import torch
import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text
from safetensors import SafetensorError, safe_open

from crocodil.checkpoints.tensors import write_tensors
from crocodil.cli.root import Format
from crocodil.cli.sample import printable
from crocodil.pipeline import Crocodil, Generation, Registers, Snapshot
from crocodil.pipeline.crocodil import OnSnapshot
from crocodil.pipeline.results import SEPARATOR
from crocodil.runtime.atomic import whole_file
from crocodil.runtime.config import Length, parse_as, read_as
from crocodil.sampling.cost import NO_COST
from crocodil.shapes import RegisterBank
from crocodil.text.tokenizer import Tokenizer

# ---------------------------------------------------------------- reading


def fitting(pipe: Crocodil, text: str, file: Path) -> str:
    """As much of a text as fits; a warning says what does not."""
    kept, lost = pipe.fitting(text)
    if lost:
        typer.echo(
            f"crocodil: {printable(file)} is longer than the model's {pipe.settings.lengths[-1]} tokens: the last "
            f"{len(lost)} of {len(text)} characters are cut, from {lost[:30]!r} on",
            err=True,
        )
    return kept


class Stored(NamedTuple):
    """What `crocodil encode` wrote."""

    registers: Registers | RegisterBank  # a file of an older version does not know the length of its canvas
    files: list[str]  # of each row


def read_registers(file: Path) -> Stored:
    try:
        with safe_open(file, framework="pt") as handle:
            about = handle.metadata() or {}
            bank = handle.get_tensor("registers") if "registers" in handle.keys() else None  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{file} is no safetensors file: {error}") from None
    if bank is None or bank.ndim != 3 or not bank.is_floating_point():
        raise ValueError(f"{file} holds no registers: `crocodil encode` writes such files")
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
    about = {"length": str(registers.length), "files": json.dumps([printable(file) for file in files])}
    with whole_file(out) as unfinished:
        write_tensors({"registers": registers.bank.float().cpu().contiguous()}, unfinished, about)


# ---------------------------------------------------------------- showing


def print_texts(
    made: Generation,
    format: Format,
    *,
    timings: bool,
    about: dict[str, object],
    verbose: bool,
    files: Sequence[str] = (),
) -> None:
    """With the names of `files`, the pieces of one file are printed as one text."""
    seconds = {"seconds": made.seconds / len(made.texts)} if timings else {}
    for number, (text, cost) in enumerate(zip(made.texts, made.costs, strict=True)):
        if format is Format.JSONL:
            of_file = {"file": files[number]} if files else {}
            row = {"sample": number, **about, **of_file, "text": text, **vars(cost), **seconds}
            typer.echo(json.dumps(row, ensure_ascii=False))
            continue
        goes_on = list(files[number : number + 2]) == [files[number]] * 2 if files else False
        typer.echo(text, nl=not goes_on)
        if not goes_on and number + 1 < len(made.texts):
            typer.echo(SEPARATOR)
    summarise(made, verbose=verbose)


def summarise(made: Generation, *, verbose: bool) -> None:
    typer.echo(seconds_line(made), err=True)
    if verbose:
        typer.echo(cost_line(made), err=True)


def seconds_line(made: Generation) -> str:
    count = len(made.texts)
    each = f", {made.seconds / count:.1f} s each" if count > 1 else ""
    note = f" ({made.note})" if made.note else ""
    return f"{count} text{'s' if count > 1 else ''} in {made.seconds:.1f} s{each}{note}"


def cost_line(made: Generation) -> str:
    """What a text costs on average: calls of each network, and both units of NFE."""
    count, total = len(made.texts), sum(made.costs, NO_COST)
    calls = (
        f"{getattr(total, f'{network}_calls') / count:.4g} of the {network}"
        for network in ("demasker", "denoiser", "encoder")
    )
    nfe = f"{made.nfe:.1f} in the paper's unit, {made.flop_nfe:.1f} by FLOPs"
    return f"calls a text: {', '.join(calls)}; NFE {nfe}"


@contextmanager
def watching(pipe: Crocodil, show: bool) -> Iterator[OnSnapshot | None]:
    """A live view of the first sample of a batch."""
    if not show:
        yield None
        return
    with Live(console=Console(stderr=True), transient=True, auto_refresh=False) as live:

        def on_call(seen: Snapshot) -> None:
            ids = seen.tokens[0].tolist()
            num_shown = len(ids) - ids.count(pipe.mask_id)
            where = f"call {seen.call + 1} of {seen.num_calls}, {num_shown} of {len(ids)} tokens"
            where = f"{where}, NFE {pipe.nfe(seen.cost):.1f}"
            view = partly_shown(ids, pipe.tokenizer, pipe.mask_id)
            live.update(Text.assemble((f"{where}\n\n", "cyan"), view), refresh=True)

        yield on_call


def partly_shown(ids: Sequence[int], tokenizer: Tokenizer, mask_id: int) -> Text:
    """The text of what is visible, and a block for each token that is not."""
    special = tokenizer.special
    view = Text()
    for is_hidden, stretch in groupby((i for i in ids if i not in (special.bos, special.eos)), mask_id.__eq__):
        some = list(stretch)
        view.append("░" * len(some) if is_hidden else tokenizer.decode(some), "dim" if is_hidden else "")
    return view


def difference(old: str, new: str, *, coloured: bool) -> Text:
    """What was lost in red and what came instead in green; marked as wdiff does where there is no colour."""
    before, after = (re.findall(r"\w+|\s|.", text) for text in (old, new))
    view = Text()
    for kind, a, b, c, d in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        lost, found = "".join(before[a:b]), "".join(after[c:d])
        if kind == "equal":
            view.append(lost)
            continue
        if lost:
            view.append(lost if coloured else f"[-{lost}-]", "red strike")
        if found:
            view.append(found if coloured else f"{{+{found}+}}", "green")
    return view
