"""Mutated arguments of every command. Options are read from the application, so new ones are covered at once."""

import dataclasses
import os
import re
import shutil
import stat
import types
import typing
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from random import Random
from typing import Any

from .calling import SMALL, WRONG, Fault, call, check, shown_command
from .world import World

# Correct but slow values: the built-in model, downloads, full protocols, compilation.
TOO_SLOW = {
    "builtin", "python-wheels", "starcoder-python", "small", "paper", "paper-one-gpu", "full", "quick", "all",
}  # fmt: skip
SLOW_FLAGS = {"compiled"}
# Options that set the amount of work. A large number is valid, and takes long.
WORK = {"count", "samples", "steps", "prior_steps", "refresh_steps", "processes", "vocab_size"}

WHOLE = ["0", "1", "2", "3", "-1", "-2147483649", "9223372036854775808", "1" + 30 * "0", "4" * 5000]
LARGE = ["7", "64", "1000", "100000", "2147483648", "9223372036854775807", "1_000"]
REAL = ["nan", "inf", "-inf", "1e308", "-1e308", "1e400", "1e-45", "0", "-0.0", "-1", "0.5", "1", "2", "1,5"]
TEXT = [
    "", " ", "x", "nosuch", "x" * 10_000, "\udcff\udcfe", "[red]x", "a\nb", "\x1b[31m", "\u0433\u0435\u043d", "..",
    "null", "{}", "-", "--", "\U0001f40a", "%s{0}", "def f(x):\n", "'\"", "a=b", "=", "cuda", "mps", "cuda:99",
    "cpu:7", "meta",
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Parameter:
    """An option or an argument of a command."""

    name: str
    flag: str | None  # None: an argument
    kind: Any
    many: bool
    words: tuple[str, ...]  # of its help text, which lists the choices

    @property
    def is_switch(self) -> bool:
        return self.kind is bool


def verbs() -> dict[str, list[Parameter]]:
    """Return all commands of the application with their parameters."""
    from crocodil.cli import app

    return dict(_verbs(app, ""))


def _verbs(app: Any, before: str) -> typing.Iterator[tuple[str, list[Parameter]]]:
    for command in app.registered_commands:
        name = command.name or command.callback.__name__.replace("_", "-")
        yield f"{before}{name}", _parameters(command.callback)
    for group in app.registered_groups:
        yield from _verbs(group.typer_instance, f"{before}{group.name} ")


def _parameters(function: Callable) -> list[Parameter]:
    found = []
    for name, hint in typing.get_type_hints(function, include_extras=True).items():
        if name == "return":
            continue
        kind, info = hint, None
        if typing.get_origin(hint) is typing.Annotated:
            kind, info = typing.get_args(hint)[:2]
        kind = _without_none(kind)
        many = typing.get_origin(kind) is list
        if many:
            (kind,) = typing.get_args(kind)
        is_option = type(info).__name__ == "OptionInfo"
        names = (getattr(info, "default", None), *(getattr(info, "param_decls", None) or ()))
        declared = [one for one in names if isinstance(one, str) and one.startswith("--")]
        flag = (declared[0] if declared else f"--{name.replace('_', '-')}") if is_option else None
        words = tuple(re.findall(r"[\w-]+", getattr(info, "help", None) or ""))
        found.append(Parameter(name, flag, kind, many, words))
    return found


def _without_none(kind: Any) -> Any:
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        (kind,) = [one for one in typing.get_args(kind) if one is not type(None)]
    return kind


# ---------------------------------------------------------------- correct calls


def right_calls(world: World, sandbox: Path) -> dict[str, dict[str, Any]]:
    """Return a quick call of every command, by parameter; all succeed, except those that need the network."""
    out = sandbox / "out"
    on_model = {"model": world.model, "device": "cpu", "calls": 1}
    training = {
        "stage": "base", "preset": "tiny", "data": world.corpus, "out": out, "device": "cpu",
        "changes": [*SMALL, "base_loop.num_steps=1"],
    }  # fmt: skip
    judged = {"data": world.corpus, "judge": world.judge, "device": "cpu"}
    return {
        "generate": on_model,
        "autoencode": {"files": [world.text(0)], **on_model},
        "encode": {
            "files": [world.text(0)], "out": sandbox / "new.safetensors", "model": world.model, "device": "cpu",
        },
        "decode": {"file": world.registers, **on_model},
        "interpolate": {"first": world.text(0), "second": world.text(1), "steps": 2, **on_model},
        "complete": {"file": world.text(0), "at": "1", "count": 1, **on_model},
        "play": {"export": out, "model": world.model, "device": "cpu"},
        "verify": {"directory": world.model, "model": world.model},
        "push": {"model": world.model, "repository": "owner/name"},
        "train": training,
        "trim": {"model": world.causal, "data": world.files, "out": out, "size": 260},
        "runs show": {"directory": world.run},
        "runs list": {"directory": world.run.parent},
        "export": {"directory": world.run, "data": world.corpus, "out": out},
        "reproduce": {"experiments": ["model"], "preset": "tiny", "model": [world.model], "out": out, **judged},
        "report": {"out": out},
        "evaluate": {"samples": world.texts, "model": world.model, "length": 64, **judged},
        "corpus pairs": {"source": world.corpus, "out": out, "processes": 1},
        "corpus build": {
            "preset": "python-files", "source": world.files, "out": out, "vocab_size": 300, "processes": 1,
        },
        "corpus show": {"directory": world.corpus, "samples": 1},
        "corpus card": {"directory": world.corpus, "out": sandbox / "card.md"},
        "corpus lock": {"names": sandbox / "names", "out": sandbox / "manifest.txt"},
        "corpus verify": {"directory": world.corpus},
        "corpus pack": {"directory": world.corpus, "out": out, "piece_megabytes": 0.01},
        "corpus unpack": {"pieces": world.pieces, "out": out},
        "judges install": {"names": ["smollm2-135m"], "out": out},
        "judges list": {},
        "judges check": {"name": world.judge, "count": 1, "device": "cpu"},
    }  # fmt: skip


# How often each command is called; those that ask the registry start pip, which takes seconds.
RARE = {
    "judges install": 0.02,
    "corpus lock": 0.02,
    "reproduce": 0.3,
    "evaluate": 0.3,
    "corpus build": 0.3,
    "train": 0.7,
    "play": 0.3,
}


# ---------------------------------------------------------------- mutations


def trial(world: World, random: Random, sandbox: Path) -> None:
    """Run a correct call with one to three mutated arguments."""
    known = verbs()
    verb = random.choices(list(known), [RARE.get(one, 1.0) for one in known])[0]
    parameters = known[verb]
    (sandbox / "names").write_text("no-such-package-xyz\n")
    values = dict(right_calls(world, sandbox)[verb])
    values = {one.name: values[one.name] for one in parameters if one.name in values}
    not_a_number = False
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        if not parameters:
            break
        parameter = random.choice(parameters)
        values[parameter.name] = mutated = _mutated(parameter, values.get(parameter.name), world, random, sandbox)
        not_a_number |= parameter.kind is float and mutated == "nan"
    arguments = [*verb.split(), *_spelled(parameters, values, random)]
    special = _special_files(sandbox)
    outcome = check(call(*arguments))
    if outcome.code == 0 and not_a_number and "nan" in arguments:
        raise Fault(WRONG, f"{shown_command(outcome.arguments)} takes a number that is none")
    if (left := _special_files(sandbox)) != special:
        raise Fault(
            "lost file", f"{shown_command(outcome.arguments)} replaced {set(special.items()) - set(left.items())}"
        )


def _special_files(sandbox: Path) -> dict[str, int]:
    """Return the pipes, devices and links of the sandbox, which no command may overwrite."""
    with os.scandir(sandbox) as entries:
        modes = {entry.name: entry.stat(follow_symlinks=False).st_mode for entry in entries}
    return {
        name: stat.S_IFMT(mode)
        for name, mode in modes.items()
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)
    }


