"""Distributed training: ranks, sharded weights, and checkpoints that any number of ranks can load.

torchrun starts the processes, FSDP2 shards weights, gradients and moments, and DCP writes and reads the shards as
safetensors (its default format is a pickle). A single process needs no process group.
"""

import logging
import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from crocodil.runtime.atomic import finish_directory, locked, unfinished_directory


@dataclass(frozen=True)
class Ranks:
    """The rank of this process, the number of ranks, and the device of this rank."""

    rank: int = 0
    count: int = 1
    device: str = "cpu"

    @property
    def is_main(self) -> bool:
        """Whether this is the main process, which prints and finishes files."""
        return self.rank == 0

    def share(self, indices: range) -> range:
        """Return this rank's part of a batch, or of another range that all ranks divide among themselves."""
        edges = [indices.start + len(indices) * rank // self.count for rank in (self.rank, self.rank + 1)]
        return range(*edges)

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank. The hosts communicate; no device is synchronised."""
        if self.count == 1:
            return flag
        votes = torch.tensor(int(flag))
        dist.all_reduce(votes)
        return bool(votes)

    def gather(self, value: Float[Tensor, ""]) -> Float[Tensor, "ranks"]:
        """Return the values of all ranks."""
        if self.count == 1:
            return value[None]
        values = value.new_zeros(self.count)
        values[self.rank] = value
        dist.all_reduce(values)
        return values

    def wait(self) -> None:
        """Wait until all ranks have called this."""
        self.any(False)

    def agree(self, text: str) -> str:
        """Return the text of the main rank on all ranks."""
        texts = [text]
        if self.count > 1:
            dist.broadcast_object_list(texts)
        return texts[0]

    def once(self, action: Callable[[], object]) -> None:
        """Run an action on the main rank only. Its errors are raised on all ranks, so that none waits for ever."""
        fault = ""
        if self.is_main:
            try:
                action()
            except (ValueError, OSError) as error:
                if self.count == 1:
                    raise
                fault = str(error)
        if fault := self.agree(fault):
            raise ValueError(fault)


@contextmanager
def ranks(device: str) -> Iterator[Ranks]:
    """Join the processes that torchrun started, one per device; without torchrun there is one rank."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        yield Ranks(device=device)
        return
    if device.startswith("cuda:"):
        raise ValueError(f"torchrun assigns a device to each process: use cuda, not {device}")
    if device == "cuda":
        local_rank, num_devices = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if local_rank >= num_devices:
            raise ValueError(f"process {local_rank} has no device: start at most {num_devices} per machine")
        device = f"cuda:{local_rank}"
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo")
    try:
        with warnings.catch_warnings():
            # A network's output may be a view. FSDP2 warns in case of in-place writes, which no loss makes.
            warnings.filterwarnings("ignore", "FSDP2-wrapped module")
            yield Ranks(dist.get_rank(), dist.get_world_size(), device)
        dist.barrier()  # no rank leaves while others may still communicate with it
    finally:
        dist.destroy_process_group()


def shard(modules: Iterable[nn.Module], blocks: Iterable[nn.Module], ranks: Ranks, *, bf16: bool) -> None:
    """Shard with FSDP2: every rank keeps part of each weight and gathers a block only to compute it."""
    if ranks.count == 1:
        return
    mesh = init_device_mesh(ranks.device.split(":")[0], (ranks.count,))
    # Weights are gathered in half precision and gradients summed in float32. Inputs are not cast: rotary angles
    # would lose too much precision.
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    for module in (*blocks, *modules):
        fully_shard(module, mesh=mesh, mp_policy=policy if bf16 else MixedPrecisionPolicy())


def local(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this rank holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """Return the whole tensor, on every rank."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def save_tensors(tensors: Mapping[str, Tensor], directory: Path) -> None:
    """Write tensors as safetensors; each rank writes its own shards."""
    writer = HuggingFaceStorageWriter(str(directory), save_distributed=True)
    with _plain_errors():
        save(dict(tensors), storage_writer=writer)


def load_tensors(tensors: Mapping[str, Tensor], directory: Path) -> None:
    """Load values into tensors by name, whatever number of ranks wrote them."""
    with _plain_errors():
        load(dict(tensors), storage_reader=HuggingFaceStorageReader(str(directory)))


@contextmanager
def whole_directory_of_all(target: Path, ranks: Ranks) -> Iterator[Path]:
    """Yield a temporary directory for all ranks; on success it becomes `target`, which must not exist yet."""
    unfinished = Path(ranks.agree(str(unfinished_directory(target)) if ranks.is_main else ""))
    try:
        yield unfinished
        ranks.wait()
        if ranks.is_main:
            finish_directory(unfinished, target)
        ranks.wait()
    finally:
        if ranks.is_main:
            shutil.rmtree(unfinished, ignore_errors=True)


@contextmanager
def locked_by_all(directory: Path, ranks: Ranks) -> Iterator[None]:
    """Hold the lock of a directory; the main rank holds it for all ranks."""
    with ExitStack() as lock:
        ranks.once(lambda: lock.enter_context(locked(directory)))
        yield


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Turn DCP's combined exception into an OSError of one line, and silence its single-process warning."""
    logging.disable(logging.ERROR)  # torch would log the whole traceback
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
            yield
    except CheckpointException as error:
        rank, (cause, _) = next(iter(error.failures.items()))
        raise OSError(f"the checkpoint failed on rank {rank}: {cause}") from error
    finally:
        logging.disable(logging.NOTSET)
