"""`crocodil train`, and `crocodil assemble`, which makes a model of a finished run."""

import math
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import typer

from crocodil.cli import options
from crocodil.cli.root import app, table
from crocodil.runtime import config


def _above_zero(minutes: float | None) -> float | None:
    """A range would let nan pass."""
    if minutes is not None and not 0 < minutes < math.inf:
        raise typer.BadParameter(f"{minutes} is no number above 0: leave it out for no limit")
    return minutes


@app.command()
def train(
    stage: Annotated[
        str,
        typer.Argument(
            parser=options.checked(options.StageOrShow),
            metavar="STAGE",
            help="base, guided, registers, prior, conditional; or: show",
        ),
    ],
    directory: Annotated[Path | None, typer.Argument(help="With show: the directory of a run.")] = None,
    preset: Annotated[str, options.one_of(options.Preset, "The run as a value.")] = "small",
    data: Annotated[Path | None, typer.Option(help="The corpus.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run: each stage has its folder in it.")] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="Another run, whose earlier stages are built upon.")
    ] = None,
    max_minutes: Annotated[
        float | None, typer.Option(callback=_above_zero, help="Save and stop after this long.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint.")] = False,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="A field of the run: guided_objective.register_cosine=1.0")
    ] = None,
    llada: Annotated[Path | None, typer.Option(help="For the paper's presets: the folder of LLaDA-8B.")] = None,
    qwen: Annotated[Path | None, typer.Option(help="And of Qwen3-Embedding-0.6B.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what the run will take, and stop.")] = False,
    gpus: Annotated[
        int, typer.Option(min=1, max=100_000, help="With --dry-run: how many devices share the run.")
    ] = 1,
    device: options.Device = None,
) -> None:
    """Train one stage of a run, or show how a run went. On several devices: torchrun -m crocodil.cli train ..."""
    if stage == "show":
        if directory is None:
            raise ValueError("crocodil train show needs the directory of a run")
        return _show_run(directory)
    if directory is not None:
        raise ValueError(f"{directory}: only `train show` takes a directory; a stage has --data and --out")
    if dry_run:
        return _show_estimates(stage, preset, data, llada, qwen, changes or (), gpus)
    if data is None or out is None:
        raise ValueError("--data (a corpus) and --out (the run) are needed")
    from crocodil.corpus.shards import Corpus

    found = Corpus(data)
    found.require("train", "valid")

    from crocodil.presets.runs import preset as preset_of
    from crocodil.presets.runs import with_changes
    from crocodil.runtime.devices import checked_device, default_device
    from crocodil.runtime.distributed import process_group
    from crocodil.training.run import run_stage
    from crocodil.training.run_config import Pretrained
    from crocodil.training.stage_setup import Workspace

    where = checked_device(device or default_device())
    run = with_changes(preset_of(preset, found, Pretrained(llada=llada, qwen=qwen)), changes or ())
    with process_group(where) as ranks:
        workspace = Workspace(found, out, source or out, ranks)
        finished = run_stage(stage, run, workspace, resume=resume, max_minutes=max_minutes)
        if ranks.is_main:
            typer.echo(f"{out / stage}: " + ("finished" if finished else "stopped; go on with --resume"))
    return None


def _show_estimates(
    stage: str,
    preset: str,
    data: Path | None,
    llada: Path | None,
    qwen: Path | None,
    changes: Collection[str],
    num_devices: int,
) -> None:
    """Of all stages; without a corpus one is assumed."""
    from rich.console import Console

    from crocodil.corpus.shards import Corpus
    from crocodil.presets.runs import assumed_corpus, with_changes
    from crocodil.presets.runs import preset as preset_of
    from crocodil.training.estimate import estimates
    from crocodil.training.run import STAGES
    from crocodil.training.run_config import Pretrained

    if stage not in STAGES:
        raise ValueError(f"no stage {stage!r}: the stages are {', '.join(STAGES)}")
    found, assumed = assumed_corpus(preset) if data is None else (Corpus(data), "")
    run = with_changes(preset_of(preset, found, Pretrained(llada=llada, qwen=qwen)), changes)
    heads = ("stage", "trained, M", "frozen, M", "steps", "batch", "positions, M", "GB a device")
    rows = [
        (
            one.stage,
            *(f"{count / 1e6:,.1f}" for count in (one.trained, one.frozen)),
            *(f"{count:,}" for count in (one.steps, one.batch)),
            f"{one.tokens / 1e6:,.1f}",
            f"{one.gigabytes:.1f}",
        )
        for one in estimates(run, num_devices=num_devices)
    ]
    Console(width=max(Console().width, 100)).print(table([("What the run will take",), heads, *rows]))
    if assumed:
        typer.echo(f"Assumed, as no --data is given: {assumed}.")


