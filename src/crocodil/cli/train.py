"""`crocodil train`; `crocodil runs`, which shows runs; `crocodil export`, which makes a model from a run."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from crocodil.checkpoints.hub import JSON_FILES, MODEL_FILES, hub_name, local_folder
from crocodil.cli import options
from crocodil.cli.root import TRAIN, app, table
from crocodil.sampling.configs import Decoding, Drawing, with_knobs

if TYPE_CHECKING:
    from crocodil.corpus.shards import Corpus
    from crocodil.pipeline.card import Card
    from crocodil.training.run_config import Run
    from crocodil.training.stage_setup import Workspace

runs = typer.Typer(help="Show training runs.", no_args_is_help=True)
app.add_typer(runs, name="runs", rich_help_panel=TRAIN)


def _above_zero(minutes: float | None) -> float | None:
    """Check a time limit; typer's own range check accepts nan."""
    if minutes is not None and not 0 < minutes < math.inf:
        raise typer.BadParameter(f"{minutes} is not a number above 0: leave the option out for no limit")
    return minutes


@app.command(rich_help_panel=TRAIN)
def train(
    stage: Annotated[
        str,
        typer.Argument(
            parser=options.checked(options.Stage),
            metavar="STAGE",
            help="base, guided, registers, prior, conditional, distilled or prompted; usually in this order.",
        ),
    ],
    preset: Annotated[str, options.one_of(options.Preset, "Sizes and settings of the run.")] = "small",
    data: Annotated[Path | None, typer.Option(help="The folder of the corpus.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder of the run; each stage gets a folder in it.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="Take the earlier stages from this run instead of --out.")
    ] = None,
    max_minutes: Annotated[
        float | None, typer.Option(callback=_above_zero, help="Save and stop after this many minutes.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the newest checkpoint.")] = False,
    ablation: Annotated[
        str | None,
        typer.Option(
            parser=options.checked(options.Ablation),
            metavar="NAME",
            help="Train an ablation of the paper, in every stage: " + ", ".join(get_args(options.Ablation)) + ".",
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="Change a field of the preset, e.g. guided_objective.register_cosine=1.0; may be repeated.",
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
    freeze_embeddings: options.FreezeEmbeddings = False,
    align: options.Align = 0.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print parameters, steps, memory and hours of all stages, and exit.")
    ] = False,
    gpus: Annotated[
        int, typer.Option(min=1, max=100_000, help="With --dry-run: the number of devices that share the run.")
    ] = 1,
    rate: Annotated[
        float | None,
        typer.Option(
            metavar="TFLOPS",
            min=1e-6,
            max=1e6,
            help="With --dry-run: what one device reaches in TFLOP/s; default: measured or assumed, as it says.",
        ),
    ] = None,
    pairs: Annotated[
        Path | None, typer.Option(help="For stage prompted: a folder of prompts and answers (`corpus pairs`).")
    ] = None,
    device: options.Device = None,
) -> None:
    """Train one stage of a run. On several devices: torchrun -m crocodil.cli train ..."""
    folders = {"llada": _folder(llada, JSON_FILES), "qwen": _folder(qwen, JSON_FILES)}
    asked = _Causal(
        _folder(causal, JSON_FILES), layers, keep_layers, layer_choice, shift, freeze_embeddings, align
    )
    asked.check(stage, dry_run=dry_run)
    if dry_run:
        _show_estimates(stage, preset, ablation, data, folders, asked, changes or (), gpus, rate)
        return
    if data is None or out is None:
        raise ValueError("--data (the corpus) and --out (the run) are required")
    from crocodil.corpus.shards import Corpus

    corpus = Corpus(data)
    corpus.require("train", "valid")
    for model in (llada, qwen, causal):  # the options and the corpus are right: fetch weights from the hub
        _folder(model, MODEL_FILES)

    from crocodil.presets.changes import with_changes
    from crocodil.presets.runs import FROM_CAUSAL
    from crocodil.runtime.devices import checked_device, default_device
    from crocodil.runtime.distributed import process_group
    from crocodil.training.run import run_stage
    from crocodil.training.stage_setup import Workspace

    device = checked_device(device or default_device())
    run = _run_of(preset, ablation, corpus, folders)
    with process_group(device) as ranks:
        workspace = Workspace(corpus, out, source or out, ranks)
        run = _with_causal_start(run, asked, stage, workspace, resume=resume)
        run = with_changes(run, changes or ())
        run = run if pairs is None else replace(run, pairs=pairs)
        if preset in FROM_CAUSAL and stage == "base" and run.causal is None:
            raise ValueError(f"preset {preset} begins as a causal model: give the folder of one with --causal")
        finished = run_stage(stage, run, workspace, resume=resume, max_minutes=max_minutes)
        if ranks.is_main:
            typer.echo(f"{out / stage}: " + ("finished" if finished else "stopped; continue with --resume"))


def _run_of(preset: str, ablation: str | None, corpus: "Corpus", folders: dict[str, Path | None]) -> "Run":
    """Return the run of a preset, or an ablation of it."""
    from crocodil.presets.runs import ABLATIONS
    from crocodil.presets.runs import preset as preset_of
    from crocodil.training.run_config import Pretrained

    run = preset_of(preset, corpus, Pretrained(**folders))
    return run if ablation is None else ABLATIONS[ablation](run)


@dataclass(frozen=True)
class _Causal:
    """The options of a base that begins as a causal language model."""

    directory: Path | None = None
    layers: tuple[int, ...] | None = None
    keep_layers: int | None = None
    layer_choice: str = "greedy"
    shift: bool = False
    freeze_embeddings: bool = False
    align: float = 0.0

    def check(self, stage: str, *, dry_run: bool) -> None:
        if self.directory is None and self != _Causal():
            raise ValueError("--layers, --keep-layers, --shift, --freeze-embeddings and --align need --causal")
        if self.directory is not None and stage != "base" and not dry_run:
            raise ValueError(f"--causal is for stage base: stage {stage} reads it from the run")
        if self.layers is not None and self.keep_layers is not None:
            raise ValueError("--layers and --keep-layers exclude each other: give one of them")

    def begin(self, run: "Run", layers: tuple[int, ...] | None, muon_rate: float | None = None) -> "Run":
        """Return the run that begins as these layers of the causal model."""
        from crocodil.presets.causal_starts import begin_as_causal
        from crocodil.training.run_config import CausalStart

        assert self.directory is not None
        start = CausalStart(
            directory=self.directory.resolve(),
            layers=layers,
            shifted=self.shift,
            freeze_embeddings=self.freeze_embeddings,
            align_weight=self.align,
            muon_rate=muon_rate,
        )
        return begin_as_causal(run, start)


def _with_causal_start(run: "Run", asked: _Causal, stage: str, workspace: "Workspace", *, resume: bool) -> "Run":
    """Return the run with its causal start: in stage base as asked for or, to resume it, as recorded."""
    from crocodil.presets.causal_starts import begin_as_causal, continue_from_causal, fitting_muon_rate
    from crocodil.training.pruning import choose_layers
    from crocodil.training.run_config import read_causal_start

    if stage != "base":
        return continue_from_causal(run, workspace)
    recorded = read_causal_start(workspace.out) if resume else None
    if asked.directory is None:
        if recorded is None:
            return run
        return begin_as_causal(run, replace(recorded, directory=local_folder(str(recorded.directory))))
    rate = fitting_muon_rate(asked.directory) if run.base_loop.optimiser == "muon" else None
    if asked.keep_layers is None:
        return asked.begin(run, asked.layers, rate)
    if recorded is not None and recorded.layers is not None and len(recorded.layers) == asked.keep_layers:
        return asked.begin(run, recorded.layers, rate)
    layers = choose_layers(
        asked.directory, asked.keep_layers, asked.layer_choice, workspace, length=max(run.lengths)
    )
    return asked.begin(run, layers, rate)


def _folder(model: str | None, patterns: Sequence[str]) -> Path | None:
    return None if model is None else local_folder(model, patterns=patterns)


def _show_estimates(
    stage: str,
    preset: str,
    ablation: str | None,
    data: Path | None,
    folders: dict[str, Path | None],
    asked: _Causal,
    changes: Collection[str],
    num_devices: int,
    tflops: float | None,
) -> None:
    """Print what each stage of the run needs. Without a corpus, its size is assumed."""
    from crocodil.checkpoints.causal import read_causal_config
    from crocodil.corpus.shards import Corpus
    from crocodil.presets.changes import with_changes
    from crocodil.presets.runs import assumed_corpus
    from crocodil.training.pruning import spaced_layers
    from crocodil.training.run import STAGES

    if stage not in STAGES:
        raise ValueError(f"no stage {stage!r}: the stages are {', '.join(STAGES)}")
    corpus, assumed = assumed_corpus(preset) if data is None else (Corpus(data), "")
    run = _run_of(preset, ablation, corpus, folders)
    if asked.directory is not None:
        num_layers = read_causal_config(asked.directory).num_layers
        # Which layers are kept does not change their number.
        layers = asked.layers if asked.keep_layers is None else spaced_layers(num_layers, asked.keep_layers)
        run = asked.begin(run, layers)
    run = with_changes(run, changes)
    _print_estimates(run, preset, num_devices, tflops)
    if assumed:
        typer.echo(f"No --data is given, so this is assumed: {assumed}.")


def _print_estimates(run: "Run", preset: str, num_devices: int, tflops: float | None) -> None:
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
    """List the runs in a folder and how far each stage is."""
    from rich.console import Console

    from crocodil.training.run import STAGES
    from crocodil.training.run_config import RUN_FILE

    folders = sorted(file.parent for file in directory.glob(f"*/{RUN_FILE}"))
    if not folders:
        raise ValueError(f"{directory} has no runs: none of its folders has a {RUN_FILE}")
    rows = [(folder.name, *(_progress_of(folder, stage) for stage in STAGES)) for folder in folders]
    Console().print(table([(f"Runs in {directory}",), ("run", *STAGES), *rows]))


def _progress_of(run: Path, stage: str) -> str:
    from crocodil.training.journal import METRICS_FILE, read_rows
    from crocodil.training.run_config import read_run_summary

    if stage == "registers":
        caches = [f"{split}-{length}" for length in read_run_summary(run).lengths for split in ("train", "valid")]
        is_finished = all((run / stage / cache).is_dir() for cache in caches)
    else:
        is_finished = (run / stage / "model").is_dir()
    if is_finished:
        return "finished"
    rows = read_rows(run / stage) if (run / stage / METRICS_FILE).is_file() else []
    return f"step {rows[-1]['step']:,}" if rows else "-"


@app.command(rich_help_panel=TRAIN)
@options.with_knobs_of(Decoding, Drawing)
def export(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="The run; stage guided must be finished.")],
    data: Annotated[Path, typer.Option(help="The corpus of the run.")],
    out: Annotated[Path, typer.Option(help="New folder for the model.")],
    *,
    without: Annotated[
        list[str] | None, options.one_of(options.Network, "Leave out this network, e.g. base; may be repeated.")
    ] = None,
    weak_prior: Annotated[
        Path | None, typer.Option(help="Folder of a less trained denoiser, for --autoguidance.")
    ] = None,
    teachers: Annotated[
        bool, typer.Option("--teachers", help="Take the priors from which stage distilled learned, not its own.")
    ] = False,
    bits: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NETWORK=]8|4",
            help="Store matrices in 8 or 4 bits, a quarter or a sixth of the size on disk; may be repeated: "
            "--bits 4 --bits demasker=8.",
        ),
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Short for --bits 8.")] = False,
    knobs: dict[str, Any],
) -> None:
    """Make a model folder from the finished stages of a run.

    Sampling options become the model's defaults; those that are not given are the paper's.
    """
    from crocodil.corpus.shards import TOKENIZER_FILE, Corpus

    corpus = Corpus(data)
    if not directory.is_dir():
        raise ValueError(f"{directory} holds no run: it is not a folder")
    if out.exists():
        raise ValueError(f"{out} exists: models are never overwritten, choose another folder")
    from crocodil.pipeline import Crocodil, Settings
    from crocodil.pipeline.folder import bits_by_network
    from crocodil.training.run_config import read_run_summary

    stored_bits = _bits_of(bits or ())
    bits_by_network(stored_bits, int8=int8)  # a mistake is told before anything is loaded
    run = read_run_summary(directory)
    networks = _finished_networks(directory, without or (), distilled=not teachers)
    if "demasker" not in networks:
        raise ValueError(f"{directory} has no finished stage guided: train it, then export")
    defaults = Settings(length=run.lengths[0], lengths=run.lengths)
    trained_with: dict[str, Any] = {
        "largest_offset": run.prior_objective.largest_offset,
        "time_shift": run.prior_objective.time_shift,
    }
    if any(path.parts[-3] == "distilled" for path in networks.values()):
        trained_with |= dict.fromkeys(("prior_steps", "refresh_steps"), run.distil_objective.draw_steps)
    decoding, drawing = with_knobs(defaults.decoding, defaults.drawing, trained_with | knobs)
    settings = replace(defaults, decoding=decoding, drawing=drawing)
    qwen = run.pretrained.qwen
    card = _card(directory, corpus, networks)
    if weak_prior is not None:
        networks["weak_prior"] = weak_prior
    model = Crocodil.assemble(
        networks,
        tokenizer=corpus.directory / TOKENIZER_FILE,
        encoder_tokenizer=None if qwen is None else local_folder(str(qwen), patterns=JSON_FILES) / TOKENIZER_FILE,
        settings=settings,
        device="cpu",
    )
    model.save_pretrained(out, bits=stored_bits, int8=int8, card=card)
    typer.echo(f"{out}: {', '.join(networks)}")


