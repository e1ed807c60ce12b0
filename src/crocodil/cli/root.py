"""What all verbs share: the application, tables, and one clear line instead of a traceback."""

import sys
from enum import StrEnum

import typer

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


def main() -> None:
    """One clear line instead of a traceback for what a user can set right."""
    try:
        app()
    except (ValueError, OSError) as error:
        typer.echo(f"crocodil: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        typer.echo("crocodil: stopped", err=True)
        sys.exit(130)
