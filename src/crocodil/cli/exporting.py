"""`crocodil export`, which makes a model folder from a run."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from crocodil.checkpoints.hub import JSON_FILES, hub_name, local_folder
from crocodil.cli import options
from crocodil.cli.root import TRAIN, app
from crocodil.pipeline.settings import Method
from crocodil.sampling.configs import Decoding, Drawing, with_knobs

if TYPE_CHECKING:
    from crocodil.corpus.shards import Corpus
    from crocodil.pipeline import Crocodil, Settings
    from crocodil.pipeline.card import Card
    from crocodil.pipeline.folder import MomentsByNetwork
    from crocodil.training.run_config import RunSummary

UNKNOWN_LICENSE = "unknown"


@app.command(rich_help_panel=TRAIN)
@options.with_knobs_of(Decoding, Drawing)
def export(
    directory: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of the run. Stage guided must be finished.")
    ],
    data: Annotated[Path, typer.Option(help="The corpus of the run.")],
    out: Annotated[Path, typer.Option(help="New folder for the model.")],
    *,
    without: Annotated[
        list[str] | None, options.one_of(options.Network, "Leave out this network, e.g. base. Can be repeated.")
    ] = None,
    priors_of: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Take the priors of this model, and how it draws. It must have the encoder of the run.",
        ),
    ] = None,
    weak_prior: Annotated[
        Path | None, typer.Option(help="Folder of a less trained denoiser, for --autoguidance.")
    ] = None,
    teachers: Annotated[
        bool, typer.Option("--teachers", help="Export the original priors instead of the distilled ones.")
    ] = False,
    bits: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NETWORK=]8|6|5|4|3",
            help="Store matrices in 8 bits (a quarter of the size on disk), or those of transformer blocks in 6 "
            "to 3 bits (down to an eighth). For all networks, or by name: --bits 4,demasker=8.",
        ),
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Short for --bits 8.")] = False,
    calibrate: Annotated[
        int | None,
        typer.Option(
            metavar="PROGRAMS",
            min=1,
            help="Round to 6 or fewer bits so that outputs for this many programs of the corpus change little. "
            "Takes minutes.",
        ),
    ] = None,
    method: Annotated[Method | None, typer.Option(help="Default method of the model.")] = None,
    license: Annotated[
        str, typer.Option(metavar="NAME", help="Licence of the weights, for the model card, e.g. apache-2.0.")
    ] = UNKNOWN_LICENSE,
    knobs: dict[str, Any],
) -> None:
    """Make a model folder from the finished stages of a run.

    Sampling options given here become the defaults of the model. Other options have the paper's values.
    """
    from crocodil.corpus.shards import TOKENIZER_FILE, Corpus

    corpus = Corpus(data)
    if not directory.is_dir():
        raise ValueError(f"{directory} holds no run: it is not a folder")
    if out.exists():
        raise ValueError(f"{out} exists: models are never overwritten, choose another folder")
    from crocodil.checkpoints.format import model_config
    from crocodil.checkpoints.quantised import FewBits
    from crocodil.pipeline import Crocodil
    from crocodil.pipeline.folder import bits_by_network
    from crocodil.training.history import read_run_summary
    from crocodil.training.stage_checks import check_recorded_tokens, check_vocabulary

    stored_bits = _bits_of([part for value in bits or () for part in value.split(",")])
    by_network = bits_by_network(stored_bits, int8=int8)  # a mistake is told before anything is loaded
    if calibrate and not any(one in get_args(FewBits) for one in by_network.values()):
        raise ValueError("--calibrate is for 6 or fewer bits: add --bits")
    run = read_run_summary(directory)
    stages = _finished_stages(directory, without or (), distilled=not teachers)
    if "demasker" in (without or ()):
        raise ValueError("a model needs its demasker: leave --without demasker out")
    if "demasker" not in stages:
        raise ValueError(f"{directory} has no finished stage guided: train it, then export")
    if priors_of is not None:
        stages = {name: stage for name, stage in stages.items() if name not in _PRIORS}
    networks = {name: _trained(directory, stage, name) for name, stage in stages.items()}
    check_vocabulary(corpus, model_config(networks["demasker"]).backbone)
    check_recorded_tokens(corpus, directory)
    qwen = run.pretrained.qwen
    card = _card(directory, corpus, stages, license)
    if priors_of is None:
        settings = _settings(run, stages, knobs)
    else:
        settings = _settings_of_priors(_settings(run, stages, {}), priors_of, knobs)
        card = _with_line(card, f"Its priors are those of `{Path(priors_of).name}`.")
        networks |= _priors_of(priors_of, networks["encoder"], without or ())
    settings = replace(settings, method=method or _best_method(networks))
    _check_head(directory, networks)
    if weak_prior is not None:
        networks["weak_prior"] = weak_prior
    model = Crocodil.assemble(
        networks,
        tokenizer=corpus.directory / TOKENIZER_FILE,
        encoder_tokenizer=None if qwen is None else local_folder(str(qwen), patterns=JSON_FILES) / TOKENIZER_FILE,
        settings=settings,
        device="cpu",
    )
    _check_defaults(model)
    moments = None
    if calibrate:
        moments = _moments(model, corpus, calibrate)
        card = _with_line(card, f"Few bits were rounded for {calibrate} programs of the corpus (GPTQ).")
    model.save_pretrained(out, bits=stored_bits, int8=int8, moments=moments, card=card)
    typer.echo(f"{out}: {_sizes(out, networks)}")


def _best_method(networks: Mapping[str, Path]) -> Method:
    """Return the method that a model with these networks can use: ConWithinDisc needs a conditional prior."""
    if "conditional" in networks:
        return Method.CON_WITHIN_DISC
    return Method.CON_THEN_DISC if "prior" in networks else Method.BASE


def _settings(run: "RunSummary", stages: Mapping[str, str], knobs: dict[str, Any]) -> "Settings":
    """Return the model's settings: what the priors were trained with, changed by the knobs.

    `stages` are those that trained the networks, by their names.
    """
    from crocodil.pipeline import Settings

    defaults = Settings(length=run.lengths[0], lengths=run.lengths)
    trained_with: dict[str, Any] = {
        "largest_offset": run.prior_objective.largest_offset,
        "time_shift": run.prior_objective.time_shift,
    }
    smallest = run.prior_objective.smallest_noise
    if smallest:
        trained_with |= {"early_stop": True, "register_noise": smallest}
    first = "prior" if "prior" in stages else "conditional"
    for network, steps in ((first, "prior_steps"), ("conditional", "refresh_steps")):
        if stages.get(network) == "distilled":
            trained_with[steps] = run.distil_objective.draw_steps
            if run.distil_objective.by_matching:
                defaults = replace(defaults, distilled_steps=run.distil_objective.draw_steps)
                trained_with |= {"early_stop": True, "register_noise": run.distil_objective.stop_noise}
    decoding, drawing = with_knobs(defaults.decoding, defaults.drawing, trained_with | knobs)
    if smallest:
        _check_noise(drawing, smallest, refreshes="conditional" in stages and bool(drawing.refresh_at))
    return replace(defaults, decoding=decoding, drawing=drawing)


def _check_defaults(model: "Crocodil") -> None:
    """Raise if the model could not generate with its default settings."""
    from crocodil.pipeline.generating import generation_job

    generation_job(model, 1)
    decoding, drawing = model.settings.decoding, model.settings.drawing
    if decoding.in_turn != "no" and model.causal_head is None:
        raise ValueError(f"--in-turn {decoding.in_turn} needs a causal head: train stage head, or leave it out")
    if drawing.autoguidance != 1 and model.weak_prior is None:
        raise ValueError("--autoguidance needs a weak prior: give one with --weak-prior, or leave it out")


def _check_head(directory: Path, networks: Mapping[str, Path]) -> None:
    """Raise if the causal head was trained for another demasker: it reads the states of that one."""
    from crocodil.training.record import STAGE_FILE, checksum_of, read_checksummed

    if "causal_head" not in networks:
        return
    sources = read_checksummed(directory / "head" / STAGE_FILE).get("sources", {})
    trained_for = sources.get("demasker of the model", sources.get("guided/model/demasker"))
    if trained_for not in (None, checksum_of(networks["demasker"])):
        raise ValueError(
            f"the head in {directory / 'head'} was trained for another demasker: train it again, or leave it out "
            "with --without causal_head"
        )


def _check_noise(drawing: Drawing, smallest: float, *, refreshes: bool) -> None:
    """Raise if a step of a draw reads registers with less noise than the prior was trained with (decision D78)."""
    from crocodil.sampling.early_stop import least_noise_read

    if not drawing.early_stop or least_noise_read(drawing, refreshes=refreshes) < smallest:
        raise ValueError(
            f"the prior was trained at noise {smallest} and above (prior_objective.smallest_noise), and the last "
            f"step of a draw would read less: use --early-stop and --register-noise {smallest}, or fewer steps"
        )


def _moments(model: "Crocodil", corpus: "Corpus", count: int) -> "MomentsByNetwork":
    """Return the moments of the networks' inputs for programs of the train split."""
    from crocodil.pipeline.calibration import calibrate
    from crocodil.reproduce.held_out import HeldOut

    return calibrate(model, HeldOut(corpus, model.tokenizer, model.settings.length).texts("train", count))


