"""`crocodil train --dry-run`: what each stage of a run needs."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from crocodil.cli.root import table
from crocodil.cli.run_options import CausalOptions, run_of

if TYPE_CHECKING:
    from crocodil.training.run_config import Run


def show_estimates(
    stage: str,
    preset: str,
    ablation: str | None,
    data: Path | None,
    folders: dict[str, Path | None],
    asked: CausalOptions,
    changes: Collection[str],
    num_devices: int,
    tflops: float | None,
) -> None:
    """Print what each stage of the run needs. Without a corpus, its size is assumed."""
    from crocodil.checkpoints.causal import read_causal_config
    from crocodil.corpus.shards import Corpus
    from crocodil.presets.assumed import assumed_corpus
    from crocodil.presets.changes import with_changes
    from crocodil.training.pruning import spaced_layers
    from crocodil.training.stage_setup import STAGES

    if stage not in STAGES:
        raise ValueError(f"no stage {stage!r}: the stages are {', '.join(STAGES)}")
    corpus, assumed = assumed_corpus(preset) if data is None else (Corpus(data), "")
    run = run_of(preset, ablation, corpus, folders)
    if asked.directory is not None:
        num_layers = read_causal_config(asked.directory).num_layers
        # Which layers are kept does not change their number.
        layers = asked.layers if asked.keep_layers is None else spaced_layers(num_layers, asked.keep_layers)
        run = asked.begin(run, layers)
    run = with_changes(run, changes)
    _print_table(run, preset, num_devices, tflops)
    if assumed:
        typer.echo(f"No --data is given, so this is assumed: {assumed}.")


def _print_table(run: "Run", preset: str, num_devices: int, tflops: float | None) -> None:
    from rich.console import Console

    from crocodil.presets.rates import Rate, hours, rate_of
    from crocodil.training.estimate import estimates

    given = None if tflops is None else Rate(tflops, f"estimated: {tflops:g} TFLOP/s (--rate)")
    heads = ("stage", "trained, M", "frozen, M", "steps", "batch", "positions, M", "GB per device", "hours")
    rows, stages_by_source = [], dict[str, list[str]]()
    for estimate in estimates(run, num_devices=num_devices):
        rate = given or rate_of(preset, estimate.stage)
        stages_by_source.setdefault(rate.source, []).append(estimate.stage)
        row = (
            estimate.stage,
            *(f"{count / 1e6:,.1f}" for count in (estimate.trained, estimate.frozen)),
            *(f"{count:,}" for count in (estimate.steps, estimate.batch)),
            f"{estimate.tokens / 1e6:,.1f}",
            f"{estimate.gigabytes:.1f}",
            _shown(hours(estimate.flops, rate, num_devices=num_devices)),
        )
        rows.append(row)
    Console(width=max(Console().width, 110)).print(table([("What the run needs",), heads, *rows]))
    typer.echo("GB per device: estimated. Hours: operations / the rate of a device, which is")
    for source, stages in stages_by_source.items():
        typer.echo(f"- {source} ({', '.join(stages)})")


def _shown(hours: float) -> str:
    return f"{hours:,.2f}" if hours >= 0.01 else "< 0.01"
