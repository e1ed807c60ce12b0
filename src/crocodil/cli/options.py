"""The options that commands share. Each is checked when the command line is read, before torch is imported.

The checks are those of the configs that the values end up in (`crocodil.runtime.config`). `with_knobs_of` makes
options from the fields of a sampling config, so a new field is at once a new option.
"""

import dataclasses
import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer

from crocodil.cli.root import Format
from crocodil.pipeline.settings import Method
from crocodil.runtime import config

# The panels of a command's help.
TEXT, OUTPUT, CAUSAL = "Text", "Output", "Base from a causal language model"
KNOB_PANELS = {"Decoding": "Decoding", "Drawing": "Registers"}


def checked(kind: Any) -> Callable[[Any], Any]:
    """Return a parser for an option that makes the same check as a config."""

    def parse(value: Any) -> Any:
        if not isinstance(value, str):  # a default
            return value
        try:
            return config.parse_as(kind, value)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return parse


def number(kind: Any, help: str, *names: str, panel: str | None = None) -> Any:
    """Return an option for a number with the limits of a config's field."""
    metavar = "INT" if get_args(kind)[0] is int else "FLOAT"
    return typer.Option(*names, parser=checked(kind), metavar=metavar, help=help, rich_help_panel=panel)


def one_of(names: Any, help: str) -> Any:
    return typer.Option(parser=checked(names), metavar="|".join(get_args(names)), help=help)


