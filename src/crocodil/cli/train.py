"""`crocodil train`."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated, get_args

import typer

from crocodil.checkpoints.hub import JSON_FILES, MODEL_FILES
from crocodil.cli import options
from crocodil.cli.dry_run import show_estimates
from crocodil.cli.root import TRAIN, app
from crocodil.cli.run_options import CausalOptions, folder_of, run_of, with_causal_start


def _above_zero(minutes: float | None) -> float | None:
    """Check a time limit; typer's own range check accepts nan."""
    if minutes is not None and not 0 < minutes < math.inf:
        raise typer.BadParameter(f"{minutes} is not a number above 0: leave the option out for no limit")
    return minutes


MaxMinutes = Annotated[
    float | None, typer.Option(callback=_above_zero, help="Save and stop after this many minutes.")
]


@app.command(rich_help_panel=TRAIN)
def train(
    stage: Annotated[
        str,
        typer.Argument(
            parser=options.checked(options.Stage),
            metavar="STAGE",
            help="base, guided, registers, prior, conditional, distilled, prompted or head; mostly in this order.",
        ),
    ],
    preset: Annotated[str, options.one_of(options.Preset, "Sizes and settings of the run.")] = "small",
    data: Annotated[Path | None, typer.Option(help="The folder of the corpus.")] = None,
    out: Annotated[Path | None, typer.Option(help="The folder of the run. Each stage has a subfolder.")] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Read earlier stages from this run instead of --out. Stage base continues the base of this run.",
        ),
    ] = None,
    max_minutes: MaxMinutes = None,
    minutes: Annotated[
        float | None,
        typer.Option(callback=_above_zero, help="Train for this many minutes instead of a number of steps."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the newest checkpoint.")] = False,
    ablation: Annotated[
        str | None,
        typer.Option(
            parser=options.checked(options.Ablation),
            metavar="NAME",
            help="Train an ablation (give it in every stage): " + ", ".join(get_args(options.Ablation)) + ".",
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="Change a field of the preset, e.g. guided_objective.register_cosine=1.0. Can be repeated.",
        ),
    ] = None,
    llada: Annotated[
        str | None, typer.Option(help="For the paper's presets: LLaDA-8B, a folder or a name on the hub.")
    ] = None,
    qwen: Annotated[
        str | None,
        typer.Option(help="For the paper's presets: Qwen3-Embedding-0.6B, a folder or a name on the hub."),
    ] = None,
    causal: options.Causal = None,
    layers: options.CausalLayers = None,
    keep_layers: options.KeepLayers = None,
    layer_choice: options.ChoiceOfLayers = "greedy",
    shift: options.Shift = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print parameters, steps, memory and hours of all stages.")
    ] = False,
    gpus: Annotated[int, typer.Option(min=1, max=100_000, help="With --dry-run: number of devices.")] = 1,
    rate: Annotated[
        float | None,
        typer.Option(
            metavar="TFLOPS",
            min=1e-6,
            max=1e6,
            help="With --dry-run: speed of one device in TFLOP/s. Default: a measured or assumed speed.",
        ),
    ] = None,
    pairs: Annotated[
        Path | None, typer.Option(help="Stage prompted: a folder of prompts and answers from `corpus pairs`.")
    ] = None,
    device: options.Device = None,
) -> None:
    """Train one stage of a model. For several devices, use torchrun -m crocodil.cli train ..."""
    folders = {"llada": folder_of(llada, JSON_FILES), "qwen": folder_of(qwen, JSON_FILES)}
    asked = CausalOptions(folder_of(causal, JSON_FILES), layers, keep_layers, layer_choice, shift)
    asked.check(stage, dry_run=dry_run)
    if not dry_run and (gpus > 1 or rate is not None):
        raise ValueError("--gpus and --rate are for --dry-run: to train on several devices, use torchrun")
    if dry_run:
        show_estimates(stage, preset, ablation, data, folders, asked, changes or (), gpus, rate)
        return
    if data is None or out is None:
        raise ValueError("--data (the corpus) and --out (the run) are required")
    if minutes is not None and (resume or max_minutes is not None):
        raise ValueError(
            "--minutes starts a stage and finishes it, without --max-minutes; to resume one, "
            "leave it out, and --set num_steps and decay_share as in stage.json"
        )
    from crocodil.corpus.shards import Corpus

    corpus = Corpus(data)
    corpus.require("train", "valid")
    for model in (llada, qwen, causal):  # the options and the corpus are right: fetch weights from the hub
        folder_of(model, MODEL_FILES)

    from crocodil.presets.changes import with_changes
    from crocodil.presets.runs import FROM_CAUSAL
    from crocodil.runtime.devices import checked_device
    from crocodil.runtime.distributed import process_group
    from crocodil.training.by_clock import run_stage_for
    from crocodil.training.run import run_stage
    from crocodil.training.workspace import Workspace

    device = checked_device(device)
    run = run_of(preset, ablation, corpus, folders)
    with process_group(device) as ranks:
        workspace = Workspace(corpus, out, source or out, ranks)
        run = with_causal_start(run, asked, stage, workspace, resume=resume)
        run = with_changes(run, changes or ())
        run = run if pairs is None else replace(run, pairs=pairs)
        if causal is not None and run.base_start is not None:
            raise ValueError("--causal and base_start are both given: a base begins as one of them")
        if preset in FROM_CAUSAL and stage == "base" and run.causal is None and run.base_start is None:
            raise ValueError(f"preset {preset} begins as a causal model: give the folder of one with --causal")
        try:
            if minutes is None:
                finished = run_stage(stage, run, workspace, resume=resume, max_minutes=max_minutes)
            else:
                typer.echo(
                    f"training for {minutes:g} minutes: the bar has no end until the learning rate begins to fall",
                    err=True,
                )
                finished = run_stage_for(stage, run, workspace, minutes=minutes)
        except KeyboardInterrupt:
            typer.echo(f"{out / stage}: interrupted; --resume goes on from the last checkpoint", err=True)
            raise
        if ranks.is_main:
            typer.echo(f"{out / stage}: " + ("finished" if finished else "stopped; continue with --resume"))