def _settings_of_priors(settings: "Settings", model: str, knobs: dict[str, Any]) -> "Settings":
    """Return the settings with the drawing of another model, changed by the knobs."""
    from crocodil.pipeline.folder import parts_of

    theirs = parts_of(model)["settings"]
    decoding, drawing = with_knobs(settings.decoding, theirs.drawing, knobs)
    return replace(settings, decoding=decoding, drawing=drawing, distilled_steps=theirs.distilled_steps)


def _priors_of(model: str, encoder: Path, without: Collection[str]) -> dict[str, Path]:
    """Return the priors of another model. They fit only if it has the same encoder."""
    from crocodil.checkpoints.format import load_model
    from crocodil.pipeline.folder import parts_of

    networks: dict[str, Path] = parts_of(model)["networks"]
    found = {name: networks[name] for name in _PRIORS if name in networks and name not in without}
    if not found.keys() & {"prior", "conditional"}:
        left_out = " besides what --without leaves out" if without else ""
        raise ValueError(f"{model} has no prior{left_out}: name a model that has one")
    theirs, own = (load_model(path).state_dict() for path in (networks["encoder"], encoder))
    if theirs.keys() != own.keys() or not all(own[name].equal(value) for name, value in theirs.items()):
        raise ValueError(
            f"{model} has another encoder than the run, so its priors draw other registers: train the run with "
            f"guided_start={model} and encoder_learns=false"
        )
    return found