def utf8(text: str) -> str:
    """Check that an option is text: a command line may hold any bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise typer.BadParameter("is not UTF-8 text") from None
    return text


def device_name(text: str) -> str:
    """Check the form of a device name. Whether the device exists is checked when it is used."""
    kind, _, index = text.partition(":")
    if kind not in ("cpu", "cuda") or (index and not (kind == "cuda" and index.isdecimal() and index.isascii())):
        raise typer.BadParameter(f"no device {text!r}: choose cpu, cuda or cuda:N")
    return text


def file_extension(text: str) -> str:
    extension = text.removeprefix(".")
    if not (extension.isascii() and extension.isalnum() and len(extension) <= 16):
        raise typer.BadParameter(f"{text!r} is not a file extension: write py or txt, for example")
    return extension


def layer_list(text: str) -> tuple[int, ...]:
    """Read layers that are separated by commas."""
    parts = text.split(",")
    if not all(part.isdecimal() and part.isascii() for part in parts):
        raise typer.BadParameter(f"{text!r} is not a list of layers: write 0,1,8, for example")
    return tuple(map(int, parts))


# ---------------------------------------------------------------- options from the fields of sampling configs

Command = TypeVar("Command", bound=Callable[..., Any])

_FLAGS = {"num_registers": "--registers"}  # shorter than the field's name
_OLD_FLAGS = {"pag_scale": "--coherence"}  # still accepted, hidden in the help
_OLD = "old_"  # the parameter of an old flag is named after the field with this prefix


def with_knobs_of(*configs: type) -> Callable[[Command], Command]:
    """Replace the parameter `knobs` of a command by one option for each field of the configs that has a help text.

    The command gets the values that the user gave, by field name: `{"temperature": 0.5, "prior_steps": 16}`.
    """
    options = [option for kind in configs for option in _knob_options(kind)]
    names = [option.name for option in options]

    def decorate(command: Command) -> Command:
        parameters = []
        for parameter in inspect.signature(command).parameters.values():
            parameters += options if parameter.name == "knobs" else [parameter]
        signature = inspect.Signature(parameters)

        @wraps(command)
        def with_options(*args: Any, **kwargs: Any) -> Any:
            values = signature.bind(*args, **kwargs).arguments
            given = {name: value for name in names if (value := values.pop(name, None)) is not None}
            return command(**values, knobs={name.removeprefix(_OLD): value for name, value in given.items()})

        with_options.__signature__ = signature  # type: ignore[attr-defined]
        with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return with_options  # type: ignore[return-value]

    return decorate


def _knob_options(kind: type) -> list[inspect.Parameter]:
    types, panel = get_type_hints(kind, include_extras=True), KNOB_PANELS[kind.__name__]
    result = []
    for field in dataclasses.fields(kind):
        if help := field.metadata.get("help"):
            value_type = _without_none(types[field.name])
            flag = flag_of(field.name)
            if old_flag := _OLD_FLAGS.get(field.name):
                result.append(_optional(f"{_OLD}{field.name}", value_type, old_flag, hidden=True))
            result.append(_optional(field.name, value_type, flag, help=help, rich_help_panel=panel))
    return result


def flag_of(field_name: str) -> str:
    """Return the option of a field of a sampling config."""
    return _FLAGS.get(field_name, f"--{field_name.replace('_', '-')}")


def _optional(name: str, value_type: Any, flag: str, **about: Any) -> inspect.Parameter:
    """Return a parameter for typer. Its default None stands for the default of the model."""
    plain = get_args(value_type)[0] if get_origin(value_type) is Annotated else value_type
    if plain is bool:
        option = typer.Option(f"{flag}/--no-{flag[2:]}", **about)
    else:
        metavar = {int: "INT", float: "FLOAT"}.get(plain, "NAME")
        option = typer.Option(flag, parser=checked(value_type), metavar=metavar, **about)
    hint: Any = plain if plain in (bool, int, float) else str
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[hint | None, option]
    )


def _without_none(hint: Any) -> Any:
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    return kinds[0] if type(None) in get_args(hint) else hint


# ---------------------------------------------------------------- names

# Names that are also known in modules that import torch; tests/test_cli.py checks that they are equal.
Stage = Literal["base", "guided", "registers", "prior", "conditional", "distilled", "prompted", "head"]
Preset = Literal["tiny", "laptop", "small", "builtin", "medium", "paper", "paper-plus", "paper-one-gpu"]
Ablation = Literal[
    "without register noise", "register noise from halfway", "without nested dropout", "without all-mask samples",
    "without block offsets", "literal two-axis RoPE", "as printed",
]  # fmt: skip
LayerChoice = Literal["greedy", "spaced"]
Protocol = Literal["full", "quick", "defaults", "tiny"]
Split = Literal["valid", "test"]
Network = Literal[
    "demasker", "encoder", "prior", "conditional", "weak_prior", "condition_encoder", "prompted", "prompt_encoder",
    "length_head", "prompted_demasker", "base", "causal_head",
]  # fmt: skip
Judge = Literal["qwen2.5-coder-0.5b", "smollm2-135m", "minilm-l6-v2", "qwen2.5-coder-1.5b"]
DEFAULT_JUDGE: Judge = "qwen2.5-coder-0.5b"
Experiment = Literal[
    "all",
    "model", "reference", "anchor", "likelihood", "demasker", "autoencoder", "sweep", "generation",
    "memorisation", "seconds", "batch-seconds", "cpu-seconds", "noise", "interpolation", "psnr", "prdc",
    "register-count", "refresh", "variants", "variant-autoencoders", "completions", "two-sentences",
]  # fmt: skip

# ---------------------------------------------------------------- options of several commands

Model = Annotated[str, typer.Option(help="A model folder, a name on the hub (owner/name), or builtin.")]
Device = Annotated[
    str | None,
    typer.Option(parser=device_name, metavar="DEVICE", help="cpu, cuda or cuda:N. Default: cuda if available."),
]
_METHODS = (
    "base: without registers. conthendisc: draw registers from the prior. conwithindisc: draw them again after "
    "half of the calls."
)
AnyMethod = Annotated[
    Method | None,
    typer.Option(
        "--method",
        case_sensitive=False,
        help=f"{_METHODS} Default: that of the model.",
        rich_help_panel=TEXT,
    ),
]
MethodOrBase = Annotated[
    Method | None,
    typer.Option(
        "--method",
        case_sensitive=False,
        help=f"{_METHODS} Default: that of the model, or base for a checkpoint such as LLaDA.",
        rich_help_panel=TEXT,
    ),
]
Count = Annotated[int, number(config.Count, "Number of texts.", panel=TEXT)]
_BUILTIN_LENGTHS = "The built-in model was trained on 256 and 512."
Length = Annotated[
    int | None,
    number(
        config.Length,
        f"Tokens of the whole canvas. Default: that of the model. {_BUILTIN_LENGTHS}",
        panel=TEXT,
    ),
]
CanvasOrAnswer = Annotated[
    int | None,
    number(
        config.Length,
        "Number of tokens: of the whole canvas or, for LLaDA, of the answer. Default: that of the model. "
        f"{_BUILTIN_LENGTHS}",
        "--length",
        panel=TEXT,
    ),
]
Seed = Annotated[int, number(config.Seed, "Random seed. The same seed gives the same texts.", panel=TEXT)]
Prefix = Annotated[
    str,
    typer.Option(parser=utf8, metavar="TEXT", help="Text that every sample begins with.", rich_help_panel=TEXT),
]
Suffix = Annotated[
    str, typer.Option(parser=utf8, metavar="TEXT", help="Text that every sample ends with.", rich_help_panel=TEXT)
]
PromptText = Annotated[
    str | None,
    typer.Option(
        "--prompt", parser=utf8, metavar="TEXT", help="Prompt to answer. The answer does not repeat it.",
        rich_help_panel=TEXT,
    ),
]  # fmt: skip
PromptFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="File with the prompt; - reads stdin.", rich_help_panel=TEXT),
]
Chat = Annotated[
    bool,
    typer.Option("--chat", help="Put the prompt into the checkpoint's chat template.", rich_help_panel=TEXT),
]
FirstRegisters = Annotated[
    int | None, number(config.Width, "Use only the first registers of each text. Default: all.", "--registers")
]
InterpolationSteps = Annotated[int, number(config.Steps, "Number of texts, both ends included.")]
TextFormat = Annotated[
    Format,
    typer.Option("--format", help="jsonl: one row of JSON per text, with its cost.", rich_help_panel=OUTPUT),
]
OutDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Write one file per text to this new folder: 0000.txt, 0001.txt, ...",
        rich_help_panel=OUTPUT,
    ),
]
Extension = Annotated[
    str | None,
    typer.Option(
        parser=file_extension,
        metavar="NAME",
        help="Extension of the files in --out-dir. Default: txt.",
        rich_help_panel=OUTPUT,
    ),
]
BatchSize = Annotated[
    int | None,
    number(
        config.Count,
        "Texts per batch. Default: what fits into memory, at most 16 on a CPU.",
        panel=OUTPUT,
    ),
]
EarlyBatchSize = Annotated[
    int | None,
    number(
        config.Count,
        "Texts per batch. Small batches print the first texts earlier. Default: 4 on a CPU, what fits on a GPU.",
        "--batch-size",
        panel=OUTPUT,
    ),
]
Show = Annotated[
    bool,
    typer.Option("--show", help="Show the first text of each batch after every call.", rich_help_panel=OUTPUT),
]
Timings = Annotated[
    bool,
    typer.Option("--timings", help="Add seconds to the rows of --format jsonl.", rich_help_panel=OUTPUT),
]
Verbose = Annotated[
    bool,
    typer.Option("--verbose", help="Also print the cost: calls of each network, and NFE.", rich_help_panel=OUTPUT),
]
Texts = Annotated[list[Path], typer.Argument(metavar="FILE", help="Text files; - reads stdin.")]

# ---------------------------------------------------------------- options of train base

Causal = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        help="Stage base: start from this causal language model (Llama, Qwen2 or Qwen3), a folder or a hub name.",
        rich_help_panel=CAUSAL,
    ),
]
CausalLayers = Annotated[
    tuple | None,
    typer.Option(
        "--layers",
        parser=layer_list,
        metavar="N,N,...",
        help="Keep only these layers, counted from 0. Default: all.",
        rich_help_panel=CAUSAL,
    ),
]
KeepLayers = Annotated[int | None, number(config.Layers, "Number of layers to keep.", panel=CAUSAL)]
ChoiceOfLayers = Annotated[
    str,
    typer.Option(
        "--layer-choice",
        parser=checked(LayerChoice),
        metavar="greedy|spaced",
        help="For --keep-layers. greedy: remove one layer at a time, the least needed. spaced: evenly spaced.",
        rich_help_panel=CAUSAL,
    ),
]
Shift = Annotated[
    bool,
    typer.Option(
        "--shift",
        help="Each position predicts the next token, as in the causal model, instead of its own.",
        rich_help_panel=CAUSAL,
    ),
]