def _bits_of(values: Sequence[str]) -> int | dict[str, int] | None:
    """Return one number for all networks, or numbers by network: NAME=BITS overrides a number without a name."""
    named = dict(value.split("=", 1) for value in values if "=" in value)
    for_all = [value for value in values if "=" not in value]
    wrong = [text for text in (*for_all, *named.values()) if not text.isdecimal()]
    if wrong or len(for_all) > 1:
        raise ValueError(f"--bits takes 8 or 4 once for all networks, and NETWORK=8 or NETWORK=4, not {values}")
    by_name = {name: int(text) for name, text in named.items()}
    if not for_all:
        return by_name or None
    return {**dict.fromkeys(get_args(options.Network), int(for_all[0])), **by_name}


def _card(directory: Path, corpus: "Corpus", networks: Mapping[str, Path]) -> "Card":
    """Return what a run knows for the model card: where it began, its stages and its data."""
    from crocodil.pipeline.card import Card
    from crocodil.training.run_config import read_causal_start, read_run_file, read_run_summary

    begun_from, causal = asdict(read_run_summary(directory).pretrained), read_causal_start(directory)
    paths = [*begun_from.values(), causal and causal.directory]
    names = [name for path in paths if path and (name := hub_name(str(path))) and name.revision]
    values, data = read_run_file(directory), corpus.description["splits"]["train"]
    fields = ("num_steps", "batch_size", "learning_rate")
    rows = ["| stage | steps | batch | learning rate |", "|---|---|---|---|"]
    for stage in dict.fromkeys(path.parts[-3] for path in networks.values()):
        loop = dict(values.get(f"{stage}_loop") or {})
        rows.append(f"| {stage} | {' | '.join(str(loop.get(field, '')) for field in fields)} |")
    rows.append(f"\nData: {data['documents']:,} documents, {data['tokens']:,} tokens.")
    if names:
        rows.append(f"It began from {' and '.join(map(str, names))}.")
    return Card(base_models=tuple(name.repository for name in names), training="\n".join(rows))


def _finished_networks(directory: Path, without: Collection[str], *, distilled: bool = True) -> dict[str, Path]:
    """Return the folders of the networks; a distilled prior takes the place of its teacher."""
    paths = {name: directory / path for name, path in _NETWORKS.items()}
    finished = {name: path for name, path in paths.items() if path.exists()}
    if distilled:
        students = {name: directory / "distilled" / "model" / name for name in ("prior", "conditional")}
        finished |= {name: path for name, path in students.items() if path.exists()}
    return {name: path for name, path in finished.items() if name not in without}


# Where a run keeps the networks of a model.
_NETWORKS = {
    "demasker": "guided/model/demasker",
    "encoder": "guided/model/encoder",
    "prior": "prior/model/denoiser",
    "conditional": "conditional/model/denoiser",
    "condition_encoder": "conditional/model/condition_encoder",
    "prompted": "prompted/model/denoiser",
    "prompt_encoder": "prompted/model/prompt_encoder",
    "length_head": "prompted/model/length_head",
    "prompted_demasker": "prompted/model/demasker",
    "base": "base/model/demasker",
}
