"""Fine-tune a model on your own folder of Python code, on one device.

    python examples/own_data.py my/code --out mine
    crocodil generate --model mine/model

The corpus uses the tokenizer of the model. Stage 1 trains the encoder and the demasker. Stage 2 trains one
denoiser, which serves as both priors, on the registers of the new encoder. A denoiser that was distilled into a
few steps, as that of the built-in model, takes 16 steps after that. If the run is stopped, the same command
continues it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer

from crocodil.corpus.build import build
from crocodil.corpus.shards import CORPUS_FILE, Programs
from crocodil.models.denoiser_starts import plain_copy_of
from crocodil.objectives import DemaskerObjective, PriorObjective
from crocodil.pipeline import Crocodil
from crocodil.pipeline.folder import TOKENIZER_FILE
from crocodil.pipeline.settings import BUILTIN, model_folder
from crocodil.presets.corpora import own_python
from crocodil.processes.registers import block_ends
from crocodil.runtime.atomic import locked, remove_unfinished
from crocodil.runtime.distributed import Ranks
from crocodil.text.retokenizer import Retokenizer
from crocodil.training.data import CachedRegisters, Data, cache_registers
from crocodil.training.guiding import GuidedStage
from crocodil.training.loop import LoopConfig, has_checkpoints, train
from crocodil.training.record import checksum_of, write_or_check_record
from crocodil.training.stages import ConditionalPriorStage


def main(
    source: Annotated[Path, typer.Argument(help="A folder of Python files.")],
    out: Annotated[Path, typer.Option(help="Folder for the corpus, both stages and the new model.")],
    model: Annotated[str, typer.Option(help="The model to start from: a folder, or builtin.")] = BUILTIN,
    steps: Annotated[int, typer.Option(min=1, help="Training steps of each stage.")] = 1000,
    batch_size: Annotated[int, typer.Option(min=1, help="Programs per step.")] = 32,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate, after the warm-up.")] = 1e-4,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; default: cuda if available.")] = None,
) -> None:
    """Fine-tune a model on a folder of Python code."""
    with locked(out):
        fine_tune(source, out, model, steps, batch_size, learning_rate, device)
    typer.echo(f"finished: {out / 'model'}")


def fine_tune(
    source: Path, out: Path, model: str, steps: int, batch_size: int, learning_rate: float, device: str | None
) -> None:
    if (out / "model").exists():
        raise ValueError(f"{out / 'model'} exists: models are never overwritten, choose another --out")
    pipe = Crocodil.from_pretrained(model, device=device, dtype=torch.float32)
    if pipe.conditional is None:
        raise ValueError("this model has no conditional prior to start from")
    pipe = without_other_networks(pipe)
    recipe = replace(own_python(source), tokenizer=model_folder(model) / TOKENIZER_FILE)
    corpus = build(recipe, out / "corpus")
    loop = LoopConfig(
        num_steps=steps, batch_size=batch_size, learning_rate=learning_rate, warmup_steps=steps // 10,
        average_decay=0.99, bf16=pipe.device.type == "cuda", evaluate_every=500, save_every=100,
    )  # fmt: skip
    train_split, valid_split = (
        [corpus.programs(name, length=length) for length in pipe.settings.lengths] for name in ("train", "valid")
    )
    data = Data(train=train_split, valid=valid_split, batch_size=batch_size, device=str(pipe.device))
    sources = {"corpus": checksum_of(corpus.directory / CORPUS_FILE), "model": checksum_of(model_folder(model))}
    pipe = with_ordinary_prior(pipe)
    guided = guided_stage(pipe, data)
    learn(guided, loop, out / "guided", sources)
    learn(conditional_stage(pipe, guided, out / "guided" / "registers"), loop, out / "conditional", sources)
    pipe.save_pretrained(out / "model")


def without_other_networks(pipe: Crocodil) -> Crocodil:
    """Return the model with encoder, demasker and conditional prior only: all others know the old data alone."""
    drawing = replace(pipe.settings.drawing, autoguidance=1.0)  # it needs a weak prior
    return replace(
        pipe, prior=None, weak_prior=None, base=None, prompted=None, prompt_encoder=None, length_head=None,
        prompted_demasker=None, settings=replace(pipe.settings, drawing=drawing),
    )  # fmt: skip


def with_ordinary_prior(pipe: Crocodil) -> Crocodil:
    """Return the model with an ordinary prior if its own is distilled: stage 2 trains by likelihood."""
    assert pipe.conditional is not None
    if not pipe.conditional.config.is_distilled:
        return pipe
    drawing = replace(pipe.settings.drawing, prior_steps=16, refresh_steps=16, eta=1.0)
    prior = plain_copy_of(pipe.conditional).to(pipe.device)
    return replace(pipe, conditional=prior, settings=replace(pipe.settings, drawing=drawing))


def guided_stage(pipe: Crocodil, data: Data) -> GuidedStage:
    """Algorithm 1, starting from the model's encoder and demasker; trained networks need no warm-up."""
    encoder_tokenizer = pipe.encoder_tokenizer
    return GuidedStage(
        pipe.encoder,
        pipe.demasker,
        data,
        objective_for(pipe),
        warmup_steps=0,
        retokenizer=None if encoder_tokenizer is None else Retokenizer(pipe.tokenizer, encoder_tokenizer),
    )


