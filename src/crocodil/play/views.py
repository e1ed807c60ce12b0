"""What the model does for each view: a request in, events out as they happen.

An event is a JSON object with the field `event`. Texts are told apart by `lane`, such as a method or a mix weight.
`emit` may raise to stop the work: it is called after every demasker call and every diffusion step.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch

from crocodil.metrics import character_error_rate
from crocodil.pipeline import Crocodil, Generation, Given, Method, Registers, Snapshot
from crocodil.play.requests import Autoencode, FieldError, Generate, Interpolate, Request, Steer
from crocodil.play.trace import Trace
from crocodil.processes.registers import interpolate
from crocodil.sampling.configs import Decoding
from crocodil.sampling.cost import NO_COST, Cost
from crocodil.sampling.state import Draw
from crocodil.seeding import Streams
from crocodil.shapes import RegisterBank

Event: TypeAlias = dict[str, Any]
Emit: TypeAlias = Callable[[Event], None]

ENCODED = Cost(encoder_calls=1)  # of each text: two ends of an interpolation are encoded together
SHOWN_NUMBERS = 32  # of a register in the strip
LABELS = {
    Method.BASE: "Base: no registers",
    Method.CON_THEN_DISC: "ConThenDisc: registers drawn once",
    Method.CON_WITHIN_DISC: "ConWithinDisc: registers drawn again half way",
}


def answer(pipe: Crocodil, request: Request, emit: Emit) -> None:
    """Do what a request asks. A value that this model cannot take raises a `FieldError`."""
    match request:
        case Generate():
            _generate(pipe, request, emit)
        case Autoencode():
            _autoencode(pipe, request, emit)
        case Interpolate():
            _interpolate(pipe, request, emit)
        case Steer():
            _steer(pipe, request, emit)


# ---------------------------------------------------------------- what a model has


def methods_of(pipe: Crocodil) -> list[Method]:
    """Return the methods that a model can generate with."""
    methods = [Method.BASE]
    if num_drawn(pipe):
        methods.append(Method.CON_THEN_DISC)
    if pipe.conditional is not None:
        methods.append(Method.CON_WITHIN_DISC)
    return methods


def num_drawn(pipe: Crocodil) -> int:
    """Return how many registers the prior draws; 0 without a prior."""
    prior = pipe.first_prior
    return 0 if prior is None else prior.config.num_registers


def num_guiding(pipe: Crocodil) -> int:
    """Return how many drawn registers guide a generation."""
    return min(pipe.settings.drawing.num_registers or num_drawn(pipe), num_drawn(pipe))


# ---------------------------------------------------------------- one text


class Lane:
    """Tells a page about one text: its canvas after each call, the cost so far, and the text."""

    def __init__(
        self,
        pipe: Crocodil,
        emit: Emit,
        name: str,
        label: str,
        *,
        num_registers: int | None,
        spent: Cost = NO_COST,
        since: float | None = None,
    ) -> None:
        """`spent` is what the text has cost before it is decoded, and `since` is when this work began."""
        self.pipe, self.name, self.label, self.num_registers, self.spent = pipe, name, label, num_registers, spent
        self._emit, self.denoiser_calls, self.calls_made = emit, 0, 0
        self.started_at = time.perf_counter() if since is None else since

    def emit(self, event: str, **about: Any) -> None:
        self._emit({"event": event, "lane": self.name, **about})

    def start(self, tokens: Sequence[int], num_calls: int) -> None:
        self.trace = Trace(tokens, self.pipe.tokenizer)
        cells = self.trace.first_cells()
        self.emit("start", label=self.label, length=len(tokens), calls=num_calls, cells=cells)

    def on_step(self, done: int, num_steps: int) -> None:
        self.emit("drawing", step=done, steps=num_steps)

    def on_call(self, snapshot: Snapshot) -> None:
        drawn = snapshot.cost.denoiser_calls
        refresh = self.calls_made > 0 and drawn > self.denoiser_calls
        self.denoiser_calls, self.calls_made = drawn, self.calls_made + 1
        cells = self.trace.changed_cells(snapshot.tokens[0].tolist(), snapshot.log_prob[0].tolist())
        cost = self.cost(snapshot.cost, time.perf_counter() - self.started_at)
        self.emit("call", call=snapshot.call + 1, cells=cells, refresh=refresh, cost=cost)

    def cost(self, cost: Cost, seconds: float) -> dict[str, float]:
        cost, length = cost + self.spent, len(self.trace.tokens)
        flop_nfe = self.pipe.flop_nfe(cost, length=length, num_registers=self.num_registers)
        return {"nfe": round(self.pipe.nfe(cost), 2), "flop_nfe": round(flop_nfe, 2), "seconds": round(seconds, 2)}

    def finish(self, made: Generation, **about: Any) -> None:
        cost = self.cost(made.costs[0], time.perf_counter() - self.started_at)
        self.emit("text", text=made.texts[0], note=made.note, cost=cost, **about)


# ---------------------------------------------------------------- views


def _generate(pipe: Crocodil, request: Generate, emit: Emit) -> None:
    given = Given(prefix=request.prefix, suffix=request.suffix)
    methods = [Method(name) for name in request.methods]
    if missing := [method for method in methods if method not in methods_of(pipe)]:
        raise FieldError("methods", f"this model has no prior for {missing[0]}")
    if given and pipe.conditional is None and methods != [Method.BASE]:
        raise FieldError("methods", "this model has no conditional prior: only base completes a text")
    tokens = _checked_canvas(pipe, request, given)
    lanes = [_method_lane(pipe, emit, method) for method in methods]
    for lane in lanes:
        lane.start(tokens, request.calls)
    for method, lane in zip(methods, lanes, strict=True):
        lane.started_at = time.perf_counter()
        made = pipe.generate(
            1,
            method=method,
            length=request.length,
            seed=request.seed,
            given=given,
            calls=request.calls,
            on_call=lane.on_call,
            on_step=lane.on_step,
        )
        lane.finish(made)


def _method_lane(pipe: Crocodil, emit: Emit, method: Method) -> Lane:
    count = None if method is Method.BASE else num_guiding(pipe)
    return Lane(pipe, emit, str(method), LABELS[method], num_registers=count)


def _autoencode(pipe: Crocodil, request: Autoencode, emit: Emit) -> None:
    since, text = time.perf_counter(), _fitting(pipe, request.text, "text", emit)
    if request.registers > (most := pipe.demasker.config.num_registers):
        raise FieldError("registers", f"this model has {most} registers, not {request.registers}")
    registers = pipe.encode([text], cut=True)
    _tell_registers(pipe, registers.bank, emit, num_used=request.registers)
    kept = registers[:, : request.registers]
    made, lane = _decoded(pipe, kept, request.calls, emit, str(request.registers), "Decoded text", ENCODED, since)
    lane.finish(made, cer=round(character_error_rate(text, made.texts[0]), 4))


def _interpolate(pipe: Crocodil, request: Interpolate, emit: Emit) -> None:
    texts = [_fitting(pipe, getattr(request, name), name, emit) for name in ("first", "second")]
    ends = pipe.encode(texts, cut=True)
    first, second = ends.bank.split(1)
    for step in _ends_first(request.steps):
        weight = step / (request.steps - 1)
        mixed = Registers(interpolate(first, second, mix_weight=weight), ends.length)
        made, lane = _decoded(pipe, mixed, request.calls, emit, str(step), f"Mix weight {weight:.2f}", ENCODED)
        lane.finish(made, weight=weight)


def _ends_first(steps: int) -> list[int]:
    """Return 0, the last, then the others from the middle outwards."""
    inner = sorted(range(1, steps - 1), key=lambda step: abs(step - (steps - 1) / 2))
    return [0, steps - 1, *inner]


def _steer(pipe: Crocodil, request: Steer, emit: Emit) -> None:
    since = time.perf_counter()
    registers, spent = _steered(pipe, request, emit)
    _tell_registers(pipe, registers.bank, emit, num_used=registers.shape[1])
    made, lane = _decoded(pipe, registers, request.calls, emit, "steered", "Decoded text", spent, since)
    lane.finish(made)


def _steered(pipe: Crocodil, request: Steer, emit: Emit) -> tuple[Registers, Cost]:
    """Return the registers of the text or the seed, some of them drawn again, some with noise, and their cost."""
    if request.text:
        text = _fitting(pipe, request.text, "text", emit)
        registers, spent = pipe.encode([text], cut=True), ENCODED
    elif not num_drawn(pipe):
        raise FieldError("text", "this model has no prior to draw registers from: give a text")
    else:
        _checked_canvas(pipe, request, Given())
        drawn = _drawn(pipe, request.seed, request.length, emit)
        registers, spent = Registers(drawn.registers[:, : num_guiding(pipe)], request.length), drawn.cost
    count = registers.shape[1]
    _check_numbers("redrawn", request.redrawn, min(count, num_drawn(pipe)))
    _check_numbers("noised", request.noised, count)
    bank = registers.bank.clone()
    if request.redrawn:
        chosen = list(request.redrawn)
        drawn = _drawn(pipe, request.redraw_seed, registers.length, emit)
        bank[:, chosen], spent = drawn.registers[:, chosen].to(bank.dtype), spent + drawn.cost
    if request.noised and request.noise:
        streams = Streams.of("play noise", request.noise_seed, samples=[0], device=bank.device)
        noise, chosen = streams.normal(*bank.shape[1:]).to(bank.dtype), list(request.noised)
        bank[:, chosen] += request.noise * noise[:, chosen]
    return Registers(bank, registers.length), spent


def _drawn(pipe: Crocodil, seed: int, length: int, emit: Emit) -> Draw:
    """Draw the registers that ConThenDisc draws first with this seed."""
    streams = Streams.of("generate", seed, samples=[0], device=pipe.device).at("prior")

    def on_step(done: int, num_steps: int) -> None:
        emit({"event": "drawing", "lane": "steered", "step": done, "steps": num_steps})

    with torch.no_grad():
        return pipe.draw(streams, length=length, on_step=on_step)


def _decoded(
    pipe: Crocodil,
    registers: Registers,
    calls: int,
    emit: Emit,
    name: str,
    label: str,
    spent: Cost,
    since: float | None = None,
) -> tuple[Generation, Lane]:
    """Decode registers at temperature 0: the text then depends on the registers alone."""
    canvas = pipe.canvas(registers.length).tokens[0].tolist()
    _check_calls(Decoding(), calls, registers.length)
    lane = Lane(pipe, emit, name, label, num_registers=registers.shape[1], spent=spent, since=since)
    lane.start(canvas, calls)
    return pipe.decode(registers, calls=calls, on_call=lane.on_call), lane


def _tell_registers(pipe: Crocodil, bank: RegisterBank, emit: Emit, *, num_used: int) -> None:
    """Send the first numbers of each register, in tenths of a standard deviation."""
    values = (bank[0, :, :SHOWN_NUMBERS].float() * 10).round().clamp(-99, 99).int().tolist()
    emit({"event": "registers", "values": values, "used": num_used, "drawable": num_drawn(pipe)})


# ---------------------------------------------------------------- checks


def _fitting(pipe: Crocodil, text: str, field: str, emit: Emit) -> str:
    """Return the part of a text that the model can hold; tell the page if something is cut."""
    if not text.strip():
        raise FieldError(field, "give a text")
    kept, lost = pipe.fitting(text)
    if lost:
        note = f"cut to {pipe.settings.lengths[-1]} tokens: {len(lost):,} characters are lost"
        emit({"event": "note", "field": field, "text": note, "kept": len(kept)})
    return kept


def _checked_canvas(pipe: Crocodil, request: Generate | Steer, given: Given) -> list[int]:
    """Return the canvas before the first call."""
    try:
        length = pipe.settings.canvas(request.length)
    except ValueError as error:
        raise FieldError("length", str(error)) from None
    _check_calls(pipe.settings.decoding, request.calls, length)
    try:
        return pipe.canvas(length, given).tokens[0].tolist()
    except ValueError as error:
        raise FieldError("prefix", str(error)) from None


def _check_calls(decoding: Decoding, calls: int, length: int) -> None:
    try:
        replace(decoding, calls=calls).plan(length)
    except ValueError as error:
        raise FieldError("calls", str(error).removeprefix("DecodePlan: ")) from None


def _check_numbers(field: str, numbers: Sequence[int], count: int) -> None:
    if wrong := [number for number in numbers if not 0 <= number < count]:
        raise FieldError(field, f"there is no register {wrong[0] + 1}: take 1 to {count}")  # as the page counts
