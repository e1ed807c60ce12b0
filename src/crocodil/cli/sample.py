"""The commands that use a model: `generate`, `autoencode`, `interpolate`, `encode`, `decode`, `verify` and `push`.

Results go to stdout, everything else to stderr. Options are checked before torch is imported.
"""

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from crocodil.checkpoints.hub import UPLOAD, upload
from crocodil.cli import options
from crocodil.cli.answers import checked_method, print_answers
from crocodil.cli.root import USE, Format, app
from crocodil.cli.texts import NewFolder, check_new_registers, printable, read_prompt, read_texts, source_name
from crocodil.pipeline.base_settings import BaseSettings, answer_decoding, check_checkpoint, checkpoint_folder
from crocodil.pipeline.settings import (
    BUILTIN,
    Method,
    Settings,
    check_interpolation_steps,
    model_folder,
    read_settings,
    settings_file,
)
from crocodil.sampling.configs import Decoding, Drawing
from crocodil.text.positions import Place

CPU_BATCH = 4  # texts: the first ones are printed early, for a tenth more time than in batches of 16


class _Generate(TyperCommand):
    """Takes no arguments; text that is given without an option is probably a prompt."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.allow_extra_args = True
        if extra := super().parse_args(ctx, args):
            ctx.fail(f"Got unexpected extra argument ({' '.join(extra)}): use --prompt TEXT or --prefix TEXT")
        return extra


@app.command(rich_help_panel=USE, cls=_Generate)
@options.with_knobs_of(Decoding, Drawing)
def generate(
    *,
    method: options.MethodOrBase = None,
    count: options.Count = 1,
    length: options.CanvasOrAnswer = None,
    seed: options.Seed = 0,
    prefix: options.Prefix = "",
    suffix: options.Suffix = "",
    prompt: options.PromptText = None,
    prompt_file: options.PromptFile = None,
    chat: options.Chat = False,
    knobs: dict[str, Any],
    format: options.TextFormat = Format.TEXT,
    out_dir: options.OutDir = None,
    extension: options.Extension = None,
    batch_size: options.EarlyBatchSize = None,
    show: options.Show = False,
    timings: options.Timings = False,
    verbose: options.Verbose = False,
    model: options.Model = BUILTIN,
    device: options.Device = None,
) -> None:
    """Generate texts. Each text is printed as soon as its batch is finished.

    Decoding and register options have the model's own defaults. With --prompt, the command prints answers to the
    prompt, the most likely first. A public checkpoint such as LLaDA has no registers.
    """
    checkpoint = checkpoint_folder(model)
    asked: dict[str, Any] = {"length": length, "seed": seed, **knobs}
    if checkpoint is None:
        if chat:
            raise ValueError("--chat is for checkpoints with a chat template, such as LLaDA: use --prompt alone")
        method = checked_method(model, method, length, knobs)
        if prompt is not None or prompt_file is not None:
            if prefix or show or out_dir is not None or extension is not None:
                raise ValueError("--prompt goes with none of --prefix, --show, --out-dir and --extension")
            place = Place(_prompt(prompt, prompt_file, chat=False), suffix, at_column=False)
            if not (place.prefix or place.suffix):
                raise ValueError("the prompt is empty: leave out --prompt")
            asked |= {"count": count, "method": method, "batch_size": batch_size}
            print_answers(place, model, device, asked, format, timings=timings, verbose=verbose)
            return
    else:
        if prefix or suffix:
            raise ValueError("--prefix and --suffix are for models with registers: use --prompt")
        method = method or Method.BASE
        _check_base(checkpoint, method, length, knobs, chat=chat)
        asked |= {"prompts": [_prompt(prompt, prompt_file, chat=chat)] * count, "chat": chat}
    folder = NewFolder.asked(out_dir, extension)
    from crocodil.cli.display import Printer, Totals, tell_note, watching
    from crocodil.pipeline import Base, Crocodil, Given

    pipe: Base | Crocodil
    told = ""
    if checkpoint is None:
        pipe = Crocodil.from_pretrained(model, device=device)
        asked |= {"count": count, "method": method, "given": Given(prefix=prefix, suffix=suffix)}
        told = tell_note(pipe, asked)
    else:
        pipe = Base.from_pretrained(model, device=device)
    batch_size = batch_size or (CPU_BATCH if pipe.device.type == "cpu" else None)
    printer = Printer(format, timings=timings, about={"method": str(method), "seed": seed}, folder=folder)
    totals = Totals(told=told)
    with watching(pipe, show) as on_call:
        for batch in pipe.stream_batches(**asked, batch_size=batch_size, on_call=on_call):
            for text, cost in zip(batch.texts, batch.costs, strict=True):
                printer.add(text, cost, batch.seconds / len(batch.texts))
            totals.add(batch)
    totals.print(verbose=verbose)


@app.command(rich_help_panel=USE)
@options.with_knobs_of(Decoding)
def autoencode(
    files: options.Texts,
    *,
    registers: options.FirstRegisters = None,
    knobs: dict[str, Any],
    verbose: options.Verbose = False,
    model: options.Model = BUILTIN,
    device: options.Device = None,
) -> None:
    """Encode texts into registers, decode the registers, and print what changed.

    Line breaks at the end of a file are left out.
    """
    texts = read_texts(files)
    _settings(model)
    from rich.console import Console

    from crocodil.cli.display import Totals, difference, fitting
    from crocodil.metrics import character_error_rate
    from crocodil.pipeline import Crocodil

    pipe = Crocodil.from_pretrained(model, device=device)
    texts = [fitting(pipe, text, file) for text, file in zip(texts, files, strict=True)]
    made = pipe.autoencode(texts, num_registers=registers, cut=True, **knobs)
    console = Console(soft_wrap=True, highlight=False, markup=False)
    for file, text, decoded in zip(files, texts, made.texts, strict=True):
        console.print(f"---- CER {character_error_rate(text, decoded):.4f}: {source_name(file)}")
        console.print(difference(text, decoded, coloured=console.is_terminal))
    Totals(made).print(verbose=verbose)


@app.command(rich_help_panel=USE)
@options.with_knobs_of(Decoding)
def interpolate(
    first: Annotated[Path, typer.Argument(metavar="A", help="The first text file; - reads stdin.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="The second text file; - reads stdin.")],
    *,
    steps: options.InterpolationSteps = 5,
    knobs: dict[str, Any],
    format: options.TextFormat = Format.TEXT,
    timings: options.Timings = False,
    verbose: options.Verbose = False,
    model: options.Model = BUILTIN,
    device: options.Device = None,
) -> None:
    """Interpolate between the registers of two texts and decode the results.

    Line breaks at the end of a file are left out.
    """
    check_interpolation_steps(steps)
    texts = read_texts([first, second])
    _settings(model)
    from crocodil.cli.display import fitting, print_texts
    from crocodil.pipeline import Crocodil

    pipe = Crocodil.from_pretrained(model, device=device)
    a, b = (fitting(pipe, text, file) for text, file in zip(texts, (first, second), strict=True))
    made = pipe.interpolate(a, b, steps, cut=True, **knobs)
    print_texts(made, format, timings=timings, verbose=verbose)


@app.command(rich_help_panel=USE)
def encode(
    files: options.Texts,
    out: Annotated[Path, typer.Option(help="The new .safetensors file to write.")],
    split: Annotated[
        bool, typer.Option("--split", help="Split long texts into pieces. Without this option they are cut.")
    ] = False,
    model: options.Model = BUILTIN,
    device: options.Device = None,
) -> None:
    """Encode texts and write their registers to a new file.

    Line breaks at the end of a file are left out.
    """
    check_new_registers(out)
    texts = read_texts(files)
    _settings(model)
    from crocodil.cli.display import fitting, write_registers
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


@app.command(rich_help_panel=USE)
@options.with_knobs_of(Decoding)
def decode(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file written by `crocodil encode`.")],
    *,
    length: options.Length = None,
    registers: options.FirstRegisters = None,
    knobs: dict[str, Any],
    format: options.TextFormat = Format.TEXT,
    out_dir: options.OutDir = None,
    extension: options.Extension = None,
    timings: options.Timings = False,
    verbose: options.Verbose = False,
    model: options.Model = BUILTIN,
    device: options.Device = None,
) -> None:
    """Decode the registers in a file into texts. The pieces of a split text are one text again."""
    if not file.is_file():
        raise ValueError(f"{printable(file)} does not exist or is not a file")
    if out_dir is not None and format is Format.JSONL:
        raise ValueError("--out-dir goes with --format text: rows of jsonl are pieces of texts")
    if length is not None:
        _settings(model).canvas(length)
    folder = NewFolder.asked(out_dir, extension)
    from crocodil.cli.display import print_texts, read_registers
    from crocodil.pipeline import Crocodil

    stored = read_registers(file)
    if registers is not None and registers > (most := stored.registers.shape[1]):
        raise ValueError(f"{printable(file)} has {most} registers per text: use --registers {most} or fewer")
    pipe = Crocodil.from_pretrained(model, device=device)
    made = pipe.decode(stored.registers[:, :registers], length=length, **knobs)
    print_texts(made, format, timings=timings, verbose=verbose, files=stored.files, folder=folder)


@app.command(rich_help_panel=USE)
def verify(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A model folder, a name on the hub, or builtin.")
    ] = BUILTIN,
) -> None:
    """Check every file of a model against its SHA-256 checksum."""
    from crocodil.checkpoints.checksums import verify as verify_folder

    folder = model_folder(model)
    typer.echo(f"{folder}: all {verify_folder(folder)} files match their checksums")


@app.command(rich_help_panel=USE)
def push(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model folder.")],
    repository: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Repository on the hub.")],
    private: Annotated[
        bool, typer.Option("--private", help="Only you and your organisation can see the repository.")
    ] = False,
    message: Annotated[str, typer.Option(parser=options.utf8, metavar="TEXT", help="Commit message.")] = UPLOAD,
) -> None:
    """Upload a model and its card (README.md) to the Hugging Face hub. Log in first with `hf auth login`."""
    from crocodil.checkpoints.checksums import verify as verify_folder

    folder = model_folder(model)
    verify_folder(folder)
    typer.echo(upload(folder, repository, private=private, message=message))


def _check_base(folder: Path, method: Method, length: int | None, knobs: dict[str, Any], *, chat: bool) -> None:
    """Check the options for a checkpoint without registers."""
    about_registers = {entry.name for entry in fields(Drawing)} & set(knobs)
    if method is not Method.BASE or about_registers:
        option = options.flag_of(min(about_registers)) if about_registers else f"--method {method}"
        raise ValueError(f"{option} needs registers, and {folder} has none: it is a checkpoint of a base")
    settings = BaseSettings.of_checkpoint(folder)
    answer_decoding(settings.decoding, knobs, length=length or settings.length)
    check_checkpoint(folder, chat=chat)


def _prompt(text: str | None, file: Path | None, *, chat: bool) -> str:
    if text is not None and file is not None:
        raise ValueError("--prompt and --prompt-file are two prompts: give one of them")
    prompt = (text or "") if file is None else read_prompt(file)
    if chat and not prompt:
        raise ValueError("--chat answers a prompt: give it with --prompt or --prompt-file")
    return prompt


def _settings(model: str) -> Settings:
    """Read the settings of a model: a missing or damaged model is an error before torch is imported."""
    return read_settings(settings_file(model))