def _show_run(directory: Path) -> None:
    from rich.console import Console

    from crocodil.training.journal import curves, last_values

    console = Console()
    for stage, rows in last_values(directory).items():
        console.print(table([(stage,), ("metric", "value"), *rows]))
    for title, plot in curves(directory).items():
        console.print(f"\n{title}", markup=False, highlight=False)
        console.print(plot, markup=False, highlight=False)


@app.command()
def assemble(
    directory: Annotated[Path, typer.Argument(help="The run, with stage guided finished at least.")],
    data: Annotated[Path, typer.Option(help="The corpus it was trained on.")],
    out: Annotated[Path, typer.Option(help="A new folder for the model.")],
    without: Annotated[
        list[str] | None, options.one_of(options.Network, "A network to leave out: base, say.")
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Round matrices to int8: a quarter of the size.")] = False,
    prior_steps: Annotated[int | None, options.number(config.Steps, "Of a draw from the prior.")] = None,
    refresh_steps: Annotated[int | None, options.number(config.Steps, "Of a draw half way.")] = None,
    eta: Annotated[float | None, options.number(config.Share, "Of both: 0 is DDIM, 1 all noise anew.")] = None,
    pag_scale: options.PagScale = None,
    registers: options.Guiding = None,
    rule: options.Rule = None,
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
) -> None:
    """Make a model folder of the finished stages of a run; settings that are not given are the paper's."""
    from crocodil.corpus.shards import TOKENIZER_FILE, Corpus

    corpus = Corpus(data)
    if not directory.is_dir():
        raise ValueError(f"{directory} holds no run: it is no folder")
    if out.exists():
        raise ValueError(f"{out} exists: models are never overwritten, choose another directory")
    from crocodil.pipeline import Crocodil, Settings
    from crocodil.sampling.configs import Decoding, Drawing, with_knobs
    from crocodil.training.run_config import read_run_summary

    run = read_run_summary(directory)
    found = _finished_networks(directory, without or ())
    if "demasker" not in found:
        raise ValueError(f"{directory} has no finished stage guided: there is nothing to make a model of")
    asked: dict[str, Any] = {
        "prior_steps": prior_steps,
        "refresh_steps": refresh_steps,
        "eta": eta,
        "pag_scale": pag_scale,
        "num_registers": registers,
        "rule": rule,
        "temperature": temperature,
        "top_p": top_p,
    }
    objective = run.prior_objective
    decoding, drawing = with_knobs(
        Decoding(temperature=1.0),
        Drawing(largest_offset=objective.largest_offset, time_shift=objective.time_shift),
        {name: value for name, value in asked.items() if value is not None},
    )
    settings = Settings(length=run.lengths[0], lengths=run.lengths, decoding=decoding, drawing=drawing)
    qwen = run.pretrained.qwen
    model = Crocodil.assemble(
        found,
        tokenizer=corpus.directory / TOKENIZER_FILE,
        encoder_tokenizer=None if qwen is None else qwen / TOKENIZER_FILE,
        settings=settings,
        device="cpu",
    )
    model.save_pretrained(out, int8=int8)
    typer.echo(f"{out}: {', '.join(found)}")


def _finished_networks(directory: Path, without: Collection[str]) -> dict[str, Path]:
    found = {name: directory / path for name, path in _NETWORKS.items() if name not in without}
    return {name: path for name, path in found.items() if path.exists()}


# Where a run keeps the networks of a model.
_NETWORKS = {
    "demasker": "guided/model/demasker",
    "encoder": "guided/model/encoder",
    "prior": "prior/model/denoiser",
    "conditional": "conditional/model/denoiser",
    "condition_encoder": "conditional/model/condition_encoder",
    "base": "base/model/demasker",
}
