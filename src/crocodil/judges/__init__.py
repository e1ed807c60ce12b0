"""Judges and the evaluator: Gen-PPL, MAUVE and BERTScore, which need a model (Sec. 5). A judge is a folder."""

from crocodil.judges.evaluator import (
    Embedder,
    Evaluator,
    Judge,
    Reference,
    bert_scores,
    bits_per_byte,
    cut_to_length,
    gen_ppl,
    perplexity,
)
from crocodil.judges.folders import install, is_installed, judges_folder
from crocodil.judges.language_model import LanguageModel, TextScore
from crocodil.judges.lineage import check_unrelated
from crocodil.judges.packaged import DEFAULT_ENCODER, DEFAULT_JUDGE, PACKAGED, SECOND_JUDGE
from crocodil.judges.text_encoder import JudgeLayer, TextEncoder, load_embedder

__all__ = [
    "DEFAULT_ENCODER",
    "DEFAULT_JUDGE",
    "PACKAGED",
    "SECOND_JUDGE",
    "Embedder",
    "Evaluator",
    "Judge",
    "JudgeLayer",
    "LanguageModel",
    "Reference",
    "TextEncoder",
    "TextScore",
    "bert_scores",
    "bits_per_byte",
    "check_unrelated",
    "cut_to_length",
    "gen_ppl",
    "install",
    "is_installed",
    "judges_folder",
    "load_embedder",
    "perplexity",
]
