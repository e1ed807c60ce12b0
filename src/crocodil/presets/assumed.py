"""An assumed corpus, so that the needs of a preset can be estimated without data."""

from pathlib import Path
from typing import Any

import numpy as np

from crocodil.corpus.shards import PROGRAM, Corpus, Programs
from crocodil.presets.models import llada_8b, qwen25_coder_05b
from crocodil.presets.runs import FROM_CAUSAL, FROM_SCRATCH

PAPER_NUM_PROGRAMS = 12_000_000  # Sec. 5
_VOCABULARIES = {"laptop": 4096, "builtin": 12_288}  # of corpora with few tokens, if not the usual one
_USUAL_VOCABULARY = 8192


class AssumedCorpus(Corpus):
    """A corpus without programs: it has what a preset needs for an estimate, and cannot be trained on."""

    def __init__(self, *, vocab_size: int, special: dict[str, int], num_programs: int) -> None:
        description: Any = {"tokenizer": {"vocab_size": vocab_size, "special": special}}
        self.directory, self.description, self.num_programs = Path("assumed corpus"), description, num_programs

    def programs(self, split: str, *, length: int) -> Programs:
        """Return a view of `num_programs` empty programs, which takes no memory."""
        view = Programs([], length, bos=0, eos=0)
        view.index = np.broadcast_to(np.zeros((), dtype=PROGRAM), (self.num_programs,))
        return view


def assumed_corpus(preset: str) -> tuple[AssumedCorpus, str]:
    """Return a corpus for an estimate of a preset, and what it assumes, in words."""
    if preset in (*FROM_SCRATCH, "builtin"):
        special = {"mask": 0, "bos": 1, "eos": 2, "pad": 3}
        size = _VOCABULARIES.get(preset, _USUAL_VOCABULARY)
        corpus = AssumedCorpus(vocab_size=size, special=special, num_programs=PAPER_NUM_PROGRAMS)
        return corpus, f"a vocabulary of {size:,}"
    shape = qwen25_coder_05b() if preset in FROM_CAUSAL else llada_8b()
    special = {"mask": shape.mask_id, "bos": shape.eos_id, "eos": shape.eos_id, "pad": shape.pad_id}
    corpus = AssumedCorpus(vocab_size=shape.vocab_size, special=special, num_programs=PAPER_NUM_PROGRAMS)
    if preset in FROM_CAUSAL:
        return corpus, f"the vocabulary of Qwen2.5-Coder-0.5B, {shape.vocab_size:,}"
    return corpus, f"{PAPER_NUM_PROGRAMS:,} programs, as in the paper"
