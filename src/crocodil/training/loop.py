"""The training loop: steps, gradients, learning rate, averages, checkpoints. It knows no diffusion.

A stage says what its modules are, what is trained when, and what a batch costs. Everything random is named by the
step, so a run that is killed and resumed ends with the same weights, bit for bit on a CPU.
"""

import json
import math
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from crocodil.progress import Advance, progress
from crocodil.training.checkpointing import TrainState, restore, save

METRICS_FILE = "metrics.jsonl"


@dataclass(frozen=True)
class Phase:
    """Which groups of parameters are trained until a step."""

    until: float
    train: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    num_steps: int
    batch_size: int
    learning_rate: float
    num_accumulated: int = 1  # micro-batches a step
    warmup_steps: int = 0
    decay_share: float = 1.0  # of the steps, at the end: 1 is a cosine from the start, less is stable, then decay
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip_norm: float = 1.0
    average_decay: float = 0.999  # of the exponential moving average of the weights
    bf16: bool = False  # autocast; the weights themselves stay float32
    compile_blocks: bool = False
    evaluate_every: int = 500
    save_every: int = 500
    keep_checkpoints: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        if self.batch_size % self.num_accumulated:
            raise ValueError(f"{self.num_accumulated} micro-batches do not divide a batch of {self.batch_size}")
        if not 0 <= self.decay_share <= 1:
            raise ValueError(f"decay_share is a share of the steps, not {self.decay_share}")

    def learning_rate_at(self, step: int) -> float:
        """Linear warm-up, a stable stretch, and a cosine to zero over the last `decay_share` of the steps."""
        rate = self.learning_rate * min(1.0, (step + 1) / max(self.warmup_steps, 1))
        decay_steps = self.decay_share * self.num_steps
        into_decay = step - (self.num_steps - decay_steps)
        if decay_steps and into_decay > 0:
            rate *= 0.5 * (1 + math.cos(math.pi * into_decay / decay_steps))
        return rate

    def micro_batches(self) -> Iterator[range]:
        """Places within a step's batch, a micro-batch at a time."""
        size = self.batch_size // self.num_accumulated
        yield from (range(start, start + size) for start in range(0, self.batch_size, size))


@runtime_checkable
class Stage(Protocol):
    """What is trained and how a batch is judged."""

    name: str

    def modules(self) -> Mapping[str, nn.Module]: ...

    def groups(self) -> Mapping[str, Sequence[nn.Parameter]]: ...

    def phases(self) -> Sequence[Phase]: ...

    def repeated_blocks(self) -> Sequence[nn.Module]: ...

    def loss(self, step: int, places: range) -> Tensor: ...

    def evaluate(self) -> dict[str, float]: ...


def train(
    stage: Stage, config: LoopConfig, out: Path, *, resume: bool = False, max_minutes: float | None = None
) -> TrainState:
    """Run a stage to its last step, or as far as the time allows; the state is saved in either case."""
    if not resume and (out / "checkpoints").exists():
        raise ValueError(f"{out} holds a run already: resume it, or choose another directory")
    out.mkdir(parents=True, exist_ok=True)
    state = start(stage, config)
    if resume:
        restore(state, out / "checkpoints")
    for block in stage.repeated_blocks() if config.compile_blocks else ():
        block.compile()
    deadline, first_step = time.monotonic() + 60 * (max_minutes or math.inf), state.step
    with (
        _metrics(out, state.step) as log,
        _stop_signal() as stop,
        progress(f"training {stage.name}", config.num_steps, unit="steps") as advance,
    ):
        advance(state.step)
        journal = Journal(stage.name, config, log, advance)
        while True:
            done = state.step == config.num_steps
            # Out of time, but not before the first step: a run with any limit gets on.
            stopping = stop() or (time.monotonic() > deadline and state.step > first_step)
            evaluates = done or state.step % config.evaluate_every == 0
            saves = done or stopping or (state.step and state.step % config.save_every == 0)
            if evaluates or saves:
                journal.catch_up()
            if evaluates:
                log({"step": state.step, **_evaluated(stage, state)})
            if saves:
                save(state, out / "checkpoints", keep=config.keep_checkpoints)
            if done or stopping:
                return state
            journal.add(state.step, take_step(stage, state, config))


