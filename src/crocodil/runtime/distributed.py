"""Several processes: who they are, how weights are shared among them, and a state that any number can load.

PyTorch's own engine: torchrun starts the processes, FSDP2 shards weights, gradients and moments, DCP writes and
reads the shards (as safetensors: its own format is a pickle). One process needs no group and pays for nothing.
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
    """This process among all of them."""

    rank: int = 0
    count: int = 1
    device: str = "cpu"

    @property
    def is_main(self) -> bool:
        """Whether this process talks to a person and finishes files."""
        return self.rank == 0

    def share(self, places: range) -> range:
        """This rank's part of a batch, or of anything that all ranks do together."""
        edges = [places.start + len(places) * rank // self.count for rank in (self.rank, self.rank + 1)]
        return range(*edges)

    def any(self, flag: bool) -> bool:
        """Whether any rank says so; asked between the hosts, so that no device is waited for."""
        if self.count == 1:
            return flag
        votes = torch.tensor(int(flag))
        dist.all_reduce(votes)
        return bool(votes)

    def gather(self, value: Float[Tensor, ""]) -> Float[Tensor, "ranks"]:
        """The number that each rank holds, on its device."""
        if self.count == 1:
            return value[None]
        values = value.new_zeros(self.count)
        values[self.rank] = value
        dist.all_reduce(values)
        return values

    def wait(self) -> None:
        """Until every rank is here."""
        self.any(False)

    def agree(self, text: str) -> str:
        """What the speaking rank says."""
        said = [text]
        if self.count > 1:
            dist.broadcast_object_list(said)
        return said[0]

    def once(self, action: Callable[[], object]) -> None:
        """Done by the speaking rank alone; what goes wrong there ends every rank, so that none waits for it."""
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
    """The processes that torchrun started, one for each device; a process of its own is all of them."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        yield Ranks(device=device)
        return
    if device.startswith("cuda:"):
        raise ValueError(f"torchrun gives each process a device of its own: take cuda, not {device}")
    if device == "cuda":
        own = int(os.environ["LOCAL_RANK"])
        if own >= torch.cuda.device_count():
            raise ValueError(f"process {own} has no device: start {torch.cuda.device_count()} a machine, not more")
        device = f"cuda:{own}"
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo")
    try:
        with warnings.catch_warnings():
            # A network's output may be a view; FSDP2 only minds if somebody writes into it, which no loss does.
            warnings.filterwarnings("ignore", "FSDP2-wrapped module")
            yield Ranks(dist.get_rank(), dist.get_world_size(), device)
        dist.barrier()  # nobody leaves while others may still talk to it
    finally:
        dist.destroy_process_group()


def shard(modules: Iterable[nn.Module], blocks: Iterable[nn.Module], ranks: Ranks, *, bf16: bool) -> None:
    """FSDP2: every rank keeps a part of each weight; a block is whole only while it is at work."""
    if ranks.count == 1:
        return
    mesh = init_device_mesh(ranks.device.split(":")[0], (ranks.count,))
    # Weights travel in half precision, gradients are summed in float32. Inputs are left as they are: rotary angles
    # would not survive the rounding.
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    for module in (*blocks, *modules):
        fully_shard(module, mesh=mesh, mp_policy=policy if bf16 else MixedPrecisionPolicy())


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this rank holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, on every rank."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def save_tensors(tensors: Mapping[str, Tensor], directory: Path) -> None:
    """Write tensors as safetensors, each rank its own shards."""
    writer = HuggingFaceStorageWriter(str(directory), save_distributed=True)
    with _plain_errors():
        save(dict(tensors), storage_writer=writer)


def load_tensors(tensors: Mapping[str, Tensor], directory: Path) -> None:
    """Fill tensors with what was written under their names, by however many ranks."""
    with _plain_errors():
        load(dict(tensors), storage_reader=HuggingFaceStorageReader(str(directory)))


@contextmanager
def whole_directory_of_all(target: Path, ranks: Ranks) -> Iterator[Path]:
    """A directory that all ranks write into; on success it becomes `target`, which must not exist yet."""
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
    """The only run that writes to a directory: the speaking rank holds the lock for all."""
    with ExitStack() as lock:
        ranks.once(lambda: lock.enter_context(locked(directory)))
        yield


@contextmanager
def _plain_errors() -> Iterator[None]:
    """DCP wraps what went wrong on each rank into one exception, and warns a process that is alone."""
    logging.disable(logging.ERROR)  # torch logs a traceback of what is told here in one line
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
            yield
    except CheckpointException as error:
        rank, (cause, _) = next(iter(error.failures.items()))
        raise OSError(f"the checkpoint failed on rank {rank}: {cause}") from error
    finally:
        logging.disable(logging.NOTSET)
