"""The training loop: steps, schedules, averages and checkpoints. It knows nothing about diffusion.

A stage says which modules it has, which of them are trained when, and what the loss of a batch is. Every random
draw is named by its step, so a run that is killed and resumed ends with the same weights, bit for bit on a CPU.
"""

import math
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from crocodil.runtime.config import Amount, Count, Decay, Positive, Seed, Share, Weight, config
from crocodil.runtime.distributed import Ranks, full_tensor, local_shard, shard
from crocodil.runtime.progress import progress
from crocodil.seeding import compiled_draws
from crocodil.training.checkpointing import TrainState, checkpoints_in, restore, save, step_of
from crocodil.training.journal import Journal, StepResult, metrics_log
from crocodil.training.optimisers import Muon, hidden_matrices
from crocodil.training.work import Work, matrix_rate

NO_END = 10**8  # steps of a stage that the clock ends
_MAX_COMPILED_SHAPES = 32  # by default torch stops compiling after 8


@config
class LoopConfig:
    num_steps: Amount
    batch_size: Count
    learning_rate: Positive
    num_accumulated: Count = 1  # micro-batches per step of the longest texts; steps of shorter texts have fewer
    warmup_steps: Amount = 0
    decay_share: Share = 1.0  # share of the steps, at the end, over which the learning rate decays to 0
    optimiser: Literal["adamw", "muon"] = "adamw"  # muon: for the matrices of repeated blocks, AdamW for the rest
    weight_decay: Weight = 0.1
    betas: tuple[Decay, Decay] = (0.9, 0.95)  # of AdamW
    clip_norm: Positive = 1.0
    average_decay: Share = 0.999  # of the exponential moving average of the weights
    bf16: bool = False  # autocast; the weights stay float32
    compile_blocks: bool = False  # on one device a prior is compiled whole, not by block
    recompute_blocks: bool = False  # in the backward pass: less memory, more time
    evaluate_every: Count = 500
    save_every: Count = 500
    keep_checkpoints: Count = 2
    seed: Seed = 0

    def __post_init__(self) -> None:
        if self.batch_size % self.num_accumulated:
            raise ValueError(
                f"{self.num_accumulated} micro-batches do not divide a batch of {self.batch_size}: "
                "change num_accumulated or batch_size"
            )

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate: linear warm-up, constant, then a cosine to 0 over the last `decay_share`."""
        rate = self.learning_rate * min(1.0, (step + 1) / max(self.warmup_steps, 1))
        decay_steps = self.decay_share * self.num_steps
        into_decay = step - (self.num_steps - decay_steps)
        if decay_steps and into_decay > 0:
            rate *= 0.5 * (1 + math.cos(math.pi * into_decay / decay_steps))
        return rate

    def micro_batches(self, ranks: Ranks, length_share: float = 1.0) -> Iterator[range]:
        """Yield this rank's indices within the step's batch, one micro-batch at a time.

        `length_share` is the length of the step's texts as a share of the longest. Shorter texts have fewer and
        larger micro-batches, since more of them fit into memory, and the host takes as long to start any of them.
        """
        smallest = self.batch_size // self.num_accumulated
        if smallest % ranks.count:
            raise ValueError(f"{ranks.count} ranks do not divide a micro-batch of {smallest}")
        counts = range(math.ceil(length_share * self.num_accumulated), self.num_accumulated + 1)
        count = next(number for number in counts if self.batch_size % (number * ranks.count) == 0)
        size = self.batch_size // count
        yield from (ranks.share(range(start, start + size)) for start in range(0, self.batch_size, size))


class Turn(NamedTuple):
    """The groups of parameters that are trained in one step, and their learning rate relative to the loop's."""

    train: frozenset[str]
    rate: float = 1.0