def _bits_of(values: Sequence[str]) -> int | dict[str, int] | None:
    """Return one number for all networks, or numbers by network: NAME=BITS overrides a number without a name."""
    named = dict(value.split("=", 1) for value in values if "=" in value)
    for_all = [value for value in values if "=" not in value]
    wrong = [text for text in (*for_all, *named.values()) if not text.isdecimal()]
    if wrong or len(for_all) > 1:
        raise ValueError(
            f"--bits takes 8, 6, 5, 4 or 3 once for all networks, and NETWORK=BITS, not {' '.join(values)}"
        )
    by_name = {name: int(text) for name, text in named.items()}
    if not for_all:
        return by_name or None
    return {**dict.fromkeys(get_args(options.Network), int(for_all[0])), **by_name}


def _card(directory: Path, corpus: "Corpus", stages: Mapping[str, str], license: str) -> "Card":
    """Return what a run knows for the model card: where it began, its stages and its data."""
    from crocodil.pipeline.card import Card
    from crocodil.training.history import read_run_summary
    from crocodil.training.run_config import read_causal_start

    begun_from, causal = asdict(read_run_summary(directory).pretrained), read_causal_start(directory)
    paths = [*begun_from.values(), causal and causal.directory]
    names = [name for path in paths if path and (name := hub_name(str(path))) and name.revision]
    data = corpus.description["splits"]["train"]
    lines = [*_stage_table(directory, stages), ""]
    lines.append(f"Data: {data['documents']:,} documents, {data['tokens']:,} tokens.")
    if names:
        lines.append(f"It began from {' and '.join(map(str, names))}.")
    return Card(license=license, base_models=tuple(name.repository for name in names), training="\n".join(lines))


