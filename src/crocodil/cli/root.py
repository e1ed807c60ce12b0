"""What all verbs share: the application, tables, and one clear line instead of a traceback."""

import os
import sys
import warnings
from enum import StrEnum
from typing import Annotated, NoReturn

import typer

import crocodil

app = typer.Typer(
    help="Masked diffusion for language, guided by continuous registers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


class Format(StrEnum):
    """Of texts on stdout."""

    TEXT = "text"
    JSONL = "jsonl"


def _version(asked: bool) -> bool:
    if asked:
        typer.echo(f"crocodil {crocodil.__version__}")
        raise typer.Exit
    return asked


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Masked diffusion for language, guided by continuous registers."""


def table(rows: "list[tuple[str, ...]]") -> object:
    """First row title, second row heads; numbers to the right. Cells are printed as they are, markup and all."""
    from rich.table import Table
    from rich.text import Text

    (title,), heads, *body = rows
    made = Table(title=Text(title, style="table.title"), title_justify="left")
    for number, head in enumerate(heads):
        is_number = body and number and body[0][number][:1].isdigit()
        made.add_column(Text(head), justify="right" if is_number else "left")
    for row in body:
        made.add_row(*map(Text, row))
    return made


# New versions of typer carry a click of their own, so that the class of all usage errors is found by its name.
_CLICK_ERRORS = [base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"]
_UsageError: type[Exception] = _CLICK_ERRORS[0]


def main() -> None:
    """Run a verb; a user's mistake, a damaged file or a lack of room is one clear line instead of a traceback."""
    warnings.formatwarning = lambda message, *_: f"crocodil: {message}\n"  # one line, without a place in our code
    try:
        status = app(standalone_mode=False)
    except _UsageError as error:
        _fail(error.format_message(), 2)  # type: ignore[attr-defined]
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (ValueError, OSError, ArithmeticError) as error:
        _fail(str(error), 1)
    except (MemoryError, RuntimeError) as error:
        if not (isinstance(error, MemoryError) or "memory" in str(error)):
            raise
        _fail("there is not enough memory: take a smaller batch, a shorter length or another device", 1)
    except (KeyboardInterrupt, typer.Abort):
        _fail("stopped", 130)
    sys.exit(status)


def _fail(message: str, status: int) -> NoReturn:
    if message:  # none where the help was printed
        line = " ".join(message.replace("Value error, ", "").split("\n"))
        line = line.encode("utf-8", "backslashreplace").decode()
        typer.echo(f"crocodil: {line}", err=True)
    sys.exit(status)
