"""What an estimate needs of a corpus that nobody has yet: its vocabulary, and how many programs it has."""

from pathlib import Path
from typing import Any

import numpy as np

from crocodil.corpus.shards import PROGRAM, Corpus, Programs
from crocodil.presets.models import llada_8b
from crocodil.presets.training import ADAPTED

PAPERS_PROGRAMS = 12_000_000  # Sec. 5
_BUILTIN_VOCABULARY = 8192


class AssumedCorpus(Corpus):
    """Stands in for a corpus where a preset is made for an estimate; there is nothing to train on."""

    def __init__(self, *, vocab_size: int, special: dict[str, int], num_programs: int) -> None:
        description: Any = {"tokenizer": {"vocab_size": vocab_size, "special": special}}
        self.directory, self.description, self.num_programs = Path("assumed corpus"), description, num_programs

    def programs(self, split: str, *, length: int) -> Programs:
        """As many empty ones; they take no memory."""
        view = Programs([], length, bos=0, eos=0)
        view.index = np.broadcast_to(np.zeros((), dtype=PROGRAM), (self.num_programs,))
        return view


def assumed_corpus(preset: str) -> tuple[AssumedCorpus, str]:
    """For a preset, and what was assumed in a sentence."""
    if preset not in ADAPTED:
        special = {"mask": 0, "bos": 1, "eos": 2, "pad": 3}
        corpus = AssumedCorpus(vocab_size=_BUILTIN_VOCABULARY, special=special, num_programs=PAPERS_PROGRAMS)
        return corpus, f"the built-in model's vocabulary of {_BUILTIN_VOCABULARY:,}"
    shape = llada_8b()
    special = {"mask": shape.mask_id, "bos": shape.eos_id, "eos": shape.eos_id, "pad": shape.pad_id}
    corpus = AssumedCorpus(vocab_size=shape.vocab_size, special=special, num_programs=PAPERS_PROGRAMS)
    return corpus, f"{PAPERS_PROGRAMS:,} programs, as many as the paper's"
