import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "corpus"))
from wheels import program

from crocodil.corpus.build import build
from crocodil.corpus.recipe import Recipe
from crocodil.corpus.sources import Files


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """A small corpus of programs that are much alike: quickly learned."""
    root = tmp_path_factory.mktemp("corpus")
    for number in range(60):
        file = root / "files" / f"p{number}" / "m.py"
        file.parent.mkdir(parents=True)
        file.write_text(program(f"q{number}", 6))
    recipe = Recipe(
        source=Files(root / "files"), permissive_only=False, vocab_size=320, near_duplicate=1.0,
        hold_out_families=False, valid_share=0.1, test_share=0.1,
    )  # fmt: skip
    return build(recipe, root / "corpus", num_processes=1)
