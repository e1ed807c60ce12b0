"""CUDA graphs: a step whose shapes do not change is recorded once and replayed without the host's help.

A small network's call is a few hundred kernels, each shorter than the time the host takes to launch it.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

Inputs: TypeAlias = Sequence[Tensor | None]
# Executes a step: `play(step, key, inputs)`. Steps with equal keys compute the same function of their inputs.
Play: TypeAlias = Callable[[Callable[..., Any], Hashable, Inputs], Any]


def eager(step: Callable[..., Any], key: Hashable, inputs: Inputs) -> Any:
    """Execute the step directly."""
    return step(*inputs)


class Recorder:
    """Plays steps: the first of each key and shape is recorded, the others are replays of it.

    Recordings share their memory unless told otherwise. PyTorch allows that where they are replayed in the order
    in which they were made, as the calls of a decoding are.
    """

    def __init__(self, *, share_memory: bool = True) -> None:
        self.share_memory = share_memory
        self.forget()

    def forget(self) -> None:
        """All recordings and their memory."""
        self.recordings: dict[Hashable, Recording] = {}
        self.pool = torch.cuda.graph_pool_handle() if self.share_memory else None

    def __call__(self, step: Callable[..., Any], key: Hashable, inputs: Inputs) -> Any:
        shapes = tuple(None if one is None else (one.shape, one.dtype) for one in inputs)
        recording = self.recordings.get((key, shapes))
        if recording is None:
            recording = self.recordings[key, shapes] = Recording(step, inputs, self.pool)
        return recording.replay(inputs)


class Recording:
    def __init__(self, step: Callable[..., Any], inputs: Inputs, pool: Any) -> None:
        self.inputs = [None if one is None else one.clone() for one in inputs]
        self.last: list[tuple[Tensor, int] | None] = [None] * len(inputs)
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            step(*self.inputs)  # what is chosen or allocated on first use must not be recorded
        torch.cuda.current_stream().wait_stream(beside)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool):
            self.outputs = step(*self.inputs)

    def replay(self, inputs: Inputs) -> Any:
        """What the step gives for these inputs, as tensors of the caller's own."""
        for number, (own, given) in enumerate(zip(self.inputs, inputs, strict=True)):
            if own is None or given is None:
                continue
            last = self.last[number]
            # Registers, say, are one tensor from call to call: not copied again unless somebody wrote into it.
            if last is None or given is not last[0] or given._version != last[1]:
                own.copy_(given)
                self.last[number] = (given, given._version)
        self.graph.replay()
        if isinstance(self.outputs, Tensor):
            return self.outputs.clone()
        return tuple(one.clone() for one in self.outputs)
