"""The judges that `crocodil judges install` installs, on inputs whose order is known."""

import importlib.util
import random
import shutil
import statistics
import string
from pathlib import Path

import pytest
import torch

from crocodil.judges import (
    DEFAULT_ENCODER,
    DEFAULT_JUDGE,
    LanguageModel,
    TextEncoder,
    bert_scores,
    bits_per_byte,
    is_installed,
    judges_folder,
    perplexity,
)
from crocodil.metrics import Measured, mauve_by_seed, prdc, token_entropy

pytestmark = pytest.mark.slow
needs_judge = pytest.mark.skipif(not is_installed(DEFAULT_JUDGE), reason="`crocodil judges install`")
needs_encoder = pytest.mark.skipif(not is_installed(DEFAULT_ENCODER), reason="`crocodil judges install`")
needs_faiss = pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="needs faiss")

STANDARD_LIBRARY = Path(statistics.__file__).parent


def windows(count, num_lines):
    """Stretches of the standard library, from many modules in turn."""
    parts = []
    for file in sorted(STANDARD_LIBRARY.glob("[!_]*.py")):
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        parts += [
            (start, file.name, "".join(lines[start : start + num_lines]))
            for start in range(60, len(lines) - num_lines, num_lines)
        ]
    return [text for _, _, text in sorted(parts)[:count]]


def lines_shuffled(text):
    lines = text.splitlines(keepends=True)
    return "".join(random.Random(text).sample(lines, len(lines)))


def tokens_shuffled(judge, texts):
    shuffled = [random.Random(str(row)).sample(row, len(row)) for row in judge.tokens(texts)]
    return [judge.tokenizer.decode(row) for row in shuffled]


def random_characters(text):
    drawn = random.Random(text).choices(
        string.ascii_letters + string.digits + string.punctuation + " ", k=len(text)
    )
    return "".join(drawn)


@pytest.fixture(scope="module")
def judge():
    return LanguageModel.load()


@needs_judge
def test_the_judge_ranks_known_inputs(judge):
    real = windows(10, num_lines=8)
    texts = {
        "real": real,
        "lines shuffled": list(map(lines_shuffled, real)),
        "tokens shuffled": tokens_shuffled(judge, real),
        "random characters": list(map(random_characters, real)),
        "one line repeated": ["return None\n" * 25] * len(real),
    }
    scores = {kind: judge.scores(some) for kind, some in texts.items()}
    bits = {kind: bits_per_byte(some) for kind, some in scores.items()}
    ppl = {kind: perplexity(some) for kind, some in scores.items()}
    entropy = {kind: token_entropy(judge.tokens(some)) for kind, some in texts.items()}
    for kind in texts:
        print(f"{kind}: ppl {ppl[kind]:.4g}, {bits[kind]:.3f} bits a byte, entropy {entropy[kind]:.2f}")
    ranked = ["real", "lines shuffled", "tokens shuffled", "random characters"]
    assert sorted(ranked, key=bits.__getitem__) == ranked
    better = sum(a.nats < b.nats for a, b in zip(scores["real"], scores["lines shuffled"], strict=True))
    assert better >= 9  # of 10
    assert ppl["random characters"] < ppl["tokens shuffled"]  # why bits per byte stand beside it
    assert ppl["one line repeated"] < 2 < ppl["real"]  # why the entropy does
    assert entropy["one line repeated"] < 1.5 < 3 < entropy["real"]


@needs_judge
@needs_faiss
def test_mauve_is_high_for_other_real_texts_and_near_0_for_shuffled_tokens(judge):
    texts = windows(120, num_lines=4)
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
    texts = windows(40, num_lines=3)
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
    real = windows(8, num_lines=8)
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


@needs_encoder
@pytest.mark.filterwarnings("ignore")  # of packages that it imports
def test_bert_score_of_texts_agrees_with_the_package_where_it_is_installed(tmp_path):
    package = pytest.importorskip("bert_score")
    folder = shutil.copytree(judges_folder() / DEFAULT_ENCODER, tmp_path / "encoder")
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 512}')  # the package fails without
    references, found = windows(6, num_lines=5), windows(12, num_lines=5)[6:]
    references.append("".join(windows(1, num_lines=150)))  # beyond the positions of the encoder
    found.append(found[0])
    expected = package.score(found, references, model_type=str(folder), num_layers=6, batch_size=7)
    for ours, theirs in zip(bert_scores(TextEncoder.load(folder), references, found), expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4)