@dataclass(frozen=True)
class Phase:
    """The groups of parameters that are trained before the step `until`."""

    until: float
    train: frozenset[str]
    in_turn: tuple[Turn, ...] = ()  # parts of `train`, each for one step; none: all in every step

    def at(self, step: int) -> Turn:
        return self.in_turn[step % len(self.in_turn)] if self.in_turn else Turn(self.train)


@runtime_checkable
class Stage(Protocol):
    """What is trained, and the loss of a batch."""

    name: str

    def modules(self) -> Mapping[str, nn.Module]: ...

    def groups(self) -> Mapping[str, Sequence[nn.Parameter]]: ...

    def phases(self) -> Sequence[Phase]: ...

    def repeated_blocks(self) -> Sequence[nn.Module]: ...

    def compile(self) -> None:
        """Compile what every step runs; used where nothing is sharded or recomputed."""
        ...

    def work(self) -> Work: ...

    def length_share(self, step: int) -> float:
        """Return the length of the step's texts as a share of the longest."""
        ...

    def loss(self, step: int, indices: range) -> Tensor | dict[str, Tensor]:
        """Return the loss, or the parts that it is the sum of, by name; each part is logged."""
        ...

    def evaluate(self) -> dict[str, float]: ...


# ---------------------------------------------------------------- the loop


def train(
    stage: Stage,
    config: LoopConfig,
    out: Path,
    *,
    ranks: Ranks | None = None,
    resume: bool = False,
    max_minutes: float | None = None,
    state: TrainState | None = None,
) -> TrainState:
    """Train a stage to its last step, or until the time is up; the state is saved in either case.

    `state` is what an earlier call returned for the same stage: training goes on from it, and nothing is compiled
    again.
    """
    ranks = ranks or Ranks()
    check_minutes(max_minutes)
    state = state or _first_state(stage, config, out, ranks, resume=resume)
    deadline, first_step = time.monotonic() + 60 * (max_minutes or math.inf), state.step
    total = config.num_steps if config.num_steps < NO_END else None
    with (
        compiled_draws() if config.compile_blocks and ranks.device.startswith("cuda") else nullcontext(),
        metrics_log(out, state.step, written=ranks.is_main) as log,
        _stop_signal() as stop_requested,
        progress(f"training {stage.name}", total, unit="steps", start=state.step, shown=ranks.is_main) as advance,
    ):
        rate = ranks.count * matrix_rate(ranks.device)
        journal = Journal(stage.name, stage.work(), config.batch_size, rate, log, advance)
        while True:
            done = state.step == config.num_steps
            # At least one step is taken, so that a run with any time limit makes progress.
            out_of_time = time.monotonic() > deadline and state.step > first_step
            stopping = ranks.any(stop_requested() or out_of_time)
            evaluates = done or state.step % config.evaluate_every == 0
            saves = done or stopping or (state.step and state.step % config.save_every == 0)
            if evaluates or saves:
                with journal.paused():
                    if evaluates:
                        log({"step": state.step, **_evaluate(stage, state, config)})
                    if saves:
                        save(state, out / "checkpoints", keep=config.keep_checkpoints)
            if done or stopping:
                state.was_stopped = ranks.any(stop_requested())
                return state
            journal.add(state.step, take_step(stage, state, config))


