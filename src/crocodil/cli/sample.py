"""`crocodil generate`, `autoencode`, `encode`, `decode` and `interpolate`: what a trained model can do.

Results go to stdout, everything else to stderr.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from crocodil.cli.root import Format, app

Model = Annotated[str, typer.Option(help="A model folder, or builtin.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; the accelerator where there is one.")]
Calls = Annotated[int | None, typer.Option(help="Of the demasker; one for every sixteen tokens by default.")]
Length = Annotated[int | None, typer.Option(help="Of the canvas in tokens; the model's own by default.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same texts.")]
NumRegisters = Annotated[int | None, typer.Option("--registers", min=0, help="Decode the first of them only.")]
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
    registers: Annotated[int | None, typer.Option(help="Guided by the first so many of those drawn.")] = None,
    block_size: Annotated[int | None, typer.Option(help="Fill blocks of this size from left to right.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 takes the most probable tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw among the most probable tokens.")] = None,
    guidance: Annotated[
        float | None, typer.Option(help="How strongly registers guide; not 1: twice the calls.")
    ] = None,
    coherence: Annotated[
        float | None, typer.Option(min=0, help="How much registers must fit together: fluency against variety.")
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(help="most confident, noisy confidence, at random, remask or remask by confidence."),
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

    from crocodil.cli.texts import print_texts, watching
    from crocodil.pipeline import Crocodil, Given, Method
    from crocodil.processes.masking import RULES, AboveThreshold

    pipe = Crocodil.from_pretrained(model, device=device)
    if coherence is not None:
        pipe = replace(pipe, settings=replace(pipe.settings, coherence=coherence))
    if rule not in (None, *RULES):
        raise ValueError(f"no reveal rule {rule!r}: take one of {', '.join(RULES)}")
    asked: dict[str, Any] = {
        "block_size": block_size,
        "temperature": temperature,
        "top_p": top_p,
        "guidance": guidance,
        "rule": RULES.get(rule or "") if threshold is None else AboveThreshold(threshold),
    }
    given_choices = {name: value for name, value in asked.items() if value is not None}
    choices = replace(pipe.default_choices(Method(method)), **given_choices)
    with watching(pipe, pipe.decoding(length, calls, choices).plan.num_calls, show) as on_call:
        made = pipe.generate(
            count,
            method=method,
            length=length,
            calls=calls,
            seed=seed,
            given=Given(prefix=prefix, suffix=suffix),
            num_registers=registers,
            choices=choices,
            on_call=on_call,
        )
    print_texts(made, format, timings=timings, about={"method": method, "seed": seed})


@app.command()
def autoencode(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Texts.")],
    calls: Calls = None,
    registers: NumRegisters = None,
    model: Model = "builtin",
    device: Device = None,
) -> None:
    """Encode texts and decode their registers: what differs, and by how much."""
    from rich.console import Console

    from crocodil.cli.texts import difference, fitting, read_text, summarise
    from crocodil.metrics import character_error_rate
    from crocodil.pipeline import Crocodil

    texts = [read_text(file) for file in files]
    pipe = Crocodil.from_pretrained(model, device=device)
    texts = [fitting(pipe, text, file) for text, file in zip(texts, files, strict=True)]
    made = pipe.autoencode(texts, calls=calls, num_registers=registers, cut=True)
    console = Console(soft_wrap=True, highlight=False)
    for file, text, found in zip(files, texts, made.texts, strict=True):
        console.rule(f"CER {character_error_rate(text, found):.4f}: {file}", align="left", characters="-")
        console.print(difference(text, found, coloured=console.is_terminal))
    summarise(made)


@app.command()
def encode(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Texts.")],
    out: Annotated[Path, typer.Option(help="The .safetensors file to write.")],
    model: Model = "builtin",
    device: Device = None,
) -> None:
    """Write the registers of texts."""
    from safetensors.torch import save_file

    from crocodil.atomic import whole_file
    from crocodil.cli.texts import fitting, read_text
    from crocodil.pipeline import Crocodil

    texts = [read_text(file) for file in files]
    pipe = Crocodil.from_pretrained(model, device=device)
    texts = [fitting(pipe, text, file) for text, file in zip(texts, files, strict=True)]
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
    from crocodil.cli.texts import print_texts, read_registers
    from crocodil.pipeline import Crocodil

    bank = read_registers(file)[:, :registers]
    pipe = Crocodil.from_pretrained(model, device=device)
    print_texts(pipe.decode(bank, calls=calls, length=length), format, timings=timings, about={})


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
    from crocodil.cli.texts import fitting, print_texts, read_text
    from crocodil.pipeline import Crocodil

    texts = [read_text(first), read_text(second)]
    pipe = Crocodil.from_pretrained(model, device=device)
    a, b = (fitting(pipe, text, file) for text, file in zip(texts, (first, second), strict=True))
    print_texts(pipe.interpolate(a, b, steps, cut=True, calls=calls), format, timings=timings, about={})
