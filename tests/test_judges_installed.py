"""The judges that `crocodil judges install` installs, on inputs whose order is known."""

import importlib.util
import platform
import shutil
import statistics
from itertools import takewhile
from pathlib import Path

import pytest
import torch

from crocodil.judges import (
    DEFAULT_ENCODER,
    DEFAULT_JUDGE,
    SECOND_JUDGE,
    JudgeLayer,
    LanguageModel,
    TextEncoder,
    bert_scores,
    is_installed,
    judges_folder,
)
from crocodil.judges.known_inputs import (
    REPEATED,
    check_order,
    judge_known_inputs,
    lines_shuffled,
    random_characters,
    real_programs,
    tokens_shuffled,
)
from crocodil.metrics import Measured, mauve_by_seed, prdc

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parent.parent / "docs" / "evaluation.md"
needs_judge = pytest.mark.skipif(not is_installed(SECOND_JUDGE), reason="`crocodil judges install`")
needs_encoder = pytest.mark.skipif(not is_installed(DEFAULT_ENCODER), reason="`crocodil judges install`")
needs_faiss = pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="needs faiss")
each_judge = pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=pytest.mark.skipif(not is_installed(name), reason=f"`crocodil judges install {name}`")
        )
        for name in (DEFAULT_JUDGE, SECOND_JUDGE)
    ],
)


@pytest.fixture(scope="module")
def judge():
    """The smaller one: what is tested with it would take long with the other."""
    return LanguageModel.load(SECOND_JUDGE)


def is_the_pages_python():
    """Whether the numbers on the page are for the same texts."""
    return f"Python {platform.python_version()}'s standard library" in PAGE.read_text()


def table_under(head):
    """A table on the page: kind of input to its numbers."""
    lines = PAGE.read_text().split(head)[1].splitlines()[2:]
    rows = {}
    for line in takewhile(lambda line: line.startswith("|"), lines):
        kind, *cells = (cell.strip(" *") for cell in line.strip("|").split("|"))
        rows[kind] = [float(cell) for cell in cells]
    return rows


@each_judge
def test_a_judge_ranks_known_inputs_and_the_page_has_its_numbers(name):
    rows = judge_known_inputs(LanguageModel.load(name))
    for kind, row in rows.items():
        print(f"{name}, {kind}: {row}")
    check_order(name, rows)
    assert rows["random characters"].gen_ppl < rows["tokens shuffled"].gen_ppl  # why bits per byte stand beside it
    assert rows[REPEATED].gen_ppl < 2 < rows["real"].gen_ppl  # why the entropy does
    assert rows[REPEATED].bits_per_byte < 0.3 * rows["real"].bits_per_byte
    assert rows[REPEATED].entropy < 1.5 < 3 < rows["real"].entropy
    stated = table_under(f"| `{name}` on 24 pieces of 16 lines |")
    assert list(stated) == list(rows)
    if is_the_pages_python():
        for kind, row in rows.items():
            assert stated[kind] == pytest.approx(row, rel=0.02, abs=0.006)


@needs_judge
@needs_faiss
def test_mauve_is_high_for_other_real_texts_and_near_0_for_shuffled_tokens(judge):
    texts = real_programs(120, num_lines=4)
    real = judge.features(texts[::2]).last
    others = {"other real": texts[1::2], "tokens shuffled": tokens_shuffled(judge, texts[::2])}
    mauve = {}
    for kind, some in others.items():
        mauve[kind] = Measured.over(mauve_by_seed(real, judge.features(some).last, seeds=range(5)))
        print(f"{kind}: MAUVE {mauve[kind].mean:.3f} +- {mauve[kind].spread:.3f}")
    assert mauve["other real"].mean > 0.8
    assert mauve["tokens shuffled"].mean < 0.2  # few texts, wide spread


@needs_judge
def test_prdc_of_features_agrees_with_its_package_where_it_is_installed(judge):
    package = pytest.importorskip("prdc")
    texts = real_programs(40, num_lines=3)
    real, fake = judge.features(texts[::2]).last, judge.features(texts[1::2]).last
    expected = package.compute_prdc(real.numpy(), fake.numpy(), nearest_k=5)
    for name, value in prdc(real, fake)._asdict().items():
        assert value == pytest.approx(expected[name], abs=1e-6)


@needs_judge
def test_some_bytes_have_no_token_and_still_cost_something(judge):
    (tokens,) = judge.tokens(["a\x04b"])
    assert len(tokens) == 3
    (scored, without) = judge.scores(["a\x04b", "ab"])
    assert scored.nats > without.nats


@needs_encoder
def test_bert_scores_rank_known_inputs():
    encoder = TextEncoder.load()
    real = real_programs(8, num_lines=8)
    found = {
        "itself": real,
        "lines shuffled": list(map(lines_shuffled, real)),
        "another program": real[1:] + real[:1],
        "random characters": list(map(random_characters, real)),
    }
    f1 = {kind: statistics.fmean(bert_scores(encoder, real, some).f1.tolist()) for kind, some in found.items()}
    for kind, value in f1.items():
        print(f"{kind}: BERTScore {value:.3f}")
    assert list(f1) == sorted(f1, key=f1.__getitem__, reverse=True)
    assert f1["itself"] == pytest.approx(1, abs=1e-4)
    blind = bert_scores(encoder, ["if x:\n    Return = y"], ["IF X: return =\n y"])
    assert blind.f1.item() == pytest.approx(1, abs=1e-4)  # neither case nor white space


@each_judge
def test_bert_scores_by_a_layer_of_a_judge_rank_known_inputs(name):
    layer = JudgeLayer.of(LanguageModel.load(name))
    real = real_programs(6, num_lines=8)
    others = {
        "itself": real,
        "lines shuffled": list(map(lines_shuffled, real)),
        "another piece": real[1:] + real[:1],
    }
    f1 = {kind: bert_scores(layer, real, some).f1.mean().item() for kind, some in others.items()}
    print(layer.name, f1)
    assert list(f1) == sorted(f1, key=f1.__getitem__, reverse=True)
    assert f1["itself"] == pytest.approx(1, abs=1e-4)
    if name == DEFAULT_JUDGE and is_the_pages_python():
        stated = table_under("| 6 pieces of 8 lines |")
        assert {kind: value for kind, (value,) in stated.items()} == pytest.approx(f1, abs=0.003)
    (upper,) = bert_scores(layer, ["x = y\n"], ["X  = Y\n"]).f1.tolist()
    assert upper < 0.99  # unlike MiniLM, it reads case and white space


@needs_encoder
@pytest.mark.filterwarnings("ignore")  # of packages that it imports
def test_bert_score_of_texts_agrees_with_the_package_where_it_is_installed(tmp_path):
    package = pytest.importorskip("bert_score")
    folder = shutil.copytree(judges_folder() / DEFAULT_ENCODER, tmp_path / "encoder")
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 512}')  # the package fails without
    references, found = real_programs(6, num_lines=5), real_programs(12, num_lines=5)[6:]
    references.append("".join(real_programs(1, num_lines=150)))  # beyond the positions of the encoder
    found.append(found[0])
    expected = package.score(found, references, model_type=str(folder), num_layers=6, batch_size=7)
    for ours, theirs in zip(bert_scores(TextEncoder.load(folder), references, found), expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4)
