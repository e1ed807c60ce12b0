"""Where a stage reads and writes: the corpus, the networks of earlier stages, and cached registers."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from crocodil.checkpoints.format import load_model
from crocodil.corpus.shards import Corpus, Programs
from crocodil.models.register_encoder import RegisterEncoder
from crocodil.runtime.distributed import Ranks
from crocodil.training.data import CachedRegisters, Data
from crocodil.training.loop import LoopConfig
from crocodil.training.run_config import Run

Network = TypeVar("Network", bound=nn.Module)


@dataclass(frozen=True)
class Workspace:
    """Where a stage reads and writes."""

    corpus: Corpus
    out: Path  # the run
    source: Path  # the run that holds the earlier stages; usually `out`
    ranks: Ranks = field(default_factory=Ranks)

    @property
    def has_other_source(self) -> bool:
        """Whether the run starts from another one; stage base then goes on from the base of that run."""
        return self.source != self.out

    @property
    def device(self) -> str:
        return self.ranks.device

    def to_device(self, network: Network) -> Network:
        """Move a network to the device. With several ranks sharding moves it, one block at a time."""
        return network if self.ranks.count > 1 else network.to(self.device)

    def data(self, run: Run, loop: LoopConfig) -> Data:
        return Data(
            train=self.programs(run, "train"),
            valid=self.programs(run, "valid"),
            batch_size=loop.batch_size,
            seed=loop.seed,
            device=self.device,
        )

    def programs(self, run: Run, split: str) -> list[Programs]:
        """Return the programs of a split, one view per entry of `run.lengths`."""
        views = {length: self.corpus.programs(split, length=length) for length in run.lengths}
        return [views[length] for length in run.lengths]

    def finished(self, stage: str, module: str) -> Path:
        """Return the folder of a network that an earlier stage trained."""
        directory = self.source / stage / "model" / module
        if not directory.exists():
            raise ValueError(f"{directory} is missing: train stage {stage} first")
        return directory

    def trained_encoder(self) -> RegisterEncoder:
        return loaded(self.finished("guided", "encoder"), RegisterEncoder, self.device)

    def condition_encoder(self) -> Path:
        """Return the folder of the encoder that conditions are computed with: a copy may have been trained."""
        own = self.source / "conditional" / "model" / "condition_encoder"
        return own if own.exists() else self.finished("guided", "encoder")

    def registers(self, run: Run, split: str) -> list[CachedRegisters]:
        """Return the cached registers of a split, one per entry of `run.lengths`."""
        registers = []
        for programs in self.programs(run, split):
            directory = self.source / "registers" / f"{split}-{programs.length}"
            if not directory.exists():
                raise ValueError(f"{directory} is missing: run stage registers first")
            cached = CachedRegisters(directory)
            cached.check((len(programs), run.num_prior_registers, run.prior.register_width))
            registers.append(cached)
        return registers


def loaded(folder: Path, kind: type[Network], device: str) -> Network:
    """Load a network to train, or to train with. Its weights become float32, however they are stored."""
    network = load_model(folder, dtype=torch.float32, device=device)
    if not isinstance(network, kind):
        raise ValueError(f"{folder} holds a {type(network).__name__}, not a {kind.__name__}")
    return network.eval()