def _first_state(stage: Stage, config: LoopConfig, out: Path, ranks: Ranks, *, resume: bool) -> TrainState:
    """Prepare a stage; return its state before the first step, or that of its newest checkpoint."""
    if ranks.any(has_checkpoints(out)) and not resume:
        raise ValueError(f"{out} already holds a run: continue it with --resume, or choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    prepare(stage, config, ranks)
    state = initial_state(stage, config, ranks)
    if resume:
        restore(state, out / "checkpoints")
        check_num_steps(config, state.step, out)
    return state


def has_checkpoints(out: Path) -> bool:
    """Whether a stage has a checkpoint to resume from."""
    return bool(checkpoints_in(out / "checkpoints"))


def num_steps_done(out: Path) -> int:
    """Return the step of the newest checkpoint of a stage; 0 if there is none."""
    return max((step_of(checkpoint) for checkpoint in checkpoints_in(out / "checkpoints")), default=0)


def check_num_steps(config: LoopConfig, num_done: int, out: Path) -> None:
    if num_done > config.num_steps:
        raise ValueError(f"{out} is already at step {num_done}: num_steps must not be less")


def check_minutes(max_minutes: float | None) -> None:
    if max_minutes is not None and not 0 < max_minutes < math.inf:
        raise ValueError(f"max_minutes is {max_minutes}: give a finite number above 0, or no limit")


def check_ranks(config: LoopConfig, ranks: Ranks) -> None:
    """Refuse a loop that this number of ranks cannot run."""
    list(config.micro_batches(ranks))
    if config.optimiser == "muon" and ranks.count > 1:
        raise ValueError("Muon runs in one process, since it needs unsharded matrices: use optimiser=adamw")


def prepare(stage: Stage, config: LoopConfig, ranks: Ranks) -> None:
    """Set up recomputation, compilation and sharding of the repeated blocks, in this order."""
    check_ranks(config, ranks)
    if config.recompute_blocks:
        for block in stage.repeated_blocks():
            _recompute(block)
    if config.compile_blocks and (config.recompute_blocks or ranks.count > 1):
        compile_each(stage.repeated_blocks())
    elif config.compile_blocks:
        stage.compile()
    shard(list(stage.modules().values()), stage.repeated_blocks(), ranks, bf16=config.bf16)


def compile_each(modules: Iterable[nn.Module]) -> None:
    """Compile each module as one graph. A run has few shapes; each gets its own kernels."""
    limits = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, _MAX_COMPILED_SHAPES)
    for module in modules:
        module.compile(dynamic=False)


def _recompute(block: nn.Module) -> None:
    """Make a block recompute its activations in the backward pass."""
    forward = block.forward

    def checkpointed(*args: Any, **options: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **options)
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **options)

    block.forward = checkpointed