class Journal:
    """Writes down each step, one step late: to wait for a loss would leave the device without work.

    Nothing is saved of a step that was not looked at.
    """

    def __init__(self, stage: str, config: LoopConfig, log: Any, advance: Advance) -> None:
        self.stage, self.config, self.log, self.advance = stage, config, log, advance
        self.pending: list[tuple[int, Outcome]] = []
        self.last_at = time.perf_counter()

    def add(self, step: int, outcome: "Outcome") -> None:
        self.pending.append((step, outcome))
        while len(self.pending) > 1:
            self._record(*self.pending.pop(0))

    def catch_up(self) -> None:
        while self.pending:
            self._record(*self.pending.pop(0))

    def _record(self, step: int, outcome: "Outcome") -> None:
        loss, norm = (value.item() for value in outcome)
        if not math.isfinite(loss):
            raise FloatingPointError(f"stage {self.stage}: loss {loss} at step {step}")
        now = time.perf_counter()
        row = {"step": step + 1, "loss": loss, "gradient_norm": norm}
        rate = self.config.learning_rate_at(step)
        self.log({**row, "learning_rate": rate, "step_s": round(now - self.last_at, 4)})
        self.last_at = now
        self.advance(1, f"loss {loss:.3f}")


def start(stage: Stage, config: LoopConfig) -> TrainState:
    """The state before the first step."""
    parameters = [parameter for module in stage.modules().values() for parameter in module.parameters()]
    optimiser = torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ],
        lr=config.learning_rate,
        betas=config.betas,
        fused=True,
    )
    state = TrainState(stage.modules(), optimiser, {})
    state.averages = {name: one.detach().clone() for name, one in state.parameters().items()}
    return state


class Outcome(NamedTuple):
    """Of one step; still on the device."""

    loss: Tensor
    gradient_norm: Tensor


def take_step(stage: Stage, state: TrainState, config: LoopConfig) -> Outcome:
    """One optimiser step."""
    _unfreeze(stage, trained_at(state.step, stage.phases()))
    state.optimiser.zero_grad(set_to_none=True)
    device = next(iter(state.parameters().values())).device.type
    total = torch.zeros((), device=device)
    for places in config.micro_batches():
        with torch.autocast(device, dtype=torch.bfloat16, enabled=config.bf16):
            loss = stage.loss(state.step, places) / config.num_accumulated
        loss.backward()
        total += loss.detach()
    trained = [parameter for parameter in state.parameters().values() if parameter.grad is not None]
    norm = torch.nn.utils.clip_grad_norm_(trained, config.clip_norm)
    for group in state.optimiser.param_groups:
        group["lr"] = config.learning_rate_at(state.step)
    state.optimiser.step()
    state.step += 1
    _average(state, config.average_decay)
    return Outcome(total, norm)


def trained_at(step: int, phases: Sequence[Phase]) -> frozenset[str]:
    """The groups that a step trains; resuming in the middle needs no memory of what came before."""
    return next(phase.train for phase in phases if step < phase.until)


@contextmanager
def averaged_weights(state: TrainState) -> Iterator[None]:
    """The modules with their averages in place of their weights."""
    kept = {name: one.detach().clone() for name, one in state.parameters().items()}
    with torch.no_grad():
        for name, parameter in state.parameters().items():
            parameter.copy_(state.averages[name])
        try:
            yield
        finally:
            for name, parameter in state.parameters().items():
                parameter.copy_(kept[name])


def _unfreeze(stage: Stage, trained: frozenset[str]) -> None:
    for name, parameters in stage.groups().items():
        for parameter in parameters:
            parameter.requires_grad_(name in trained)


def _average(state: TrainState, decay: float) -> None:
    """Young runs average over fewer steps: the first weights are noise."""
    decay = min(decay, state.step / (state.step + 10))
    with torch.no_grad():
        averages = list(state.averages.values())
        torch._foreach_lerp_(averages, list(state.parameters().values()), 1 - decay)


def _evaluated(stage: Stage, state: TrainState) -> dict[str, float]:
    for module in state.modules.values():
        module.eval()
    with averaged_weights(state), torch.no_grad():
        found = stage.evaluate()
    for module in state.modules.values():
        module.train()
    return found


@contextmanager
def _metrics(out: Path, first_step: int) -> Iterator[Any]:
    """Append rows to metrics.jsonl; rows of what will be done again are dropped first."""
    file = out / METRICS_FILE
    if file.exists():
        rows = [line for line in file.read_text().splitlines() if _still_true(line, first_step)]
        file.write_text("".join(f"{row}\n" for row in rows))
    with file.open("a") as lines:

        def log(row: dict[str, Any]) -> None:
            lines.write(json.dumps(row) + "\n")
            lines.flush()

        yield log


def _still_true(line: str, first_step: int) -> bool:
    """A killed run may have logged past its checkpoint, and half a line."""
    try:
        row = json.loads(line)
    except ValueError:
        return False
    return row["step"] < first_step or (row["step"] == first_step and "loss" in row)


@contextmanager
def _stop_signal() -> Iterator[Any]:
    """SIGTERM asks the loop to save and end, rather than ending the process."""
    asked = False

    def ask(*_: object) -> None:
        nonlocal asked
        asked = True

    before = signal.signal(signal.SIGTERM, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGTERM, before)
