"""The training loop: steps, gradients, learning rate, averages, checkpoints. It knows no diffusion.

A stage says what its modules are, what is trained when, and what a batch costs. Everything random is named by the
step, so a run that is killed and resumed ends with the same weights, bit for bit on a CPU.
"""

import math
import signal
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from crocodil.runtime.config import Amount, Count, Decay, Positive, Seed, Share, Weight, config
from crocodil.runtime.distributed import Ranks, local, shard, whole
from crocodil.runtime.progress import progress
from crocodil.training.checkpointing import TrainState, checkpoints_in, restore, save
from crocodil.training.journal import Journal, Outcome, metrics_log
from crocodil.training.optimisers import Muon, hidden_matrices
from crocodil.training.work import Work, matrix_rate


@dataclass(frozen=True)
class Phase:
    """Which groups of parameters are trained until a step."""

    until: float
    train: frozenset[str]


@config
class LoopConfig:
    num_steps: Amount
    batch_size: Count
    learning_rate: Positive
    num_accumulated: Count = 1  # micro-batches a step
    warmup_steps: Amount = 0
    decay_share: Share = 1.0  # of the steps, at the end: 1 is a cosine from the start, less is stable, then decay
    optimiser: Literal["adamw", "muon"] = "adamw"  # Muon takes the matrices of repeated blocks
    weight_decay: Weight = 0.1
    betas: tuple[Decay, Decay] = (0.9, 0.95)  # of AdamW
    clip_norm: Positive = 1.0
    average_decay: Share = 0.999  # of the exponential moving average of the weights
    bf16: bool = False  # autocast; the weights themselves stay float32
    compile_blocks: bool = False
    recompute_blocks: bool = False  # in the backward pass: memory for time
    evaluate_every: Count = 500
    save_every: Count = 500
    keep_checkpoints: Count = 2
    seed: Seed = 0

    def __post_init__(self) -> None:
        if self.batch_size % self.num_accumulated:
            raise ValueError(f"{self.num_accumulated} micro-batches do not divide a batch of {self.batch_size}")

    def learning_rate_at(self, step: int) -> float:
        """Linear warm-up, a stable stretch, and a cosine to zero over the last `decay_share` of the steps."""
        rate = self.learning_rate * min(1.0, (step + 1) / max(self.warmup_steps, 1))
        decay_steps = self.decay_share * self.num_steps
        into_decay = step - (self.num_steps - decay_steps)
        if decay_steps and into_decay > 0:
            rate *= 0.5 * (1 + math.cos(math.pi * into_decay / decay_steps))
        return rate

    def micro_batches(self, ranks: Ranks) -> Iterator[range]:
        """This rank's places within a step's batch, a micro-batch at a time."""
        size = self.batch_size // self.num_accumulated
        if size % ranks.count:
            raise ValueError(f"{ranks.count} ranks do not divide a micro-batch of {size}")
        yield from (ranks.share(range(start, start + size)) for start in range(0, self.batch_size, size))


@runtime_checkable
class Stage(Protocol):
    """What is trained and how a batch is judged."""

    name: str

    def modules(self) -> Mapping[str, nn.Module]: ...

    def groups(self) -> Mapping[str, Sequence[nn.Parameter]]: ...

    def phases(self) -> Sequence[Phase]: ...

    def repeated_blocks(self) -> Sequence[nn.Module]: ...

    def work(self) -> Work: ...

    def loss(self, step: int, places: range) -> Tensor: ...

    def evaluate(self) -> dict[str, float]: ...


