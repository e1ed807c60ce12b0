"""Texts and registers as the verbs read and show them. Imported by verbs at work only: it loads everything."""

import difflib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text
from safetensors import SafetensorError
from safetensors.torch import load_file

from crocodil.cli.root import Format
from crocodil.cost import Cost
from crocodil.decoding import OnCall
from crocodil.pipeline import Crocodil, Generation
from crocodil.shapes import RegisterBank, TokenIds
from crocodil.tokenization import Tokenizer

# ---------------------------------------------------------------- reading


def read_text(file: Path) -> str:
    """A text file, or one line about what else it is."""
    if not file.exists():
        raise ValueError(f"{file} does not exist")
    if file.is_dir():
        raise ValueError(f"{file} is a folder: name the files in it")
    content = file.read_bytes()
    if not content.strip():
        raise ValueError(f"{file} is empty")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is no UTF-8 text: byte {error.start} is {content[error.start]:#04x}") from None
    if "\0" in text:
        raise ValueError(f"{file} is binary, not text")
    return text


def fitting(pipe: Crocodil, text: str, file: Path) -> str:
    """As much of a text as fits; a warning says what does not."""
    kept, lost = pipe.fitting(text)
    if lost:
        typer.echo(
            f"crocodil: {file} is longer than the model's {pipe.settings.lengths[-1]} tokens: the last "
            f"{len(lost)} of {len(text)} characters are cut, from {lost[:30]!r} on",
            err=True,
        )
    return kept


def read_registers(file: Path) -> RegisterBank:
    if not file.is_file():
        raise ValueError(f"{file} does not exist")
    try:
        tensors = load_file(file)
    except SafetensorError as error:
        raise ValueError(f"{file} is no safetensors file: {error}") from None
    if "registers" not in tensors or tensors["registers"].ndim != 3:
        raise ValueError(f"{file} holds no registers: `crocodil encode` writes such files")
    return tensors["registers"]


# ---------------------------------------------------------------- showing


def print_texts(made: Generation, format: Format, *, timings: bool, about: dict[str, object]) -> None:
    seconds = {"seconds": made.seconds / len(made.texts)} if timings else {}
    for number, (text, cost) in enumerate(zip(made.texts, made.costs, strict=True)):
        if format is Format.JSONL:
            row = {"sample": number, **about, "text": text, **vars(cost), **seconds}
            typer.echo(json.dumps(row, ensure_ascii=False))
            continue
        if number:
            typer.echo("-" * 40)
        typer.echo(text)
    summarise(made)


def summarise(made: Generation) -> None:
    typer.echo(cost_line(made), err=True)


def cost_line(made: Generation) -> str:
    cost, count = made.cost, len(made.texts)
    return (
        f"{count} text{'s' if count > 1 else ''} in {made.seconds:.1f} s: {cost.demasker_calls} demasker, "
        f"{cost.denoiser_calls} denoiser and {cost.encoder_calls} encoder calls; "
        f"NFE {made.nfe:.1f} a text, {made.flop_nfe:.1f} by FLOPs" + (f" ({made.note})" if made.note else "")
    )


@contextmanager
def watching(pipe: Crocodil, num_calls: int, show: bool) -> Iterator[OnCall | None]:
    """A live view of the first sample of a batch."""
    if not show:
        yield None
        return
    with Live(console=Console(stderr=True), transient=True, auto_refresh=False) as live:

        def on_call(tokens: TokenIds, call: int, cost: Cost) -> None:
            ids = tokens[0].tolist()
            num_shown = len(ids) - ids.count(pipe.mask_id)
            where = f"call {call + 1} of {num_calls}, {num_shown} of {len(ids)} tokens, NFE {pipe.nfe(cost):.1f}"
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
