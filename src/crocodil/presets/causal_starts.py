"""Runs whose base begins as a causal language model (decision D39)."""

from dataclasses import replace

from crocodil.checkpoints.bases import base_config
from crocodil.checkpoints.causal import read_causal_config, weight_size
from crocodil.checkpoints.format import model_config
from crocodil.checkpoints.tensors import StrPath
from crocodil.models.demasker import DemaskerConfig
from crocodil.models.llada import LLaDAConfig
from crocodil.runtime.config import read_as
from crocodil.training.run_config import (
    RUN_FILE,
    CausalStart,
    Pretrained,
    Run,
    read_causal_start,
    read_run_file,
)
from crocodil.training.workspace import Workspace

# A step of Muon has the same size in every model, so its learning rate must fit the size of the weights. 0.015
# times that size is 2.9e-3 for SmolLM2-135M, where 2e-3 and 4e-3 were the best, and 2.4e-4 for Qwen2.5-Coder-0.5B,
# where 3e-4 was (docs/research-log.md). AdamW's rate is Open-dCoder's for Qwen2.5-Coder-0.5B.
MUON_RATE_PER_SIZE = 0.015
SMOLLM2_RATE = 2.9e-3
ADAMW_RATE = 3e-4
_ENCODER_FIELDS = (
    "width",
    "num_heads",
    "num_kv_heads",
    "head_width",
    "mlp_width",
    "rope_theta",
    "norm_eps",
    "qkv_bias",
)


def fitting_muon_rate(directory: StrPath) -> float:
    """Return the learning rate of Muon that fits the weights of a causal model, with two digits."""
    return float(f"{MUON_RATE_PER_SIZE * weight_size(directory):.1e}")


def begin_as_causal(run: Run, start: CausalStart) -> Run:
    """Return a run whose base begins as a causal model, with shapes and learning rates that fit it."""
    return _with_base(run, start, read_causal_config(start.directory, layers=start.layers, shifted=start.shifted))


def continue_from_causal(run: Run, workspace: Workspace) -> Run:
    """Return the run of a later stage, with the shapes of the workspace's base if it began as a causal model."""
    start = read_causal_start(workspace.source)
    return run if start is None else _with_base(run, start, _base_of(workspace))


def _base_of(workspace: Workspace) -> LLaDAConfig:
    """Return the shape of the base.

    A run whose stage guided goes on from another run has only a demasker. A record of a run has only run.json.
    """
    base, demasker = (workspace.source / name / "model" / "demasker" for name in ("base", "guided"))
    if base.exists():
        return base_config(base)
    if demasker.exists():
        config = model_config(demasker)
        assert isinstance(config, DemaskerConfig)
        return config.backbone
    recorded = read_run_file(workspace.source)["demasker"]
    return read_as(DemaskerConfig, recorded, workspace.source / RUN_FILE).backbone


def _with_base(run: Run, start: CausalStart, base: LLaDAConfig) -> Run:
    """Registers keep their number and width. An encoder that is initialised from the base gets its shape."""
    if run.pretrained != Pretrained():
        raise ValueError("a base that begins as a causal model is for presets that train from scratch, as small")
    encoder = replace(run.encoder, vocab_size=base.vocab_size, end_id=base.eos_id)
    if run.encoder_begins_as_base:
        shape = {name: getattr(base, name) for name in _ENCODER_FIELDS}
        encoder = replace(
            encoder, **shape, num_layers=min(encoder.num_layers, base.num_layers), without_qk_norm=not base.qk_norm
        )
    muon_rate = start.muon_rate or SMOLLM2_RATE
    base_rates = {"muon": muon_rate, "adamw": ADAMW_RATE}
    guided_rates = {"muon": muon_rate / 2, "adamw": ADAMW_RATE}
    return replace(
        run,
        demasker=replace(run.demasker, backbone=base),
        encoder=encoder,
        base_loop=replace(run.base_loop, learning_rate=base_rates[run.base_loop.optimiser]),
        guided_loop=replace(run.guided_loop, learning_rate=guided_rates[run.guided_loop.optimiser]),
        causal=start,
    )