def objective_for(pipe: Crocodil) -> DemaskerObjective:
    """Return options of Algorithm 1 for how the model samples: drafts for `revise` (D62), noise as drawn (D48)."""
    objective = DemaskerObjective(prefix_lengths=tuple(block_ends(pipe.encoder.config.num_registers)))
    if pipe.settings.decoding.rule == "revise":
        objective = replace(objective, draft_rate=0.5)
    if noise := pipe.settings.drawing.register_noise:
        cosine = min(objective.register_cosine, 1 / math.hypot(1, noise))
        objective = replace(objective, register_cosine=cosine, uniform_noise=True)
    return objective


def conditional_stage(pipe: Crocodil, guided: GuidedStage, cache: Path) -> ConditionalPriorStage:
    """Algorithm 4, starting from the model's denoiser; 75% of a batch are fully masked canvases (decision D15)."""
    assert pipe.conditional is not None
    config, data = pipe.conditional.config, guided.data
    remove_unfinished(cache)

    def cached_registers(views: Sequence[Programs], split: str) -> list[CachedRegisters]:
        return [
            cache_registers(
                guided.encode,
                programs,
                cache / f"{split}-{programs.length}",
                shape=(config.num_registers, config.register_width),
                batch_size=data.batch_size,
                ranks=Ranks(device=data.device),
            )
            for programs in views
        ]

    return ConditionalPriorStage(
        pipe.conditional,
        (pipe.condition_encoder or pipe.encoder).requires_grad_(False),
        cached_registers(data.train, "train"),
        cached_registers(data.valid, "valid"),
        data,
        pipe.mask_id,
        PriorObjective(
            largest_offset=pipe.settings.drawing.largest_offset,
            time_shift=pipe.settings.drawing.time_shift,
            bare_rate=0.75,
            condition_drop_rate=0.0,
        ),
        retokenizer=guided.retokenizer,
    )


def learn(
    stage: GuidedStage | ConditionalPriorStage, loop: LoopConfig, out: Path, sources: Mapping[str, str]
) -> None:
    """Train a stage and give its networks their averaged weights. A stopped stage keeps its first settings."""
    out.mkdir(parents=True, exist_ok=True)
    remove_unfinished(out)
    remove_unfinished(out / "checkpoints")
    write_or_check_record(out, loop, sources, started=has_checkpoints(out))
    state = train(stage, loop, out, ranks=Ranks(device=stage.data.device), resume=True)
    if state.step < loop.num_steps:
        raise SystemExit(f"stopped at step {state.step} of {loop.num_steps}: run the command again to continue")
    with torch.no_grad():
        for name, parameter in state.parameters.items():
            parameter.copy_(state.averages[name])


if __name__ == "__main__":
    try:
        typer.run(main)
    except (ValueError, OSError, ArithmeticError) as error:
        raise SystemExit(f"own_data: {error}") from None
