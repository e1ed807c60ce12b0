"""Arithmetic on what models gave: no model is loaded here, no file read (Sec. 5, App. C to G)."""

from crocodil.metrics.embeddings import (
    BertScore,
    EmbeddedTexts,
    bert_score,
    frontier_area,
    mauve,
    mauve_by_seed,
    quantise,
)
from crocodil.metrics.likelihood import (
    Accuracy,
    accuracy,
    bits_per_byte,
    demasking_accuracy,
    negative_elbo,
    perplexity_bound,
)
from crocodil.metrics.memorisation import Run, longest_training_runs, share_copied
from crocodil.metrics.registers import (
    PRDC,
    RegisterPRDC,
    prdc,
    prdc_per_register,
    psnr,
    psnr_by_time,
    squared_error_by_time,
)
from crocodil.metrics.speedup import Measured, QualityPoint, SpeedUp, speedup_at_matched_quality
from crocodil.metrics.text import (
    character_error_rate,
    distinct_n,
    parses_as_python,
    pooled_token_entropy,
    self_repetition,
    share_that_parses,
    token_entropy,
)

__all__ = [
    "PRDC",
    "Accuracy",
    "BertScore",
    "EmbeddedTexts",
    "Measured",
    "QualityPoint",
    "RegisterPRDC",
    "Run",
    "SpeedUp",
    "accuracy",
    "bert_score",
    "bits_per_byte",
    "character_error_rate",
    "demasking_accuracy",
    "distinct_n",
    "frontier_area",
    "longest_training_runs",
    "mauve",
    "mauve_by_seed",
    "negative_elbo",
    "parses_as_python",
    "perplexity_bound",
    "pooled_token_entropy",
    "prdc",
    "prdc_per_register",
    "psnr",
    "psnr_by_time",
    "quantise",
    "self_repetition",
    "share_copied",
    "share_that_parses",
    "speedup_at_matched_quality",
    "squared_error_by_time",
    "token_entropy",
]
