"""How fast presets run: rates that were measured, and assumed ones for what was not. They turn work into hours."""

from dataclasses import dataclass
from statistics import fmean

from crocodil.presets.assumed import assumed_corpus
from crocodil.presets.runs import preset
from crocodil.training.estimate import step_flops
from crocodil.training.run_config import Pretrained


@dataclass(frozen=True)
class Rate:
    """Operations per second of one device, as training/work.py counts them, and where the number comes from."""

    tflops: float
    source: str


@dataclass(frozen=True)
class MeasuredStep:
    """The time of one step of a preset, and where it is from (docs/research-log.md, docs/scale.md)."""

    seconds: float
    source: str = "measured on one H200"


_SMALL_TOKENS = 256 * fmean([256, 256, 512])  # of one step
_WHOLE_BATCH = "measured on one H200, with num_accumulated=1"
_BUILT_IN = "measured on one H200 when the built-in model was trained, with num_accumulated 1 or 2"
# Measured was the CPU time of one core: `python benchmarks/training.py --preset laptop --steps 3 --threads 1`.
_CORES, _CORES_TEXT = 0.8 * 4, "estimated: 4 CPU cores at 80% of four times the speed measured on one Neoverse-N1"

MEASURED = {
    ("small", "base"): MeasuredStep(_SMALL_TOKENS / 1_453e3, _WHOLE_BATCH),
    ("small", "guided"): MeasuredStep(_SMALL_TOKENS / 780e3, _WHOLE_BATCH),
    ("small", "conditional"): MeasuredStep(0.082),
    ("builtin", "base"): MeasuredStep(_SMALL_TOKENS / 739e3, _BUILT_IN),
    ("builtin", "guided"): MeasuredStep(_SMALL_TOKENS / 372e3, _BUILT_IN),
    ("builtin", "conditional"): MeasuredStep(0.26, _BUILT_IN),
    ("builtin", "distilled"): MeasuredStep(0.263, _BUILT_IN),
    ("paper-one-gpu", "guided"): MeasuredStep(512 * 512 / 8_884, "measured on one H200, with batch 16"),
    ("laptop", "base"): MeasuredStep(8.80 / _CORES, _CORES_TEXT),
    ("laptop", "guided"): MeasuredStep(16.41 / _CORES, _CORES_TEXT),
    ("laptop", "prior"): MeasuredStep(1.89 / _CORES, _CORES_TEXT),
    ("laptop", "conditional"): MeasuredStep(3.96 / _CORES, _CORES_TEXT),
}

# For stages that were not measured.
_H200 = Rate(365.0, "estimated: an H200 at 365 TFLOP/s, as measured in stage guided of paper-one-gpu")
_CPU = Rate(0.07, "estimated: 4 CPU cores at 0.07 TFLOP/s, as laptop's base")
_ASSUMED = {
    "tiny": _CPU,
    "laptop": _CPU,
    "small": Rate(132.0, "estimated: an H200 at 132 TFLOP/s, as measured in stage conditional"),
    "builtin": Rate(132.0, "estimated: an H200 at 132 TFLOP/s, as small's"),
    "medium": Rate(50.0, "estimated: a GPU of 24 GB that reaches 50 TFLOP/s, a third of an RTX 4090's peak"),
    "paper": _H200,
    "paper-plus": _H200,
    "paper-one-gpu": _H200,
}


def rate_of(name: str, stage: str) -> Rate:
    """Return the rate that a stage of a preset was measured at, or else an assumed one."""
    step = MEASURED.get((name, stage))
    if step is None:
        return _ASSUMED[name]
    run = preset(name, assumed_corpus(name)[0], Pretrained())
    return Rate(step_flops(run)[stage] / step.seconds / 1e12, step.source)


def hours(flops: float, rate: Rate, *, num_devices: int = 1) -> float:
    """Return the hours of this work on devices that together reach the rates of all of them."""
    return flops / (rate.tflops * 1e12 * num_devices) / 3600
