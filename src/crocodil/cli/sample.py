"""`crocodil generate`, `autoencode`, `encode`, `decode`, `interpolate` and `verify`: what a model can do.

Results go to stdout, everything else to stderr. Arguments are checked before torch is imported.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from crocodil.cli import options
from crocodil.cli.root import Format, app
from crocodil.pipeline.settings import BUILTIN, SETTINGS_FILE, Method, Settings, model_folder, read_settings
from crocodil.processes.plan import DecodePlan


@app.command()
def generate(
    method: options.MethodName = Method.CON_WITHIN_DISC,
    count: options.Count = 1,
    length: options.Length = None,
    calls: options.Calls = None,
    seed: options.Seed = 0,
    prefix: Annotated[str, typer.Option(parser=options.utf8, help="Text that is given at the beginning.")] = "",
    suffix: Annotated[str, typer.Option(parser=options.utf8, help="Text that is given at the end.")] = "",
    registers: options.Guiding = None,
    block_size: options.BlockSize = None,
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    guidance: options.Guidance = None,
    pag_scale: options.PagScale = None,
    rule: options.Rule = None,
    threshold: options.Threshold = None,
    model: options.Model = BUILTIN,
    format: options.As = Format.TEXT,
    show: Annotated[bool, typer.Option("--show", help="Watch the tokens of a sample appear.")] = False,
    timings: options.Timings = False,
    verbose: options.Verbose = False,
    device: options.Device = None,
) -> None:
    """Generate texts: from registers of the prior, or without any."""
    _plan(_settings(model), length, calls, block_size)
    from crocodil.cli.texts import print_texts, watching
    from crocodil.pipeline import Crocodil, Given

    pipe = Crocodil.from_pretrained(model, device=device)
    asked: dict[str, Any] = {
        "calls": calls,
        "block_size": block_size,
        "temperature": temperature,
        "top_p": top_p,
        "guidance": guidance,
        "rule": rule,
        "threshold": threshold,
        "pag_scale": pag_scale,
        "num_registers": registers,
    }
    knobs = {name: value for name, value in asked.items() if value is not None}
    with watching(pipe, show) as on_call:
        made = pipe.generate(
            count,
            method=method,
            length=length,
            seed=seed,
            given=Given(prefix=prefix, suffix=suffix),
            on_call=on_call,
            **knobs,
        )
    about = {"method": str(method), "seed": seed}
    print_texts(made, format, timings=timings, about=about, verbose=verbose)


@app.command()
def autoencode(
    files: options.Texts,
    calls: options.Calls = None,
    registers: options.NumRegisters = None,
    model: options.Model = BUILTIN,
    verbose: options.Verbose = False,
    device: options.Device = None,
) -> None:
    """Encode texts and decode their registers: what differs, and by how much."""
    texts = [read_text(file) for file in files]
    _settings(model)
    from rich.console import Console

    from crocodil.cli.texts import difference, fitting, summarise
    from crocodil.metrics import character_error_rate
    from crocodil.pipeline import Crocodil

    pipe = Crocodil.from_pretrained(model, device=device)
    texts = [fitting(pipe, text, file) for text, file in zip(texts, files, strict=True)]
    made = pipe.autoencode(texts, calls=calls, num_registers=registers, cut=True)
    console = Console(soft_wrap=True, highlight=False, markup=False)
    for file, text, found in zip(files, texts, made.texts, strict=True):
        console.print(f"---- CER {character_error_rate(text, found):.4f}: {printable(file)}")
        console.print(difference(text, found, coloured=console.is_terminal))
    summarise(made, verbose=verbose)


@app.command()
def encode(
    files: options.Texts,
    out: Annotated[Path, typer.Option(help="The .safetensors file to write.")],
    split: Annotated[
        bool, typer.Option("--split", help="Encode a long text piece by piece; without, it is cut with a warning.")
    ] = False,
    model: options.Model = BUILTIN,
    device: options.Device = None,
) -> None:
    """Write the registers of texts, with the names of the files and the length of the canvas."""
    from crocodil.runtime.atomic import plain_file

    texts = [read_text(file) for file in files]
    plain_file(out)
    _settings(model)
    from crocodil.cli.texts import fitting, write_registers
    from crocodil.pipeline import Crocodil

    pipe = Crocodil.from_pretrained(model, device=device)
    pieces = [
        (file, piece)
        for file, text in zip(files, texts, strict=True)
        for piece in (pipe.pieces(text) if split else [fitting(pipe, text, file)])
    ]
    registers = pipe.encode([piece for _, piece in pieces], cut=True)
    write_registers(registers, out, files=[file for file, _ in pieces])
    typer.echo(f"{out}: {' x '.join(map(str, registers.shape))} (texts, registers, width)", err=True)


@app.command()
def decode(
    file: Annotated[Path, typer.Argument(help="Registers, as `crocodil encode` writes them.")],
    calls: options.Calls = None,
    length: options.Length = None,
    registers: options.NumRegisters = None,
    model: options.Model = BUILTIN,
    format: options.As = Format.TEXT,
    timings: options.Timings = False,
    verbose: options.Verbose = False,
    device: options.Device = None,
) -> None:
    """Turn registers back into texts."""
    if not file.is_file():
        raise ValueError(f"{printable(file)} does not exist, or is no file")
    if length is not None:
        _settings(model).canvas(length)
    from crocodil.cli.texts import print_texts, read_registers
    from crocodil.pipeline import Crocodil

    stored = read_registers(file)
    pipe = Crocodil.from_pretrained(model, device=device)
    made = pipe.decode(stored.registers[:, :registers], calls=calls, length=length)
    print_texts(made, format, timings=timings, about={}, verbose=verbose, files=stored.files)


@app.command()
def interpolate(
    first: Annotated[Path, typer.Argument(metavar="A", help="A text.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another one.")],
    steps: options.InterpolationSteps = 5,
    calls: options.Calls = None,
    model: options.Model = BUILTIN,
    format: options.As = Format.TEXT,
    timings: options.Timings = False,
    verbose: options.Verbose = False,
    device: options.Device = None,
) -> None:
    """Texts on the way from one to another."""
    texts = [read_text(first), read_text(second)]
    _settings(model)
    from crocodil.cli.texts import fitting, print_texts
    from crocodil.pipeline import Crocodil

    pipe = Crocodil.from_pretrained(model, device=device)
    a, b = (fitting(pipe, text, file) for text, file in zip(texts, (first, second), strict=True))
    made = pipe.interpolate(a, b, steps, cut=True, calls=calls)
    print_texts(made, format, timings=timings, about={}, verbose=verbose)


@app.command()
def verify(
    model: Annotated[str, typer.Argument(help="A model folder, or builtin.")] = BUILTIN,
) -> None:
    """Compare every file of a model with its SHA-256. Loading makes a quicker check of its own."""
    from crocodil.checkpoints.checksums import verify as verify_folder

    folder = model_folder(model)
    typer.echo(f"{folder} is whole: {verify_folder(folder)} files are as they were written")


# ---------------------------------------------------------------- checked before anything heavy is imported


def _settings(model: str) -> Settings:
    return read_settings(model_folder(model) / SETTINGS_FILE)


def _plan(settings: Settings, length: int | None, calls: int | None, block_size: int | None) -> DecodePlan:
    return DecodePlan.usual(settings.canvas(length), block_size=block_size, num_calls=calls)


def read_text(file: Path) -> str:
    """A text file, or one line about what else it is."""
    name = printable(file)
    if not file.exists():
        raise ValueError(f"{name} does not exist")
    if file.is_dir():
        raise ValueError(f"{name} is a folder: name the files in it")
    if not file.is_file():
        raise ValueError(f"{name} is a pipe or a device, not a file")
    content = file.read_bytes()
    if not content.strip():
        raise ValueError(f"{name} is empty")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is no UTF-8 text: byte {error.start} is {content[error.start]:#04x}") from None
    if "\0" in text:
        raise ValueError(f"{name} is binary, not text")
    return text


def printable(file: Path) -> str:
    """The name of a file, whatever bytes it has."""
    return str(file).encode("utf-8", "backslashreplace").decode()
