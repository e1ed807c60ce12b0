"""Metrics as pure arithmetic (Sec. 5, App. C to G). This package loads no model and reads no file."""

from crocodil.metrics.embeddings import (
    BertScore,
    EmbeddedTexts,
    TextFeatures,
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
    register_nats,
)
from crocodil.metrics.memorisation import Run, longest_training_runs
from crocodil.metrics.register_quality import (
    PRDC,
    RegisterPRDC,
    prdc,
    prdc_per_register,
    psnr,
    squared_error_by_time,
)
from crocodil.metrics.speedup import (
    Measured,
    QualityPoint,
    SpeedUp,
    own_best,
    speedup_at_matched_quality,
)
from crocodil.metrics.text_statistics import (
    character_error_rate,
    distinct_n,
    parses_as_python,
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
    "TextFeatures",
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
    "own_best",
    "parses_as_python",
    "prdc",
    "prdc_per_register",
    "psnr",
    "quantise",
    "register_nats",
    "self_repetition",
    "share_that_parses",
    "speedup_at_matched_quality",
    "squared_error_by_time",
    "token_entropy",
]
