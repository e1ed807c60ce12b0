"""CUDA graphs: record a step with fixed shapes once, then replay it without launching kernels from the host.

A call of a small network is a few hundred kernels, each shorter than the time it takes the host to launch it.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

MOST_RECORDINGS = 256  # prompts of many lengths would otherwise fill the memory with recordings

Inputs: TypeAlias = Sequence[Tensor | None]
# Executes a step: `play(step, key, inputs)`. Steps with equal keys compute the same function of their inputs.
Play: TypeAlias = Callable[[Callable[..., Any], Hashable, Inputs], Any]


def eager(step: Callable[..., Any], key: Hashable, inputs: Inputs) -> Any:
    """Execute the step directly."""
    return step(*inputs)


class Recorder:
    """Records the first step of each key and shape, and replays it for the following ones.

    Recordings share their memory. PyTorch allows that where they are replayed in the order in which they were
    made, as the calls of a decoding are.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Delete all recordings and free their memory."""
        self.recordings: dict[Hashable, Recording] = {}
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: Callable[..., Any], key: Hashable, inputs: Inputs) -> Any:
        shapes = tuple(None if tensor is None else (tensor.shape, tensor.dtype) for tensor in inputs)
        recording = self.recordings.get((key, shapes))
        if recording is None:
            if len(self.recordings) >= MOST_RECORDINGS:
                self.forget()
            recording = self.recordings[key, shapes] = Recording(step, inputs, self.pool)
        return recording.replay(inputs)


class Recording:
    def __init__(self, step: Callable[..., Any], inputs: Inputs, pool: Any) -> None:
        self.inputs = [None if tensor is None else tensor.clone() for tensor in inputs]
        self.last: list[tuple[Tensor, int] | None] = [None] * len(inputs)
        side_stream = torch.cuda.Stream()
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            step(*self.inputs)  # a warm-up run: lazy initialisation must not be recorded
        torch.cuda.current_stream().wait_stream(side_stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool):
            self.outputs = step(*self.inputs)

    def replay(self, inputs: Inputs) -> Any:
        """Return the outputs of the step for these inputs, as new tensors."""
        for index, (recorded, given) in enumerate(zip(self.inputs, inputs, strict=True)):
            if recorded is None or given is None:
                continue
            last = self.last[index]
            # Some inputs, such as registers, are the same tensor in every call: copy only after a change.
            if last is None or given is not last[0] or given._version != last[1]:
                recorded.copy_(given)
                self.last[index] = (given, given._version)
        self.graph.replay()
        if isinstance(self.outputs, Tensor):
            return self.outputs.clone()
        outputs = [output.clone() for output in self.outputs]
        return type(self.outputs)(*outputs) if hasattr(self.outputs, "_fields") else tuple(outputs)  # a NamedTuple
