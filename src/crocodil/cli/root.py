"""What all commands share: the application, its help panels, tables, and one-line errors instead of tracebacks."""

import os
import re
import sys
import warnings
from enum import StrEnum
from importlib.util import find_spec
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

import crocodil

# The panels of `crocodil --help`.
USE, TRAIN, MEASURE = "Use a model", "Train a model", "Measure and reproduce"

# Commands that were renamed still work under their old names, which the help does not show.
_OLD_NAMES = {
    ("assemble",): ["export"],
    ("train", "show"): ["runs", "show"],
    ("reproduce", "report"): ["report"],
}


class _Commands(TyperGroup):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for old, new in _OLD_NAMES.items():
            if tuple(args[: len(old)]) == old:
                args = [*new, *args[len(old) :]]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="markdown",  # joins the lines of a paragraph
)


class Format(StrEnum):
    """The format of texts on stdout."""

    TEXT = "text"
    JSONL = "jsonl"


def _print_version(asked: bool) -> bool:
    if asked:
        typer.echo(f"crocodil {crocodil.__version__}")
        raise typer.Exit
    return asked


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """CRoCoDiL: a masked diffusion language model that is guided by registers.

    Registers are a few continuous vectors that describe a whole text. Start with `crocodil generate`, which uses a
    small built-in model of Python code.
    """


def check_installed(extra: str, *packages: str) -> None:
    """Check for the packages of an extra now, not after minutes of work."""
    if missing := [name for name in packages if find_spec(name) is None]:
        raise ValueError(
            f"{' and '.join(missing)} not installed: pip install 'crocodil[{extra}]' ('.[{extra}]' in a clone)"
        )


def table(rows: "list[tuple[str, ...]]") -> object:
    """Return a table: the first row is its title, the second its heads. Markup in cells is not interpreted."""
    from rich.table import Table
    from rich.text import Text

    (title,), heads, *body = rows
    result = Table(title=Text(title, style="table.title"), title_justify="left")
    for column, head in enumerate(heads):
        is_number = body and column and body[0][column][:1].isdigit()
        result.add_column(Text(head), justify="right" if is_number else "left")
    for row in body:
        result.add_row(*map(Text, row))
    return result


# New versions of typer contain their own copy of click, so the class of all usage errors is found by its name.
_CLICK_ERRORS = [base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"]
_UsageError: type[Exception] = _CLICK_ERRORS[0]


# As PyTorch says it; "an illegal memory access" is a fault of ours.
_OUT_OF_MEMORY = re.compile("out of memory|can't allocate memory|not enough memory")


INTERRUPTED = 130  # the exit status after Ctrl-C


def main() -> None:
    """Run a command. A wrong option, a damaged file or too little memory is a one-line error, not a traceback."""
    warnings.formatwarning = lambda message, *_: f"crocodil: {message}\n"  # one line, without our file and line
    try:
        status = app(standalone_mode=False)
    except _UsageError as error:
        _fail(error.format_message(), 2)  # type: ignore[attr-defined]
    except BrokenPipeError:  # the reader of our output closed it, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        _fail(_about_file(error), 1)
    except (ValueError, ArithmeticError) as error:
        _fail(str(error), 1)
    except (MemoryError, RuntimeError) as error:
        if not (isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(str(error))):
            raise
        _fail("out of memory: use a smaller batch, a shorter length or another device", 1)
    except (KeyboardInterrupt, typer.Abort):
        _fail("stopped", INTERRUPTED)
    if status == INTERRUPTED:  # typer catches Ctrl-C itself
        _fail("stopped", INTERRUPTED)
    sys.exit(status)


def _about_file(error: OSError) -> str:
    """Return what failed with which file, without Python's number of the error: `out/x: Not a directory`."""
    if error.strerror is None:  # not from the system
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"


def _fail(message: str, status: int) -> NoReturn:
    if message:  # empty when the help was printed
        line = " ".join(message.replace("Value error, ", "").split("\n"))
        line = line.encode("utf-8", "backslashreplace").decode()
        typer.echo(f"crocodil: {line}", err=True)
    sys.exit(status)
