"""Runs whose base begins as a causal language model (decision D39)."""

from dataclasses import replace

from crocodil.checkpoints.bases import base_config
from crocodil.checkpoints.causal import read_causal_config
from crocodil.models.llada import LLaDAConfig
from crocodil.training.run_config import CausalStart, Pretrained, Run, read_causal_start
from crocodil.training.stage_setup import Workspace

# Learning rates of the base and of the guided demasker after it. Muon's were used with 16 layers of SmolLM2-135M
# (docs/research-log.md); AdamW's is Open-dCoder's for Qwen2.5-Coder-0.5B.
BASE_RATES = {"muon": 2e-3, "adamw": 3e-4}
GUIDED_RATES = {"muon": 1e-3, "adamw": 3e-4}
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


def begin_as_causal(run: Run, start: CausalStart) -> Run:
    """Return a run whose base begins as a causal model; shapes that depend on it and learning rates follow."""
    return _with_base(run, start, read_causal_config(start.directory, layers=start.layers, shifted=start.shifted))


def continue_from_causal(run: Run, workspace: Workspace) -> Run:
    """Return the run of a later stage: if the base of the workspace began as a causal model, with its shapes."""
    start = read_causal_start(workspace.source)
    return run if start is None else _with_base(run, start, base_config(workspace.finished("base", "demasker")))


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
    return replace(
        run,
        demasker=replace(run.demasker, backbone=base),
        encoder=encoder,
        base_loop=replace(run.base_loop, learning_rate=BASE_RATES[run.base_loop.optimiser]),
        guided_loop=replace(run.guided_loop, learning_rate=GUIDED_RATES[run.guided_loop.optimiser]),
        causal=start,
    )
