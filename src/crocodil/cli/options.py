"""The options that verbs share. Each is checked when the command line is read, before anything heavy is imported.

The checks are those of the configs that the values end up in (`crocodil.runtime.config`).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer

from crocodil.cli.root import Format
from crocodil.pipeline.settings import Method
from crocodil.processes.plan import RULE_NAMES, rule_name
from crocodil.runtime import config


def checked(kind: Any) -> Callable[[Any], Any]:
    """A parser of an option that makes the same check as a config."""

    def parse(value: Any) -> Any:
        if not isinstance(value, str):  # a default
            return value
        try:
            return config.parse_as(kind, value)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return parse


def number(kind: Any, help: str, *names: str, metavar: str = "NUMBER") -> Any:
    return typer.Option(*names, parser=checked(kind), metavar=metavar, help=help)


def utf8(text: str) -> str:
    """The command line may hold bytes that are no text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise typer.BadParameter("is no UTF-8 text") from None
    return text


def device_name(text: str) -> str:
    """Whether it is there is found out when it is used."""
    kind, _, index = text.partition(":")
    if kind not in ("cpu", "cuda") or (index and not (kind == "cuda" and index.isdecimal() and index.isascii())):
        raise typer.BadParameter(f"no device {text!r}: take cpu, cuda or cuda:N")
    return text


# Names that are known elsewhere too, where torch is loaded; tests/test_cli.py holds them equal.
Stage = Literal["base", "guided", "registers", "prior", "conditional"]
StageOrShow = Literal["base", "guided", "registers", "prior", "conditional", "show"]
Preset = Literal["tiny", "small", "paper", "paper-plus", "paper-one-gpu"]
Protocol = Literal["full", "quick", "tiny"]
Split = Literal["valid", "test"]
Network = Literal["demasker", "encoder", "prior", "conditional", "condition_encoder", "base"]
Judge = Literal["smollm2-135m", "minilm-l6-v2"]
Experiment = Literal[
    "all", "report",
    "model", "reference", "demasker", "autoencoder", "generation", "memorisation", "seconds", "cpu-seconds",
    "noise", "interpolation", "psnr", "prdc", "register-count", "refresh", "variants", "variant-autoencoders",
    "two-sentences",
]  # fmt: skip


def one_of(names: Any, help: str) -> Any:
    return typer.Option(parser=checked(names), metavar="|".join(get_args(names)), help=help)


Model = Annotated[str, typer.Option(help="A model folder, or builtin.")]
Device = Annotated[
    str | None,
    typer.Option(
        parser=device_name, metavar="DEVICE", help="cpu, cuda or cuda:N; the accelerator where there is one."
    ),
]
Calls = Annotated[int | None, number(config.Length, "Of the demasker; one for every sixteen tokens by default.")]
Length = Annotated[int | None, number(config.Length, "Of the canvas in tokens; the model's own by default.")]
Seed = Annotated[int, number(config.Seed, "The same seed gives the same texts.")]
Count = Annotated[int, number(config.Count, "How many texts.")]
BlockSize = Annotated[int | None, number(config.Length, "Fill blocks of this size from left to right.")]
Temperature = Annotated[float | None, number(config.Temperature, "0 takes the most probable tokens.")]
TopP = Annotated[float | None, number(config.TopP, "Draw among the most probable tokens.")]
Guidance = Annotated[
    float | None, number(config.Guidance, "How strongly registers guide; not 1: twice the calls.")
]
PagScale = Annotated[
    float | None, number(config.PagScale, "How much registers must fit together: fluency against variety.")
]
Threshold = Annotated[
    float | None, number(config.Share, "Reveal all tokens more probable than this: fewer calls where it is easy.")
]
Rule = Annotated[
    str | None,
    typer.Option(
        parser=checked(config.checked_by(rule_name)),
        metavar="RULE",
        help=f"{', '.join(RULE_NAMES)}.",
    ),
]
MethodName = Annotated[Method, typer.Option(help="Where the registers come from that guide the text.")]
Guiding = Annotated[int | None, number(config.Width, "Guided by the first so many of those drawn.", "--registers")]
NumRegisters = Annotated[int | None, number(config.Width, "Decode the first of them only.", "--registers")]
InterpolationSteps = Annotated[int, number(config.Steps, "How many texts, both ends included.")]
As = Annotated[Format, typer.Option("--format", help="jsonl: a row for each text, with its cost.")]
Timings = Annotated[bool, typer.Option("--timings", help="Rows hold seconds, which differ from run to run.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Print what the texts cost in calls and NFE, too.")]
Texts = Annotated[list[Path], typer.Argument(metavar="FILE", help="Texts.")]
