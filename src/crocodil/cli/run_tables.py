"""`crocodil runs`: how far training runs are, and their metrics."""

from pathlib import Path
from typing import Annotated

import typer

from crocodil.cli.root import TRAIN, app, table

runs = typer.Typer(help="Show training runs.", no_args_is_help=True)
app.add_typer(runs, name="runs", rich_help_panel=TRAIN)


@runs.command()
def show(directory: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of the run.")]) -> None:
    """Print the latest metrics and the loss curve of every stage of a run."""
    from rich.console import Console

    from crocodil.training.journal import curves, last_values

    console = Console()
    for stage, rows in last_values(directory).items():
        console.print(table([(stage,), ("metric", "value"), *rows]))
    for title, plot in curves(directory).items():
        console.print(f"\n{title}", markup=False, highlight=False)
        console.print(plot, markup=False, highlight=False)


@runs.command(name="list")
def list_runs(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of runs.")] = Path(),
) -> None:
    """List the runs in a folder and how far each stage is, stages beyond the paper only where one has begun."""
    from rich.console import Console

    from crocodil.training.run_config import RUN_FILE
    from crocodil.training.stage_setup import STAGES, STAGES_OF_PAPER

    folders = sorted(file.parent for file in directory.glob(f"*/{RUN_FILE}"))
    if not folders:
        raise ValueError(f"{directory} has no runs: none of its folders has a {RUN_FILE}")
    progress = {stage: [_progress_of(folder, stage) for folder in folders] for stage in STAGES}
    shown = [stage for stage in STAGES if stage in STAGES_OF_PAPER or {*progress[stage]} != {"-"}]
    rows = zip([folder.name for folder in folders], *(progress[stage] for stage in shown), strict=True)
    Console().print(table([(f"Runs in {directory}",), ("run", *shown), *rows]))


def _progress_of(run: Path, stage: str) -> str:
    from crocodil.training.journal import METRICS_FILE, read_rows
    from crocodil.training.run_config import read_run_file, summary_of

    if stage == "registers":
        lengths = summary_of(read_run_file(run), run).lengths  # run.json alone: a stage.json may be damaged
        caches = [f"{split}-{length}" for length in lengths for split in ("train", "valid")]
        is_finished = all((run / stage / cache).is_dir() for cache in caches)
    else:
        is_finished = (run / stage / "model").is_dir()
    if is_finished:
        return "finished"
    rows = read_rows(run / stage) if (run / stage / METRICS_FILE).is_file() else []
    return f"step {rows[-1]['step']:,}" if rows else "-"