def _with_line(card: "Card", line: str) -> "Card":
    return replace(card, training=f"{card.training}\n{line}")


def _stage_table(directory: Path, stage_of: Mapping[str, str]) -> list[str]:
    """Return the stages of the model as the lines of a table; the base counts if the run has its record.

    A distilled prior also has the stage of its teacher; that stage has the name of the network.
    """
    from crocodil.training.history import history

    teachers = [name for name, stage in stage_of.items() if stage == "distilled"]
    stages = [stage for stage in stage_of.values() if stage != "distilled"]
    stages += [*teachers, "distilled"] if teachers else []
    if (directory / "base").is_dir():
        stages = ["base", *stages]
    lines = ["| stage | steps | batch | optimiser | learning rate | minutes |", "|---|---|---|---|---|---|"]
    for part in history(directory, dict.fromkeys(stages)):
        minutes = None if part.minutes is None else f"{part.minutes:.1f}"
        cells = (part.stage, part.num_steps, part.batch_size, part.optimiser, part.learning_rate, minutes)
        lines.append(f"| {' | '.join('' if cell is None else str(cell) for cell in cells)} |")
    return lines


def _sizes(folder: Path, networks: Mapping[str, Path]) -> str:
    """Return the size of each network of a model folder, and of the folder."""

    def megabytes(part: Path) -> str:
        return f"{sum(file.stat().st_size for file in part.rglob('*') if file.is_file()) / 1e6:.1f} MB"

    return f"{', '.join(f'{name} {megabytes(folder / name)}' for name in networks)}; {megabytes(folder)} in all"


def _finished_stages(directory: Path, without: Collection[str], *, distilled: bool) -> dict[str, str]:
    """Return the stages that trained the networks; with `distilled`, students take the place of their teachers."""
    stages = {name: stage for name, (stage, _) in _NETWORKS.items()}
    students = dict.fromkeys(("prior", "conditional"), "distilled") if distilled else {}
    finished = {
        name: stage
        for name, stage in (*stages.items(), *students.items())
        if _trained(directory, stage, name).exists()
    }
    return {name: stage for name, stage in finished.items() if name not in without}


def _trained(directory: Path, stage: str, network: str) -> Path:
    """Return the folder of a network that a stage of a run trained."""
    return directory / stage / "model" / (network if stage == "distilled" else _NETWORKS[network][1])


_PRIORS = ("prior", "conditional", "condition_encoder", "weak_prior")
# The networks of a model: the stage that trains each, and its name there. Students keep their names.
_NETWORKS = {
    "demasker": ("guided", "demasker"),
    "encoder": ("guided", "encoder"),
    "prior": ("prior", "denoiser"),
    "conditional": ("conditional", "denoiser"),
    "condition_encoder": ("conditional", "condition_encoder"),
    "prompted": ("prompted", "denoiser"),
    "prompt_encoder": ("prompted", "prompt_encoder"),
    "length_head": ("prompted", "length_head"),
    "prompted_demasker": ("prompted", "demasker"),
    "base": ("base", "demasker"),
    "causal_head": ("head", "causal_head"),
}
