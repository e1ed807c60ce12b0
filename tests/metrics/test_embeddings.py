import importlib.util
import sys

import numpy as np
import pytest
import tiny
import torch

from crocodil.metrics import EmbeddedTexts, bert_score, frontier_area, mauve, mauve_by_seed, quantise
from crocodil.metrics.embeddings import principal_components

needs_faiss = pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="needs faiss")


# ---------------------------------------------------------------- MAUVE


@pytest.mark.parametrize(
    ("real", "fake", "area"),  # as the package `mauve-text` 0.4.0 has it
    [
        ([0.5, 0.3, 0.2, 0.0], [0.1, 0.2, 0.3, 0.4], 0.2711696522515651),
        ([0.5, 0.5], [0.5, 0.5], 1.0),
        ([1.0, 0.0], [0.0, 1.0], 0.0040720962619612555),
    ],
)
def test_the_frontier_area_is_that_of_the_reference_package(real, fake, area):
    assert frontier_area(np.array(real), np.array(fake)) == pytest.approx(area, rel=1e-9)
    assert frontier_area(np.array(fake), np.array(real)) == pytest.approx(area, rel=1e-9)


def clouds(shift, count=100):
    return tiny.streams(count, "a").normal(16), tiny.streams(count, "b").normal(16) + shift


@needs_faiss
@pytest.mark.parametrize(
    ("shift", "expected"),  # as the package has it with seed 25, which it passes on as 27
    [(0.0, 0.9544202003387751), (0.3, 0.7334319344691758), (1.0, 0.02129477532121854)],
)
def test_mauve_is_that_of_the_reference_package(shift, expected, capfd):
    assert mauve(*clouds(shift), seed=27) == pytest.approx(expected, abs=0.03)  # clusters depend on the processor
    assert capfd.readouterr() == ("", "")


@needs_faiss
@pytest.mark.parametrize("num_buckets", [None, 7])
@pytest.mark.parametrize("shift", [0.0, 0.3, 1.0])
def test_mauve_agrees_with_the_package_where_it_is_installed(shift, num_buckets):
    package = pytest.importorskip("mauve")
    real, fake = clouds(shift, count=300)
    expected = package.compute_mauve(
        p_features=real.numpy(), q_features=fake.numpy(), num_buckets=num_buckets or "auto", seed=25
    )
    assert mauve(real, fake, seed=27, num_buckets=num_buckets) == pytest.approx(expected.mauve, rel=1e-6)


@needs_faiss
def test_mauve_finds_clusters_that_nobody_generates():
    centres = 20 * torch.eye(4, 16).repeat_interleave(25, dim=0)
    real, fake = (0.1 * cloud + centres for cloud in clouds(0.0))
    histograms = quantise(real, fake, num_buckets=4, seed=0)
    assert [sorted(histogram) for histogram in histograms] == [[0.25] * 4] * 2
    assert mauve(real, fake, seed=0, num_buckets=4) == pytest.approx(1)
    lacking = torch.cat([fake[:75], fake[:25]])
    assert mauve(real, lacking, seed=0, num_buckets=4) < 0.9


@needs_faiss
def test_mauve_depends_on_the_seed_of_the_clustering_only():
    values = [mauve(*clouds(0.3), seed=seed) for seed in (0, 0, 1, 2)]
    assert values == mauve_by_seed(*clouds(0.3), seeds=(0, 0, 1, 2))
    assert values[0] == values[1]
    assert len(set(values)) > 1


@needs_faiss
def test_clustering_in_one_thread_leaves_the_threads_of_the_process_as_they_were():
    import faiss

    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(2)
    try:
        mauve(*clouds(0.3), seed=0)
        assert faiss.omp_get_max_threads() == 2
    finally:
        faiss.omp_set_num_threads(before)


def test_without_its_library_mauve_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ValueError, match=r"pip install 'crocodil\[eval\]'"):
        mauve(*clouds(0.0), seed=0)


def test_mauve_refuses_too_few_texts_and_features_that_are_not_finite():
    features = torch.zeros(30, 4)
    broken = features.clone()
    broken[[4, 7]] = torch.nan
    for real, fake, line in [
        (features, broken, "2 of the fake features are not finite, first that of text 4"),
        (features, features[:5], "6 clusters needs at least 6 texts on each side: there are 5; give more samples"),
        (features[:0], features, "there are 0"),
    ]:
        with pytest.raises(ValueError, match=line):
            mauve(real, fake, seed=0, num_buckets=6)


def test_principal_components_explain_the_share_asked_for():
    points = tiny.streams(200).normal(5) * torch.tensor([10.0, 5, 1, 0.1, 0.1]) + 7
    total = points.var(dim=0).sum()
    for share, count in ((0.5, 1), (0.9, 2), (0.995, 3), (1.0, 5)):
        components = principal_components(points.double(), share=share)
        assert components.shape == (200, count)
        assert components.var(dim=0).sum() >= 0.99 * share * total
    assert torch.allclose(torch.pdist(components), torch.pdist(points.double()))


# ---------------------------------------------------------------- BERTScore


def texts(name, lengths):
    """Texts of these lengths, the first and last tokens special."""
    index, ends = torch.arange(max(lengths)), torch.tensor(lengths)[:, None]
    vectors = tiny.streams(len(lengths), name).normal(max(lengths), 6) + 0.5
    return EmbeddedTexts(vectors, index < ends, (index > 0) & (index < ends - 1))


def test_bert_score_is_that_of_its_reference_package():
    """What `bert-score` 0.3.13 gives for these vectors."""
    found = bert_score(texts("reference", [7, 5, 4]), texts("found", [6, 8, 3]))
    assert found.precision.tolist() == pytest.approx([0.4767, 0.5991, 0.7423], abs=1e-4)
    assert found.recall.tolist() == pytest.approx([0.7863, 0.7196, 0.6511], abs=1e-4)
    assert found.f1.tolist() == pytest.approx([0.5935, 0.6538, 0.6937], abs=1e-4)


@pytest.mark.filterwarnings("ignore")  # of packages that it imports
def test_bert_score_agrees_with_the_package_where_it_is_installed():
    package = pytest.importorskip("bert_score.utils")
    reference, found = texts("one", [9, 4, 6, 12]), texts("two", [5, 12, 6, 3])
    arguments = [
        part
        for text in (reference, found)
        for part in (text.vectors.clone(), text.present.long(), text.counted.float())
    ]
    for ours, theirs in zip(bert_score(reference, found), package.greedy_cos_idf(*arguments), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


def test_a_text_matches_itself_however_its_vectors_are_scaled():
    text = texts("text", [7, 5, 4])
    scaled = EmbeddedTexts(3 * text.vectors, text.present, text.counted)
    for values in bert_score(text, scaled):
        assert torch.allclose(values, torch.ones(3))


def test_padding_changes_nothing():
    reference, found = texts("reference", [7, 5, 4]), texts("found", [6, 8, 3])
    filled = EmbeddedTexts(found.vectors.masked_fill(~found.present[..., None], 1e3), found.present, found.counted)
    for ours, same in zip(bert_score(reference, found), bert_score(reference, filled), strict=True):
        assert torch.equal(ours, same)


def test_an_empty_text_scores_zero():
    for lengths in ([6], [2]), ([2], [6]), ([2], [2]):
        score = bert_score(*map(texts, ("reference", "found"), lengths))
        assert [values.item() for values in score] == [0, 0, 0]
