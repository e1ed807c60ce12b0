"""Every annotated shape in `crocodil` is checked while the tests run; no test asks the network."""

import os
import sys
from pathlib import Path

import jaxtyping
import pytest
import typecheck

os.environ["HF_HUB_OFFLINE"] = "1"
jaxtyping.jaxtyped = typecheck.checked  # the import hook puts it on every function and class
jaxtyping.install_import_hook("crocodil", "typecheck.typechecked")
sys.path.insert(0, str(Path(__file__).parent / "corpus"))


@pytest.fixture(scope="session")
def fixtures() -> Path:
    return Path(__file__).parent / "fixtures"


@pytest.fixture(scope="session")
def llada_folder(fixtures, tmp_path_factory) -> Path:
    """A tiny LLaDA in its public format, with a tokenizer and a chat template."""
    from tiny_tokenizer import with_tokenizer

    return with_tokenizer(fixtures / "llada-tiny", tmp_path_factory.mktemp("llada") / "LLaDA-tiny-Instruct")


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """A small corpus of programs that are much alike: quickly learned."""
    from wheels import program

    from crocodil.corpus.build import build
    from crocodil.corpus.recipe import Recipe
    from crocodil.corpus.sources import Files

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


@pytest.fixture
def short_validation(monkeypatch):
    """Validation at one mask probability, one time and with one step."""
    from tiny_run import SHORT_VALIDATION

    from crocodil.training import validation

    for name, value in SHORT_VALIDATION.items():
        monkeypatch.setattr(validation, name, value)


@pytest.fixture(scope="session")
def trained(corpus, tmp_path_factory):
    """A run with all stages finished, in a third of the steps; the tests of training have one with all steps."""
    from tiny_run import trained_run

    out = tmp_path_factory.mktemp("run")
    return trained_run(corpus, out, validates=False, base=40, guided=40, prior=40, conditional=40)
