"""From options to a run: a preset or an ablation of it, and a base that begins as a causal language model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from crocodil.checkpoints.hub import local_folder

if TYPE_CHECKING:
    from crocodil.corpus.shards import Corpus
    from crocodil.training.run_config import Run
    from crocodil.training.workspace import Workspace


def run_of(preset: str, ablation: str | None, corpus: "Corpus", folders: dict[str, Path | None]) -> "Run":
    """Return the run of a preset, or an ablation of it."""
    from crocodil.presets.ablated import ABLATIONS
    from crocodil.presets.runs import preset as preset_of
    from crocodil.training.run_config import Pretrained

    run = preset_of(preset, corpus, Pretrained(**folders))
    return run if ablation is None else ABLATIONS[ablation](run)


def folder_of(model: str | None, patterns: Sequence[str]) -> Path | None:
    """Return the folder of a pretrained model, or None. From the hub, files with these patterns are fetched."""
    return None if model is None else local_folder(model, patterns=patterns)


@dataclass(frozen=True)
class CausalOptions:
    """The options of a base that begins as a causal language model."""

    directory: Path | None = None
    layers: tuple[int, ...] | None = None
    keep_layers: int | None = None
    layer_choice: str = "greedy"
    shift: bool = False

    def check(self, stage: str, *, dry_run: bool) -> None:
        if self.directory is None and self != CausalOptions():
            raise ValueError("--layers, --keep-layers and --shift need --causal")
        if self.directory is not None and stage != "base" and not dry_run:
            raise ValueError(f"--causal is for stage base: stage {stage} reads it from the run")
        if self.layers is not None and self.keep_layers is not None:
            raise ValueError("--layers and --keep-layers exclude each other: give one of them")

    def begin(self, run: "Run", layers: tuple[int, ...] | None, muon_rate: float | None = None) -> "Run":
        """Return the run that begins as these layers of the causal model."""
        from crocodil.presets.causal_starts import begin_as_causal
        from crocodil.training.run_config import CausalStart

        assert self.directory is not None
        start = CausalStart(
            directory=self.directory.resolve(),
            layers=layers,
            shifted=self.shift,
            muon_rate=muon_rate,
        )
        return begin_as_causal(run, start)


def with_causal_start(
    run: "Run", asked: CausalOptions, stage: str, workspace: "Workspace", *, resume: bool
) -> "Run":
    """Return the run with its causal start: in stage base as asked for or, to resume it, as recorded."""
    from crocodil.presets.causal_starts import begin_as_causal, continue_from_causal, fitting_muon_rate
    from crocodil.training.pruning import choose_layers
    from crocodil.training.run_config import read_causal_start

    if workspace.has_other_source and asked.directory is not None:
        raise ValueError("--causal and --from exclude each other: with --from the base goes on from that of a run")
    if stage != "base" or workspace.has_other_source:
        return continue_from_causal(run, workspace)
    recorded = read_causal_start(workspace.out) if resume else None
    if asked.directory is None:
        if recorded is None:
            return run
        return begin_as_causal(run, replace(recorded, directory=local_folder(str(recorded.directory))))
    rate = fitting_muon_rate(asked.directory) if run.base_loop.optimiser == "muon" else None
    if asked.keep_layers is None:
        return asked.begin(run, asked.layers, rate)
    if recorded is not None and recorded.layers is not None and len(recorded.layers) == asked.keep_layers:
        return asked.begin(run, recorded.layers, rate)
    layers = choose_layers(
        asked.directory, asked.keep_layers, asked.layer_choice, workspace, length=max(run.lengths)
    )
    return asked.begin(run, layers, rate)
