"""Training with several processes: ranks, sharded weights, and checkpoints that any number of ranks can load.

torchrun starts the processes, FSDP2 shards weights, gradients and moments, and DCP writes and reads the shards (as
safetensors, since its own format is a pickle). A single process needs no process group and has no overhead.
"""

import logging
import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    """The rank of this process, the number of ranks, and the device of this process."""

    rank: int = 0
    count: int = 1
    device: str = "cpu"

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the one that logs, shows progress and writes shared files."""
        return self.rank == 0

    def share(self, indices: range) -> range:
        """Return this rank's contiguous part of a range that all ranks process together."""
        start, stop = (indices.start + len(indices) * rank // self.count for rank in (self.rank, self.rank + 1))
        return range(start, stop)

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank. The reduction runs on the CPU, so it does not wait for a device."""
        if self.count == 1:
            return flag
        num_set = torch.tensor(int(flag))
        dist.all_reduce(num_set)
        return bool(num_set)

    def gather(self, value: Float[Tensor, ""]) -> Float[Tensor, "ranks"]:
        """Return the values of all ranks."""
        if self.count == 1:
            return value[None]
        values = value.new_zeros(self.count)
        values[self.rank] = value
        dist.all_reduce(values)
        return values

    def barrier(self) -> None:
        """Wait until all ranks have reached this call."""
        self.any(False)

    def broadcast(self, text: str) -> str:
        """Return the text of the main rank on all ranks."""
        texts = [text]
        if self.count > 1:
            dist.broadcast_object_list(texts)
        return texts[0]

    def on_main(self, action: Callable[[], object]) -> None:
        """Run an action on the main rank only. If it fails, all ranks raise, so that none waits for the others."""
        message = ""
        if self.is_main:
            try:
                action()
            except (ValueError, OSError) as error:
                if self.count == 1:
                    raise
                message = str(error)
        if message := self.broadcast(message):
            raise ValueError(message)


@contextmanager
def process_group(device: str) -> Iterator[Ranks]:
    """Join the process group of torchrun, one process per device; without torchrun, yield a single rank."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        yield Ranks(device=device)
        return
    if device.startswith("cuda:"):
        raise ValueError(f"--device {device}: with torchrun each process gets its own device, use --device cuda")
    if device == "cuda":
        local_rank, num_devices = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if local_rank >= num_devices:
            raise ValueError(f"local rank {local_rank} has no GPU: start at most {num_devices} processes per node")
        device = f"cuda:{local_rank}"
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo")
    try:
        with warnings.catch_warnings():
            # A network's output may be a view. FSDP2 warns about in-place writes to it, which no loss does.
            warnings.filterwarnings("ignore", "FSDP2-wrapped module")
            yield Ranks(dist.get_rank(), dist.get_world_size(), device)
        dist.barrier()  # no rank exits while others may still send to it
    finally:
        dist.destroy_process_group()


def shard(modules: Sequence[nn.Module], blocks: Iterable[nn.Module], ranks: Ranks, *, bf16: bool) -> None:
    """Shard modules with FSDP2: each rank keeps a part of every weight; a block is gathered only while it runs."""
    if ranks.count == 1:
        return
    mesh = init_device_mesh(ranks.device.split(":")[0], (ranks.count,))
    # Weights are gathered in bfloat16, gradients are reduced in float32. Inputs are not cast: rotary angles need
    # float32.
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    for module in (*blocks, *modules):
        fully_shard(module, mesh=mesh, mp_policy=policy if bf16 else MixedPrecisionPolicy())
    for module in modules:
        # FSDP2 reads the dtypes of trainable weights once. Later, a phase may have frozen some (pytorch#186998).
        module._get_fsdp_state()._lazy_init()  # type: ignore[operator]


def local_shard(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this rank holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the complete tensor, gathered from all ranks."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def save_tensors(tensors: Mapping[str, Tensor], directory: Path) -> None:
    """Write tensors as safetensors; each rank writes its own shards."""
    writer = HuggingFaceStorageWriter(str(directory), save_distributed=True)
    with _plain_errors():
        save(dict(tensors), storage_writer=writer)


def load_tensors(tensors: Mapping[str, Tensor], directory: Path) -> None:
    """Fill tensors in place from the files of `save_tensors`, which any number of ranks may have written."""
    with _plain_errors():
        load(dict(tensors), storage_reader=HuggingFaceStorageReader(str(directory)))


@contextmanager
def whole_directory_for_ranks(target: Path, ranks: Ranks) -> Iterator[Path]:
    """Yield a directory that all ranks write into; on success it becomes `target`, which must not exist yet."""
    unfinished = Path(ranks.broadcast(str(unfinished_directory(target)) if ranks.is_main else ""))
    try:
        yield unfinished
        ranks.barrier()
        if ranks.is_main:
            finish_directory(unfinished, target)
        ranks.barrier()
    finally:
        if ranks.is_main:
            shutil.rmtree(unfinished, ignore_errors=True)


@contextmanager
def locked_for_ranks(directory: Path, ranks: Ranks) -> Iterator[None]:
    """Lock a directory against other runs; the main rank holds the lock for all ranks."""
    with ExitStack() as lock:
        ranks.on_main(lambda: lock.enter_context(locked(directory)))
        yield


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Turn DCP's exception, which wraps the errors of all ranks, into a one-line OSError; hide its warnings."""
    logging.disable(logging.ERROR)  # torch would log a traceback of the same error
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
            yield
    except CheckpointException as error:
        rank, (cause, _) = next(iter(error.failures.items()))
        raise OSError(f"reading or writing the checkpoint failed on rank {rank}: {cause}") from error
    finally:
        logging.disable(logging.NOTSET)