def train(
    stage: Stage,
    config: LoopConfig,
    out: Path,
    *,
    ranks: Ranks | None = None,
    resume: bool = False,
    max_minutes: float | None = None,
) -> TrainState:
    """Run a stage to its last step, or as far as the time allows; the state is saved in either case."""
    ranks = ranks or Ranks()
    check_minutes(max_minutes)
    if ranks.any(has_begun(out)) and not resume:
        raise ValueError(f"{out} holds a run already: go on with --resume, or choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    prepare(stage, config, ranks)
    state = start(stage, config, ranks)
    if resume:
        restore(state, out / "checkpoints")
        if state.step > config.num_steps:
            raise ValueError(f"{out} is at step {state.step} already: num_steps {config.num_steps} is less")
    deadline, first_step = time.monotonic() + 60 * (max_minutes or math.inf), state.step
    with (
        metrics_log(out, state.step, written=ranks.speaks) as log,
        _stop_signal() as stop,
        progress(f"training {stage.name}", config.num_steps, unit="steps", shown=ranks.speaks) as advance,
    ):
        advance(state.step)
        rate = ranks.count * matrix_rate(ranks.device)
        journal = Journal(stage.name, stage.work(), config.batch_size, rate, log, advance)
        while True:
            done = state.step == config.num_steps
            # Out of time, but not before the first step: a run with any limit gets on.
            stopping = ranks.any(stop() or (time.monotonic() > deadline and state.step > first_step))
            evaluates = done or state.step % config.evaluate_every == 0
            saves = done or stopping or (state.step and state.step % config.save_every == 0)
            if evaluates or saves:
                with journal.paused():
                    if evaluates:
                        log({"step": state.step, **_evaluated(stage, state, config)})
                    if saves:
                        save(state, out / "checkpoints", keep=config.keep_checkpoints)
            if done or stopping:
                return state
            journal.add(state.step, take_step(stage, state, config))


def has_begun(out: Path) -> bool:
    """Whether there is something to go on from."""
    return bool(checkpoints_in(out / "checkpoints"))


def check_minutes(max_minutes: float | None) -> None:
    if max_minutes is not None and not 0 < max_minutes < math.inf:
        raise ValueError(f"{max_minutes} minutes: give a number above 0, or no limit at all")


def check_ranks(config: LoopConfig, ranks: Ranks) -> None:
    """Whether this many processes can share a step."""
    list(config.micro_batches(ranks))
    if config.optimiser == "muon" and ranks.count > 1:
        raise ValueError("Muon runs in one process: it needs whole matrices, and several ranks shard them")


def prepare(stage: Stage, config: LoopConfig, ranks: Ranks) -> None:
    """Repeated blocks recomputed, compiled and sharded, in this order, as the run says."""
    check_ranks(config, ranks)
    for block in stage.repeated_blocks():
        if config.recompute_blocks:
            _recompute(block)
        if config.compile_blocks:
            block.compile(dynamic=False)  # a run has few shapes, and each deserves its own kernels
    shard(stage.modules().values(), stage.repeated_blocks(), ranks, bf16=config.bf16)


def start(stage: Stage, config: LoopConfig, ranks: Ranks | None = None) -> TrainState:
    """The state before the first step."""
    parameters = _learned(stage)
    optimiser = _optimiser(stage, parameters.values(), config)
    averages = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    return TrainState(parameters, optimiser, averages, ranks=ranks or Ranks())


def _optimiser(stage: Stage, parameters: Collection[nn.Parameter], config: LoopConfig) -> torch.optim.Optimizer:
    """What is a vector does not decay."""
    hidden = hidden_matrices(stage.repeated_blocks() if config.optimiser == "muon" else ())
    others = [one for one in parameters if one not in hidden]
    decay = {"weight_decay": config.weight_decay}
    groups = [
        {"params": [one for one in others if one.ndim >= 2], **decay},
        {"params": [one for one in others if one.ndim < 2], "weight_decay": 0.0},
    ]
    if config.optimiser == "adamw":
        return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=True)
    groups.append({"params": [one for one in parameters if one in hidden], "hidden": True, **decay})
    return Muon(groups, lr=config.learning_rate, betas=config.betas)


def _learned(stage: Stage) -> dict[str, nn.Parameter]:
    """What some phase trains; what never learns (a backbone under adapters) is no part of the state."""
    groups = stage.groups()
    learned = {id(one) for phase in stage.phases() for group in phase.train for one in groups[group]}
    return {
        f"{module_name}.{name}": parameter
        for module_name, module in stage.modules().items()
        for name, parameter in module.named_parameters()
        if id(parameter) in learned
    }


def take_step(stage: Stage, state: TrainState, config: LoopConfig) -> Outcome:
    """One optimiser step."""
    _unfreeze(stage, trained_at(state.step, stage.phases()))
    state.optimiser.zero_grad(set_to_none=True)
    total = _differentiate(stage, state, config)
    trained = [parameter for parameter in state.parameters.values() if parameter.grad is not None]
    norm = torch.nn.utils.clip_grad_norm_(trained, config.clip_norm)
    learning_rate = config.learning_rate_at(state.step)
    for group in state.optimiser.param_groups:
        group["lr"] = learning_rate
    state.optimiser.step()
    state.step += 1
    _average(state, config.average_decay)
    return Outcome(state.ranks.gather(total), whole(norm), learning_rate)


def _differentiate(stage: Stage, state: TrainState, config: LoopConfig) -> Tensor:
    """The loss; its gradients stay at the parameters."""
    device = state.device
    total = torch.zeros((), device=device)
    for places in config.micro_batches(state.ranks):
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=config.bf16):
            loss = stage.loss(state.step, places) / config.num_accumulated
        loss.backward()
        total += loss.detach()
    return total


def trained_at(step: int, phases: Sequence[Phase]) -> frozenset[str]:
    """The groups that a step trains; resuming in the middle needs no memory of what came before."""
    return next(phase.train for phase in phases if step < phase.until)


@contextmanager
def averaged_weights(state: TrainState) -> Iterator[None]:
    """The modules with their averages in place of their weights."""
    kept = {name: one.detach().clone() for name, one in state.parameters.items()}
    with torch.no_grad():
        for name, parameter in state.parameters.items():
            parameter.copy_(state.averages[name])
        try:
            yield
        finally:
            for name, parameter in state.parameters.items():
                parameter.copy_(kept[name])


def _unfreeze(stage: Stage, trained: frozenset[str]) -> None:
    for name, parameters in stage.groups().items():
        for parameter in parameters:
            parameter.requires_grad_(name in trained)


def _recompute(block: nn.Module) -> None:
    forward = block.forward

    def again(*args: Any, **options: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **options)
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **options)

    block.forward = again


def _average(state: TrainState, decay: float) -> None:
    """Young runs average over fewer steps: the first weights are noise."""
    decay = min(decay, state.step / (state.step + 10))
    with torch.no_grad():
        averages, weights = ([local(one) for one in some.values()] for some in (state.averages, state.parameters))
        torch._foreach_lerp_(averages, weights, 1 - decay)


def _evaluated(stage: Stage, state: TrainState, config: LoopConfig) -> dict[str, float]:
    modules = stage.modules().values()
    for module in modules:
        module.eval()
    autocast = torch.autocast(state.device.type, dtype=torch.bfloat16, enabled=config.bf16)
    eager = torch.compiler.set_stance("force_eager")  # too little work to compile anything for
    with averaged_weights(state), torch.no_grad(), autocast, eager:
        found = stage.evaluate()
    for module in modules:
        module.train()
    return found


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
