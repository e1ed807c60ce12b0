"""`crocodil generate`, `autoencode`, `encode`, `decode` and `interpolate`: what a trained model can do.

Results go to stdout, everything else to stderr.
"""

import difflib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crocodil.cli.root import app

if TYPE_CHECKING:
    from rich.text import Text

    from crocodil.pipeline import Crocodil, Generation
    from crocodil.samplers import OnCall
    from crocodil.shapes import RegisterBank, TokenIds
    from crocodil.tokenization import Tokenizer


class Format(StrEnum):
    TEXT = "text"
    JSONL = "jsonl"


Model = Annotated[str, typer.Option(help="A model folder, or builtin.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; the accelerator where there is one.")]
Calls = Annotated[int | None, typer.Option(help="Of the demasker; one for every eight tokens by default.")]
Length = Annotated[int | None, typer.Option(help="Of the canvas in tokens; the model's own by default.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same texts.")]
NumRegisters = Annotated[int | None, typer.Option("--registers", help="Decode the first of them only.")]
As = Annotated[Format, typer.Option("--format", help="jsonl: a row for each text, with its cost.")]
Timings = Annotated[bool, typer.Option("--timings", help="Rows hold seconds, which differ from run to run.")]


@app.command()
def generate(
    method: Annotated[str, typer.Option(help="conwithindisc, conthendisc or base.")] = "conwithindisc",
    count: Annotated[int, typer.Option(help="How many texts.")] = 1,
    length: Length = None,
    calls: Calls = None,
    seed: Seed = 0,
    prefix: Annotated[str, typer.Option(help="Text that is given at the beginning.")] = "",
    suffix: Annotated[str, typer.Option(help="Text that is given at the end.")] = "",
    block_size: Annotated[int | None, typer.Option(help="Fill blocks of this size from left to right.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 takes the most probable tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw among the most probable tokens.")] = None,
    guidance: Annotated[
        float | None, typer.Option(help="How strongly registers guide; not 1: twice the calls.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Reveal all tokens more probable than this: fewer calls where it is easy.")
    ] = None,
    model: Model = "builtin",
    format: As = Format.TEXT,
    show: Annotated[bool, typer.Option("--show", help="Watch the tokens of a sample appear.")] = False,
    timings: Timings = False,
    device: Device = None,
) -> None:
    """Generate texts: from registers of the prior, or without any."""
    from dataclasses import replace

    from crocodil.pipeline import Crocodil, Given
    from crocodil.processes.masking import AboveThreshold

    pipe = Crocodil.from_pretrained(model, device=device)
    asked: dict[str, Any] = {
        "block_size": block_size,
        "temperature": temperature,
        "top_p": top_p,
        "guidance": guidance,
    }
    choices = replace(
        pipe.default_choices(), **{name: value for name, value in asked.items() if value is not None}
    )
    if threshold is not None:
        choices = replace(choices, rule=AboveThreshold(threshold))
    with _watching(pipe, pipe.decoding(length, calls, choices).plan.num_calls, show) as on_call:
        made = pipe.generate(
            count,
            method=method,
            length=length,
            calls=calls,
            seed=seed,
            given=Given(prefix=prefix, suffix=suffix),
            choices=choices,
            on_call=on_call,
        )
    _print(made, format, timings=timings, about={"method": method, "seed": seed})


@app.command()
def autoencode(
    files: Annotated[list[Path], typer.Argument(help="Texts.")],
    calls: Calls = None,
    registers: NumRegisters = None,
    model: Model = "builtin",
    device: Device = None,
) -> None:
    """Encode texts and decode their registers: what differs, and by how much."""
    from rich.console import Console

    from crocodil.metrics import character_error_rate  # type: ignore[import-not-found, unused-ignore]
    from crocodil.pipeline import Crocodil

    texts = [read_text(file) for file in files]
    pipe = Crocodil.from_pretrained(model, device=device)
    texts = [_fitting(pipe, text, file) for text, file in zip(texts, files, strict=True)]
    made = pipe.autoencode(texts, calls=calls, num_registers=registers, cut=True)
    console = Console(soft_wrap=True, highlight=False)
    for file, text, found in zip(files, texts, made.texts, strict=True):
        console.rule(f"{file}: CER {character_error_rate(text, found):.4f}", align="left", characters="-")
        console.print(difference(text, found, coloured=console.is_terminal))
    _summarise(made)


