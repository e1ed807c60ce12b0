"""`crocodil teach`, which writes texts that a demasker can learn from."""

import math
import time
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crocodil.cli import options
from crocodil.cli.answers import checked_method
from crocodil.cli.root import TRAIN, app
from crocodil.cli.train import MaxMinutes
from crocodil.pipeline.settings import BUILTIN, Method
from crocodil.runtime import config
from crocodil.sampling.configs import Decoding, Drawing

if TYPE_CHECKING:
    from crocodil.pipeline import Crocodil, Generation

MORE_CALLS = 2  # as a teacher, a model makes so many times its own calls


class Keep(StrEnum):
    """Which of the decoded texts are kept."""

    ALL = "all"
    PARSES = "parses"


@app.command(rich_help_panel=TRAIN)
@options.with_knobs_of(Decoding, Drawing)
def teach(
    out: Annotated[Path, typer.Option(help="New folder for the texts.")],
    *,
    count: Annotated[int, options.number(config.Count, "Number of texts to decode.")] = 1000,
    keep: Annotated[
        Keep,
        typer.Option(
            help="all, or parses: only Python. A text that fills the canvas may be incomplete at its end."
        ),
    ] = Keep.ALL,
    length: options.Length = None,
    seed: options.Seed = 0,
    knobs: dict[str, Any],
    max_minutes: MaxMinutes = None,
    batch_size: options.BatchSize = None,
    compiled: Annotated[
        bool, typer.Option("--compiled", help="Compile the networks: slower start, then faster.")
    ] = False,
    model: options.Model = BUILTIN,
    device: options.Device = None,
) -> None:
    """Write texts that a model decodes in many calls, with their registers, for stage guided.

    From them a demasker can learn to decode in few calls. By default, the model makes twice its own calls.
    """
    checked_method(model, Method.CON_THEN_DISC, length, knobs)
    if out.exists():
        raise ValueError(f"{out} exists: teacher texts are never overwritten, choose another folder")
    from crocodil.pipeline import Crocodil
    from crocodil.training.teacher_texts import write_teacher_texts

    stop_at = math.inf if max_minutes is None else time.monotonic() + 60 * max_minutes
    pipe = Crocodil.from_pretrained(model, device=device, compiled=compiled)
    length = pipe.settings.canvas(length)
    own_calls = pipe.settings.decoding.plan(length).num_calls
    knobs = {"calls": min(MORE_CALLS * own_calls, length), **knobs}
    asked = {"method": Method.CON_THEN_DISC, "length": length, "seed": seed, **knobs}
    tokens, registers, num_decoded = [], [], 0
    for batch in pipe.stream_batches(count, batch_size=batch_size, **asked):
        kept = _kept(pipe, batch, keep)
        assert batch.registers is not None
        tokens.append(batch.tokens[kept].cpu())
        registers.append(batch.registers[kept].cpu())
        num_decoded += len(batch.texts)
        if time.monotonic() > stop_at:
            break
    if not (num_kept := sum(map(len, tokens))):
        raise ValueError(f"none of {num_decoded} texts parses: decode more, or use --keep all")
    decoding, drawing = pipe.settings.sampling(Method.CON_THEN_DISC, None, None, knobs)
    about = {"model": model, "seed": seed, "length": length, "texts": num_kept, "decoded": num_decoded}
    about |= {"keep": str(keep), "decoding": asdict(decoding), "drawing": asdict(drawing)}
    write_teacher_texts(out, tokens, registers, about)
    typer.echo(f"{out}: {num_kept:,} of {num_decoded:,} texts, {decoding.calls} calls each")


def _kept(pipe: "Crocodil", batch: "Generation", keep: Keep) -> list[int]:
    """Return the numbers of the texts to keep. A text without an end fills the canvas, and may be cut."""
    from crocodil.metrics import parses_as_python, parses_without_its_end

    if keep is Keep.ALL:
        return list(range(len(batch.texts)))
    has_end = (batch.tokens == pipe.tokenizer.special.eos).any(dim=1).tolist()
    return [
        number
        for number, (text, ends) in enumerate(zip(batch.texts, has_end, strict=True))
        if (parses_as_python if ends else parses_without_its_end)(text)
    ]