def _spelled(parameters: list[Parameter], values: dict[str, Any], random: Random) -> list[str]:
    """Return the words of a command line, sometimes with a word that does not belong there."""
    positional, options = [], []
    for parameter in parameters:
        value = values.get(parameter.name)
        if value is None or value is False:
            continue
        for one in value if isinstance(value, list) else [value]:
            if parameter.flag is None:
                positional.append(str(one))
            elif parameter.is_switch:
                options.append([parameter.flag])
            else:
                options.append([parameter.flag, str(one)])
    random.shuffle(options)
    words = [*positional, *(word for option in options for word in option)]
    match random.choices(("", "unknown option", "no value", "one more", "twice"), [90, 2, 2, 3, 3])[0]:
        case "unknown option":
            words += [random.choice(["--nosuch", "--nosuch=1", "-z", "--", "--h"])]
        case "no value" if words:
            words = words[:-1]
        case "one more":
            words += [random.choice(TEXT)]
        case "twice" if options:
            words += random.choice(options)
    return words


def _mutated(parameter: Parameter, old: Any, world: World, random: Random, sandbox: Path) -> Any:
    if parameter.is_switch:
        return parameter.name not in SLOW_FLAGS
    if random.random() < 0.05 and old is not None and parameter.name != "export":
        return None  # leave it out, if it was given: a default may take long; without --export, play does not end
    draw: Callable[[], Any] = lambda: _value(parameter, world, random, sandbox)  # noqa: E731
    if parameter.name == "changes":
        kept = old or []
        return [*kept, *(_change(world, random) for _ in range(random.choice([1, 1, 2])))]
    if parameter.many:
        return [draw() for _ in range(random.choice([1, 1, 2, 3]))]
    return draw()


