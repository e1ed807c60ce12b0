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

    Recordings share one memory pool. They may be replayed in any order on one stream: inputs lie outside of the
    pool, and outputs are copied before the next replay.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.forget()

    def forget(self) -> None:
        """Delete all recordings and free their memory."""
        self.recordings: dict[Hashable, Recording] = {}
        with torch.cuda.device(self.device):
            self.pool, self.stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()

    def __call__(self, step: Callable[..., Any], key: Hashable, inputs: Inputs) -> Any:
        shapes = tuple(None if tensor is None else (tensor.shape, tensor.dtype) for tensor in inputs)
        # Streams and pools belong to the current device. Tensors made in inference mode could not be reused.
        with torch.cuda.device(self.device), torch.inference_mode(False), torch.no_grad():
            recording = self.recordings.get((key, shapes))
            if recording is None:
                if len(self.recordings) >= MOST_RECORDINGS:
                    self.forget()
                recording = self.recordings[key, shapes] = Recording(step, inputs, self.pool, self.stream)
            return recording.replay(inputs)


class Recording:
    def __init__(self, step: Callable[..., Any], inputs: Inputs, pool: Any, stream: torch.cuda.Stream) -> None:
        self.inputs = [None if tensor is None else tensor.clone() for tensor in inputs]
        self.last: list[tuple[Tensor, int] | None] = [None] * len(inputs)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step(*self.inputs)  # a warm-up run: lazy initialisation must not be recorded
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool, stream=stream):
            self.outputs = step(*self.inputs)

    def replay(self, inputs: Inputs) -> Any:
        """Return the outputs of the step for these inputs, as new tensors."""
        for index, (recorded, given) in enumerate(zip(self.inputs, inputs, strict=True)):
            if recorded is None or given is None:
                continue
            last, version = self.last[index], None if given.is_inference() else given._version
            # Some inputs, such as registers, are the same tensor in every call: copy only after a change.
            if version is None or last is None or given is not last[0] or version != last[1]:
                recorded.copy_(given)
                self.last[index] = None if version is None else (given, version)
        self.graph.replay()
        if isinstance(self.outputs, Tensor):
            return self.outputs.clone()
        outputs = [None if output is None else output.clone() for output in self.outputs]
        return type(self.outputs)(*outputs) if hasattr(self.outputs, "_fields") else tuple(outputs)  # a NamedTuple
