"""The jobs of generation: with registers (Algorithms 2 and 3), or without (the base).

Models with and without prompts draw registers differently (`Draws`); everything else of a guided job is the same.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from crocodil.pipeline.batches import Job, SampleBatch, Watch
from crocodil.pipeline.canvases import NOTHING, Given
from crocodil.pipeline.drawing import Priors
from crocodil.pipeline.networks import Networks
from crocodil.pipeline.results import Generation, OnSnapshot
from crocodil.pipeline.settings import Method
from crocodil.processes.gaussian import OnStep
from crocodil.sampling import algorithms
from crocodil.sampling.call import Engine, settle
from crocodil.sampling.configs import Decoding, Drawing
from crocodil.sampling.cost import NO_COST, Cost
from crocodil.sampling.decode import decode
from crocodil.sampling.guidance import Demask, Guided, Unguided
from crocodil.sampling.state import Canvas, Draw, Samples
from crocodil.seeding import Streams
from crocodil.shapes import RegisterBank, TokenIds

FirstDraw: TypeAlias = Callable[[TokenIds, Streams, OnStep], Draw]  # (canvases, streams, callback)
# (canvases, registers to replace, streams, callback)
Redraw: TypeAlias = Callable[[TokenIds, RegisterBank | None, Streams, OnStep], Draw]


class Draws(NamedTuple):
    """How a guided batch gets its first registers, and how it refreshes them."""

    first: FirstDraw
    again: Redraw


def generation_job(
    model: Networks,
    count: int,
    *,
    method: Method | str | None = None,
    length: int | None = None,
    seed: int = 0,
    given: Given | Sequence[Given] = NOTHING,
    decoding: Decoding | None = None,
    drawing: Drawing | None = None,
    **knobs: Any,
) -> Job:
    """Return the job of `Crocodil.generate`; the options are explained there."""
    _check_request(count, given)
    method = model.settings.method_or_own(method)
    decoding, drawing = model.settings.sampling(method, decoding, drawing, knobs)
    canvas = model.canvas(model.settings.canvas(length), given)
    if method is Method.BASE:
        note = "this model has no base: used its demasker without registers" if model.base is None else ""
        return seed_job(base_sampler(model, decoding), canvas, seed, count, decoding, note=note)
    has_given_text = bool(given) if isinstance(given, Given) else any(map(bool, given))
    model.priors.check(drawing, has_given_text=has_given_text)
    if (first := model.first_prior) is not None:
        check_count(drawing.num_registers, first.config.num_registers, "draws")
    draws = draws_from(model.priors, drawing, has_given_text=has_given_text)
    demask = model.guided(drawing.num_registers)
    sample = guided_sampler(demask, draws, decoding, drawing, engine=model.engine)
    return seed_job(sample, canvas, seed, count, decoding, drawing, note=_note_on_steps(model, drawing))


def generate(
    model: Networks,
    count: int,
    *,
    batch_size: int | None = None,
    on_call: OnSnapshot | None = None,
    on_step: OnStep | None = None,
    show_progress: bool = True,
    **options: Any,
) -> Generation:
    """Generate `count` texts; the options are those of `Crocodil.generate`."""
    job = generation_job(model, count, **options)
    return model.runner.run(
        job, batch_size=batch_size, on_call=on_call, on_step=on_step, show_progress=show_progress
    )


def _check_request(count: int, given: Given | Sequence[Given]) -> None:
    """Check how many texts are asked for, and that each has its given text."""
    if isinstance(count, str):
        raise ValueError(f"count is {count!r}: for a prompt use complete(...) or given=Given(prefix=...)")
    if count < 1:
        raise ValueError(f"at least one text is generated, not {count}")
    if isinstance(given, Given):
        return
    if isinstance(given, str) or any(isinstance(entry, str) for entry in given):
        raise ValueError(f"given {'is' if isinstance(given, str) else 'has'} a string: use Given(prefix=...)")
    if len(given) != count:
        raise ValueError(f"given has {len(given)} entries for {count} texts: give one for each, or one for all")


def check_count(num_registers: int | None, available: int, verb: str) -> None:
    """Refuse more registers than there are, and none."""
    if num_registers is not None and num_registers < 1:
        raise ValueError(f"{num_registers} registers are asked for: use 1 or more")
    if num_registers is not None and num_registers > available:
        raise ValueError(f"{num_registers} registers are asked for, and this model {verb} {available}: use fewer")


def _note_on_steps(model: Networks, drawing: Drawing) -> str:
    """Return a note if a prior that adds fresh noise in each step takes more steps than it was trained for.

    Fewer steps that stop at more noise are the first steps of its training. A flow map takes any number.
    """
    usual, first = model.settings.drawing, model.first_prior
    asked = [(first, drawing.prior_steps, usual.prior_steps)]
    if drawing.refresh_at and drawing.refresh_from == 1:
        asked.append((model.conditional, drawing.refresh_steps, usual.refresh_steps))
    trained = model.settings.distilled_steps
    for prior, steps, default in asked:
        if prior is None or not prior.config.fresh_noise:
            continue
        if trained is not None and steps > trained:
            return f"this prior was distilled for {trained} steps, and not trained for more"
        if trained is None and steps > default:  # the folder of an older model does not say
            return f"this prior was distilled for few steps, perhaps for no more than its default of {default}"
    return ""


def seed_job(
    sample: SampleBatch,
    canvas: Canvas,
    seed: int,
    count: int,
    decoding: Decoding,
    drawing: Drawing | None = None,
    *,
    note: str = "",
    numbers: Sequence[int] | None = None,
) -> Job:
    """Return the job that generates `count` samples of a seed, with its numbers of calls and diffusion steps."""
    num_calls = decoding.plan(canvas.length).num_calls
    num_steps = 0
    if drawing is not None:
        refreshes = algorithms.calls_at(drawing.refresh_at, num_calls)
        num_steps = len(refreshes) * drawing.refresh_steps + (0 if 0 in refreshes else drawing.prior_steps)
    return Job(sample, canvas, ("generate", seed), count, num_calls, num_steps, note, numbers)


def base_sampler(model: Networks, decoding: Decoding) -> SampleBatch:
    """Return plain masked diffusion: with the base or, if there is none, the demasker without registers."""
    demask = model.guided() if model.base is None else Unguided(model.base)
    engine = model.engine

    def sample(numbers: range, canvas: Canvas, streams: Streams, watch: Watch) -> Samples:
        canvas, cost, not_settled = _settled(demask, canvas, decoding, streams)
        samples = decode(
            demask, canvas, decoding, streams=streams, spent=cost, on_call=watch.on_call, engine=engine
        )
        return samples.refunded(cost, not_settled)

    return sample


def guided_sampler(
    demask: Guided,
    draws: Draws,
    decoding: Decoding,
    drawing: Drawing,
    *,
    engine: Engine,
    spent: Cost = NO_COST,
) -> SampleBatch:
    """Return Algorithm 3, or Algorithm 2 if there is no refresh. `spent` is what each batch has cost before."""

    def sample(numbers: range, canvas: Canvas, streams: Streams, watch: Watch) -> Samples:
        canvas, cost, not_settled = _settled(demask, canvas, decoding, streams)
        samples = algorithms.con_within_disc(
            lambda streams: draws.first(canvas.tokens, streams, watch.on_step),
            lambda tokens, registers, streams: draws.again(tokens, registers, streams, watch.on_step),
            demask,
            canvas,
            decoding,
            streams=streams,
            refresh_at=drawing.refresh_at,
            spent=spent + cost,
            on_call=watch.on_call,
            engine=engine,
        )
        return samples.refunded(cost, not_settled).with_registers(drawing.num_registers)

    return sample


def draws_from(priors: Priors, drawing: Drawing, *, has_given_text: bool) -> Draws:
    """Return draws from the priors. If there is given text, the first registers depend on it (decision D24)."""

    def first(tokens: TokenIds, streams: Streams, on_step: OnStep) -> Draw:
        if has_given_text:
            return priors.draw_given(tokens, streams, drawing, num_steps=drawing.prior_steps, on_step=on_step)
        return priors.draw(streams, drawing, length=tokens.shape[1], on_step=on_step)

    def again(tokens: TokenIds, registers: RegisterBank | None, streams: Streams, on_step: OnStep) -> Draw:
        steps = drawing.refresh_steps
        return priors.draw_given(tokens, streams, drawing, num_steps=steps, replaced=registers, on_step=on_step)

    return Draws(first, again)


def _settled(
    demask: Demask, canvas: Canvas, decoding: Decoding, streams: Streams
) -> tuple[Canvas, Cost, list[bool]]:
    """Fill the positions where given text was healed; also return the cost, and which samples did not need it."""
    nothing = ~(canvas.restricted() & canvas.masked()).any(dim=1)
    if canvas.allowed is None or nothing.all():
        return canvas, NO_COST, [False] * len(canvas)
    canvas, cost = settle(demask, canvas, decoding, streams=streams)
    return canvas, cost, nothing.tolist()