def _value(parameter: Parameter, world: World, random: Random, sandbox: Path) -> str:
    kind = parameter.kind
    if kind is int:
        pool = [*WHOLE, *REAL, *TEXT, *(() if parameter.name in WORK else LARGE), *WHOLE, *WHOLE]
        if parameter.name == "processes":
            pool = [one for one in pool if one not in ("2", "3")]
    elif kind is float:
        pool = [*REAL, *WHOLE, *REAL, *TEXT, *REAL]
    elif kind is Path or parameter.name in ("model", "judge", "embedder", "ablation_model"):
        return _path(world, random, sandbox)
    elif isinstance(kind, type) and issubclass(kind, Enum):
        pool = [*(one.value for one in kind), *TEXT]
    else:
        pool = [*TEXT, *(word for word in parameter.words if word not in TOO_SLOW)] + [
            word for word in parameter.words if word not in TOO_SLOW
        ]
    return random.choice(pool)


# ---------------------------------------------------------------- fields of a run


def fields_of(value: Any, before: str = "") -> list[str]:
    """Return the dotted names of all fields of a config."""
    found = []
    for field in dataclasses.fields(value):
        name, inner = f"{before}{field.name}", getattr(value, field.name)
        found.append(name)
        if dataclasses.is_dataclass(inner):
            found += fields_of(inner, f"{name}.")
    return found


