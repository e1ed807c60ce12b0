"""Metrics that need a model: Gen-PPL, MAUVE, BERTScore (Sec. 5). A judge is a folder; what it gives is kept."""

from crocodil.judges.cache import Cached
from crocodil.judges.folders import DEFAULT_ENCODER, DEFAULT_JUDGE, PACKAGED, install, is_installed, judges_folder
from crocodil.judges.language_model import LanguageModel, TextScore, as_compared, cut_alike
from crocodil.judges.statistics import (
    bits_per_byte,
    gen_ppl,
    judge_mauve,
    mauve_ceiling,
    perplexity,
    with_spread,
)
from crocodil.judges.text_encoder import TextEncoder
from crocodil.judges.verdicts import Sampling, Verdict, judge_samples

__all__ = [
    "DEFAULT_ENCODER",
    "DEFAULT_JUDGE",
    "PACKAGED",
    "Cached",
    "LanguageModel",
    "Sampling",
    "TextEncoder",
    "TextScore",
    "Verdict",
    "as_compared",
    "bits_per_byte",
    "cut_alike",
    "gen_ppl",
    "install",
    "is_installed",
    "judge_mauve",
    "judge_samples",
    "judges_folder",
    "mauve_ceiling",
    "perplexity",
    "with_spread",
]