@app.command()
def encode(
    files: Annotated[list[Path], typer.Argument(help="Texts.")],
    out: Annotated[Path, typer.Option(help="The .safetensors file to write.")],
    model: Model = "builtin",
    device: Device = None,
) -> None:
    """Write the registers of texts."""
    from safetensors.torch import save_file

    from crocodil.atomic import whole_file
    from crocodil.pipeline import Crocodil

    texts = [read_text(file) for file in files]
    pipe = Crocodil.from_pretrained(model, device=device)
    texts = [_fitting(pipe, text, file) for text, file in zip(texts, files, strict=True)]
    registers = pipe.encode(texts, cut=True).float().cpu().contiguous()
    with whole_file(out) as unfinished:
        save_file({"registers": registers}, unfinished, {"files": json.dumps([str(file) for file in files])})
    typer.echo(f"{out}: {' x '.join(map(str, registers.shape))} (texts, registers, width)", err=True)


@app.command()
def decode(
    file: Annotated[Path, typer.Argument(help="Registers, as `crocodil encode` writes them.")],
    calls: Calls = None,
    length: Length = None,
    registers: NumRegisters = None,
    model: Model = "builtin",
    format: As = Format.TEXT,
    timings: Timings = False,
    device: Device = None,
) -> None:
    """Turn registers back into texts."""
    from crocodil.pipeline import Crocodil

    bank = _read_registers(file)[:, :registers]
    pipe = Crocodil.from_pretrained(model, device=device)
    _print(pipe.decode(bank, calls=calls, length=length), format, timings=timings, about={})


@app.command()
def interpolate(
    first: Annotated[Path, typer.Argument(metavar="A", help="A text.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another one.")],
    steps: Annotated[int, typer.Option(help="How many texts, both ends included.")] = 5,
    calls: Calls = None,
    model: Model = "builtin",
    format: As = Format.TEXT,
    timings: Timings = False,
    device: Device = None,
) -> None:
    """Texts on the way from one to another."""
    from crocodil.pipeline import Crocodil

    texts = [read_text(first), read_text(second)]
    pipe = Crocodil.from_pretrained(model, device=device)
    a, b = (_fitting(pipe, text, file) for text, file in zip(texts, (first, second), strict=True))
    _print(pipe.interpolate(a, b, steps, cut=True, calls=calls), format, timings=timings, about={})


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


def _fitting(pipe: "Crocodil", text: str, file: Path) -> str:
    """As much of a text as fits; a warning says what does not."""
    kept, lost = pipe.fitting(text)
    if lost:
        typer.echo(
            f"crocodil: {file} is longer than the model's {pipe.settings.length} tokens: the last {len(lost)} of "
            f"{len(text)} characters are cut, from {lost[:30]!r} on",
            err=True,
        )
    return kept


def _read_registers(file: Path) -> "RegisterBank":
    from safetensors import SafetensorError
    from safetensors.torch import load_file

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


def _print(made: "Generation", format: Format, *, timings: bool, about: dict[str, object]) -> None:
    seconds = {"seconds": made.seconds / len(made.texts)} if timings else {}
    for number, (text, cost) in enumerate(zip(made.texts, made.costs, strict=True)):
        if format is Format.JSONL:
            row = {"sample": number, **about, "text": text, **vars(cost), **seconds}
            typer.echo(json.dumps(row, ensure_ascii=False))
            continue
        if number:
            typer.echo("-" * 40)
        typer.echo(text)
    _summarise(made)


def _summarise(made: "Generation") -> None:
    cost = made.cost
    typer.echo(
        f"{len(made.texts)} texts in {made.seconds:.1f} s: {cost.demasker_calls} demasker, "
        f"{cost.denoiser_calls} denoiser and {cost.encoder_calls} encoder calls; "
        f"NFE {made.nfe:.1f} a text, {made.flop_nfe:.1f} by FLOPs" + (f" ({made.note})" if made.note else ""),
        err=True,
    )


@contextmanager
def _watching(pipe: "Crocodil", num_calls: int, show: bool) -> Iterator["OnCall | None"]:
    """A live view of the first sample of a batch."""
    if not show:
        yield None
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), transient=True, vertical_overflow="visible") as live:

        def on_call(tokens: "TokenIds", call: int) -> None:
            ids = tokens[0].tolist()
            hidden = ids.count(pipe.mask_id)
            view = partly_shown(ids, pipe.tokenizer, pipe.mask_id)
            view.append(f"\n\ncall {call + 1} of {num_calls}, {len(ids) - hidden} of {len(ids)} tokens", "cyan")
            live.update(view)

        yield on_call


def partly_shown(ids: Sequence[int], tokenizer: "Tokenizer", mask_id: int) -> "Text":
    """The text of what is visible, and a block for each token that is not."""
    from rich.text import Text

    special = tokenizer.special
    view = Text()
    for is_hidden, stretch in groupby((i for i in ids if i not in (special.bos, special.eos)), mask_id.__eq__):
        some = list(stretch)
        view.append("░" * len(some) if is_hidden else tokenizer.decode(some), "dim" if is_hidden else "")
    return view


def difference(old: str, new: str, *, coloured: bool) -> "Text":
    """What was lost in red and what came instead in green; marked as wdiff does where there is no colour."""
    from rich.text import Text

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