def _change(world: World, random: Random) -> str:
    """Return a `--set NAME=VALUE` with a field that exists, or almost exists."""
    from crocodil.corpus.shards import Corpus
    from crocodil.presets.runs import tiny

    names = [
        one
        for one in fields_of(tiny(Corpus(world.corpus)))
        if not one.endswith(("compile_blocks", "llada", "qwen"))
    ]
    name = random.choice([*names, *names, *names, "nosuch", "base_loop.nosuch", "base_loop", "", ".", "a.b.c"])
    if name.startswith("base_loop") and random.random() < 0.5:
        name = random.choice([one for one in names if one.startswith("base_loop")])
    values = [
        "0", "1", "2", "3", "-1", "1.5", "nan", "NaN", "Infinity", "-Infinity", "1e400", "true", "null", '""', "x",
        "[]", "[1]", "[0.9]", "[0.9,0.95]", "[2,2]", "[null]", "[-1]", "[100000]", "{}", '{"x":1}', "1" + 30 * "0",
        "9223372036854775808", "-9223372036854775809", '"4"', "1e-45", "1e308", "", "[" * 100_000,
    ]  # fmt: skip
    if not name.endswith(("num_steps", "batch_size", "num_layers")):
        values += ["1000", "1000000"]
    return f"{name}={random.choice(values)}"


# ---------------------------------------------------------------- paths


def _path(world: World, random: Random, sandbox: Path) -> str:
    """Make a path of some kind in the sandbox."""
    name = random.choice(list(PLACES))
    return PLACES[name](world, sandbox)


def _written(name: str, data: bytes) -> Callable[[World, Path], str]:
    def make(world: World, sandbox: Path) -> str:
        file = sandbox / name
        file.write_bytes(data)
        return str(file)

    return make


def _made(name: str, make: Callable[[Path], object]) -> Callable[[World, Path], str]:
    def made(world: World, sandbox: Path) -> str:
        if not os.path.lexists(sandbox / name):
            make(sandbox / name)
        return str(sandbox / name)

    return made


def _named(name: str) -> Callable[[World, Path], str]:
    return lambda world, sandbox: str(sandbox / name)


def _copied(part: str) -> Callable[[World, Path], str]:
    def copy(world: World, sandbox: Path) -> str:
        source, target = getattr(world, part), sandbox / f"{part} copy"
        if not target.exists():
            (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
        return str(target)

    return copy


def _device(file: Path) -> None:
    """Make a device like /dev/full in the sandbox, since as root a command could replace the real one."""
    try:
        os.mknod(file, 0o666 | stat.S_IFCHR, os.makedev(1, 7))
    except PermissionError:
        os.mkfifo(file)


PLACES: dict[str, Callable[[World, Path], str]] = {
    "nothing": _named("nothing"),
    "nothing in nothing": _named("no/such/folder"),
    "a long name": _named("x" * 300),
    "a long path": _named("x/" * 3000),
    "the folder": lambda world, sandbox: ".",
    "an empty word": lambda world, sandbox: "",
    "an option": lambda world, sandbox: "--log=x",
    "a folder": _made("folder", Path.mkdir),
    "a pipe": _made("pipe", os.mkfifo),
    "a pipe of Python": _made("pipe.py", os.mkfifo),
    "a device": _made("device", _device),
    "a link to nothing": _made("dangling", lambda path: path.symlink_to("nowhere")),
    "a link to itself": _made("loop", lambda path: path.symlink_to(path)),
    "empty": _written("empty.py", b""),
    "text": _written("text.py", b"def f(x):\n    return x\n"),
    "under a file": lambda world, sandbox: _written("text.py", b"x = 1\n")(world, sandbox) + "/x",
    "markup": _written("[red]x.py", b"x = 1\n"),
    "two lines": _written("a\nb.py", b"x = 1\n"),
    "no UTF-8 name": _written("\udcff.py", b"x = 1\n"),
    "no UTF-8": _written("latin.py", "caf\u00e9 = 1\n".encode("latin-1")),
    "binary": _written("binary.py", bytes(range(256))),
    "JSON": _written("x.json", b'{"x": [1, 2]}'),
    "a list": _written("list.jsonl", b"[1]\n"),
    "a pickle": _written("model.bin", b"\x80\x04K\x01."),
    "a model": _copied("model"),
    "a corpus": _copied("corpus"),
    "a run": _copied("run"),
    "registers": _copied("registers"),
    "rows": _copied("texts"),
}
