import numpy as np
import pytest

from crocodil.metrics import Run, longest_training_runs, memorisation


def longest_by_brute_force(sample, training):
    """Return the length of the longest common run, by dynamic programming."""
    longest = 0
    for tokens in training:
        before = np.zeros(len(sample) + 1, dtype=int)
        for token in tokens:
            now = np.zeros_like(before)
            now[1:] = np.where(np.asarray(sample) == token, before[:-1] + 1, 0)
            longest, before = max(longest, int(now.max())), now
    return longest


def random_texts(rng, count, *, longest, vocab):
    return [rng.integers(0, vocab, size=rng.integers(0, longest + 1)).astype(np.uint16) for _ in range(count)]


@pytest.mark.parametrize("vocab", [2, 4, 50])
@pytest.mark.parametrize("shortest", [2, 3, 8])
@pytest.mark.parametrize("chunk", [5, 1 << 21])
def test_the_longest_run_is_the_one_that_brute_force_finds(monkeypatch, vocab, shortest, chunk):
    monkeypatch.setattr(memorisation, "TOKENS_PER_CHUNK", chunk)
    rng = np.random.default_rng((vocab, shortest))
    training = random_texts(rng, 3, longest=300, vocab=vocab)
    samples = random_texts(rng, 12, longest=40, vocab=vocab)
    samples.append(training[0][7:60])
    runs = longest_training_runs([sample.tolist() for sample in samples], training, shortest=shortest)
    for sample, run in zip(samples, runs, strict=True):
        exact = longest_by_brute_force(sample, training)
        assert run.length == (exact if exact >= shortest else 0)
        copied = training[run.source][run.offset : run.offset + run.length]
        assert np.array_equal(sample[run.start : run.start + run.length], copied)


def test_the_run_of_a_copy_is_its_whole_sample_and_names_its_source():
    rng = np.random.default_rng(0)
    training = [rng.integers(0, 8192, size=5000).astype(np.uint16) for _ in range(2)]
    whole, part = training[1][700:956], rng.integers(0, 8192, size=256)
    part[100:140] = training[0][60:100]
    samples = [whole.tolist(), part.tolist(), part[:100].tolist(), []]
    assert longest_training_runs(samples, training) == [Run(256, 0, 1, 700), Run(40, 100, 0, 60), Run(), Run()]


def test_boilerplate_that_occurs_many_times_is_kept_once():
    boilerplate, rng = np.arange(100), np.random.default_rng(0)
    parts = [part for _ in range(1000) for part in (boilerplate, rng.integers(200, 8192, size=3))]
    training = np.concatenate(parts).astype(np.uint16)
    own = np.concatenate([boilerplate, rng.integers(200, 8192, size=100)])
    windows = memorisation._Text([own])
    fingerprints = np.unique(windows.fingerprints(windows.windows(16), 16))
    assert len(list(memorisation._shared_stretches(fingerprints, [training], 16))) == 1
    assert longest_training_runs([own.tolist()], [training])[0].length == 100


def test_runs_do_not_cross_from_one_training_array_or_sample_to_the_next():
    first, second = np.arange(20), np.arange(20, 40)
    assert longest_training_runs([list(range(40))], [first, second], shortest=4) == [Run(20, 0, 0, 0)]
    split = longest_training_runs([list(range(10)), list(range(10, 30))], [np.arange(40)], shortest=4)
    assert [run.length for run in split] == [10, 20]


def test_empty_samples_or_training_data_give_no_run():
    assert longest_training_runs([], [np.arange(20)]) == []
    assert longest_training_runs([[1, 2, 3], []], []) == [Run(), Run()]
    assert longest_training_runs([list(range(20))], [np.zeros(0, dtype=np.uint16)]) == [Run()]
    with pytest.raises(ValueError, match="at least two tokens"):
        longest_training_runs([], [], shortest=1)


def test_training_tokens_may_be_memory_mapped(tmp_path):
    np.arange(500, dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    mapped = np.memmap(tmp_path / "tokens.bin", dtype="<u2", mode="r")
    assert longest_training_runs([list(range(30, 90))], [mapped]) == [Run(60, 0, 0, 30)]