@contextmanager
def _stop_signal() -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether SIGTERM has arrived; the signal does not end the process."""
    received = False

    def receive(*_: object) -> None:
        nonlocal received
        received = True

    previous = signal.signal(signal.SIGTERM, receive)
    try:
        yield lambda: received
    finally:
        signal.signal(signal.SIGTERM, previous)


# ---------------------------------------------------------------- the state


def initial_state(stage: Stage, config: LoopConfig, ranks: Ranks | None = None) -> TrainState:
    """Return the state before the first step."""
    parameters = _trained_parameters(stage)
    optimiser = _optimiser(stage, parameters.values(), config)
    averages = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    return TrainState(parameters, optimiser, averages, ranks=ranks or Ranks())


def _trained_parameters(stage: Stage) -> dict[str, nn.Parameter]:
    """Return the parameters that any phase trains. The others (a frozen backbone) are not part of the state."""
    groups = stage.groups()
    trained = {id(parameter) for phase in stage.phases() for group in phase.train for parameter in groups[group]}
    return {
        f"{module_name}.{name}": parameter
        for module_name, module in stage.modules().items()
        for name, parameter in module.named_parameters()
        if id(parameter) in trained
    }


def _optimiser(stage: Stage, parameters: Collection[nn.Parameter], config: LoopConfig) -> torch.optim.Optimizer:
    """Return the optimiser. No weight decay for norms and biases."""
    hidden = hidden_matrices(stage.repeated_blocks() if config.optimiser == "muon" else ())
    others = [parameter for parameter in parameters if parameter not in hidden]
    decay = {"weight_decay": config.weight_decay}
    groups = [
        {"params": [parameter for parameter in others if parameter.ndim >= 2], **decay},
        {"params": [parameter for parameter in others if parameter.ndim < 2], "weight_decay": 0.0},
    ]
    if config.optimiser == "adamw":
        return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=True)
    matrices = [parameter for parameter in parameters if parameter in hidden]
    groups.append({"params": matrices, "hidden": True, **decay})
    return Muon(groups, lr=config.learning_rate, betas=config.betas)


# ---------------------------------------------------------------- one step


def take_step(stage: Stage, state: TrainState, config: LoopConfig) -> StepResult:
    """Take one optimiser step."""
    turn = turn_at(state.step, stage.phases())
    _unfreeze(stage, turn.train)
    state.optimiser.zero_grad(set_to_none=True)
    losses = _backward(stage, state, config)
    trained = [parameter for parameter in state.parameters.values() if parameter.grad is not None]
    norm = torch.nn.utils.clip_grad_norm_(trained, config.clip_norm)
    learning_rate = turn.rate * config.learning_rate_at(state.step)
    for group in state.optimiser.param_groups:
        group["lr"] = learning_rate
    state.optimiser.step()
    state.step += 1
    _update_averages(state, config.average_decay)
    parts = {name: state.ranks.gather(loss) for name, loss in losses.items()}
    return StepResult(parts.pop("loss"), full_tensor(norm), learning_rate, parts)


def _backward(stage: Stage, state: TrainState, config: LoopConfig) -> dict[str, Tensor]:
    """Compute the gradients of all micro-batches; return this rank's loss by name, and its parts if it has any."""
    device = state.device
    totals = defaultdict[str, Tensor](partial(torch.zeros, (), device=device))
    micro_batches = list(config.micro_batches(state.ranks, stage.length_share(state.step)))
    for indices in micro_batches:
        # Without a cache: copies of weights that are made under `no_grad`, for drafts, have no gradients. PyTorch
        # before #165068 would use them again.
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=config.bf16, cache_enabled=False):
            losses = stage.loss(state.step, indices)
            parts = losses if isinstance(losses, dict) else {"loss": losses}
            loss = torch.stack(list(parts.values())).sum()
        (loss / len(micro_batches)).backward()
        for name, value in {**parts, "loss": loss}.items():
            totals[name] += value.detach() / len(micro_batches)
    return totals


def turn_at(step: int, phases: Sequence[Phase]) -> Turn:
    """Return what is trained at a step. It depends on the step only, so resuming needs no history."""
    return next(phase.at(step) for phase in phases if step < phase.until)


def _unfreeze(stage: Stage, trained: frozenset[str]) -> None:
    for name, parameters in stage.groups().items():
        for parameter in parameters:
            parameter.requires_grad_(name in trained)


# ---------------------------------------------------------------- averages


def _update_averages(state: TrainState, decay: float) -> None:
    """Update the moving averages. Early averages are over fewer steps, since the first weights are noise."""
    decay = min(decay, state.step / (state.step + 10))
    with torch.no_grad():
        averages = [local_shard(average) for average in state.averages.values()]
        weights = [local_shard(parameter) for parameter in state.parameters.values()]
        torch._foreach_lerp_(averages, weights, 1 - decay)


@contextmanager
def averaged_weights(state: TrainState) -> Iterator[None]:
    """Replace the weights by their averages inside the block."""
    weights = {name: parameter.detach().clone() for name, parameter in state.parameters.items()}
    with torch.no_grad():
        for name, parameter in state.parameters.items():
            parameter.copy_(state.averages[name])
        try:
            yield
        finally:
            for name, parameter in state.parameters.items():
                parameter.copy_(weights[name])


def _evaluate(stage: Stage, state: TrainState, config: LoopConfig) -> dict[str, float]:
    modules = stage.modules().values()
    for module in modules:
        module.eval()
    autocast = torch.autocast(state.device.type, dtype=torch.bfloat16, enabled=config.bf16)
    eager = torch.compiler.set_stance("force_eager")  # validation is too short to be worth compiling
    with averaged_weights(state), torch.no_grad(), autocast, eager:
        metrics = stage.evaluate()
    for module in modules:
        module.train()
    return metrics
