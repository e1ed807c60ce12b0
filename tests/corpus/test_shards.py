import os

import numpy as np
import pytest
from wheels import program

from crocodil.corpus.build import encode_documents
from crocodil.corpus.documents import Document, SourceFile, definitions
from crocodil.corpus.leaks import leaked_shares, window_hashes
from crocodil.corpus.order import Order
from crocodil.corpus.shards import Programs, Shard, ShardWriter, token_dtype
from crocodil.text.tokenizer import Tokenizer

BOS, EOS = 1, 2
TEXTS = [program(name, count) for name, count in (("a", 1), ("b", 4), ("c", 7))]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(TEXTS, vocab_size=400)


def shard(directory, *documents, name="shard"):
    """A shard of (ids, parts)."""
    writer = ShardWriter(np.dtype("<u2"))
    for number, (ids, parts) in enumerate(documents):
        writer.add(ids, parts, package=number, path=f"p/{number}.py")
    writer.save(directory / name)
    return Shard(directory / name, np.dtype("<u2"))


def ids(start, count):
    return list(range(start, start + count))


def test_what_was_written_is_read_back(tmp_path):
    found = shard(tmp_path, (ids(10, 5), [(0, 2), (3, 2)]), (ids(50, 3), []))
    assert found.tokens.tolist() == [10, 11, 12, 13, 14, 50, 51, 52]
    assert found.documents["start"].tolist() == [0, 5]
    assert found.parts["length"].tolist() == [2, 2]
    assert found.paths == ["p/0.py", "p/1.py"]
    assert [file.name for file in tmp_path.iterdir()] == ["shard"]


def test_ids_are_stored_as_small_as_the_vocabulary_allows():
    assert token_dtype(8192).itemsize == token_dtype(65_536).itemsize == 2
    assert token_dtype(65_537).itemsize == 4


def test_a_program_is_beginning_text_end_and_the_rest_end(tmp_path):
    programs = Programs([shard(tmp_path, (ids(10, 3), []))], 8, bos=BOS, eos=EOS)
    assert programs[0].tolist() == [BOS, 10, 11, 12, EOS, EOS, EOS, EOS]
    assert programs.num_tokens == 3


def test_the_same_shards_give_other_programs_for_another_length(tmp_path):
    fits, parts = (ids(10, 6), [(0, 2), (2, 4)]), (ids(100, 30), [(2, 5), (10, 20)])
    without_parts = (ids(200, 20), [])
    view = [shard(tmp_path, fits, parts, without_parts)]

    short = Programs(view, 8, bos=BOS, eos=EOS)  # six tokens of text fit
    assert [row.tolist() for row in short] == [
        [BOS, *ids(10, 6), EOS],  # a document that fits
        [BOS, *ids(102, 5), EOS, EOS],  # a definition that fits
        [BOS, *ids(110, 7)],  # one that does not: cut, and no end
        [BOS, *ids(200, 7)],  # a long document without definitions: likewise
    ]
    assert short.index["cut"].tolist() == [False, False, True, True]
    assert short.index["package"].tolist() == [0, 1, 1, 2]

    longer = Programs(view, 32, bos=BOS, eos=EOS)
    assert [int(length) for length in longer.index["length"]] == [6, 30, 20]
    assert not longer.index["cut"].any()
    assert longer.batch([0, 2]).shape == (2, 32)
    with pytest.raises(ValueError, match="length must be at least 3"):
        Programs(view, 2, bos=BOS, eos=EOS)


def test_programs_of_several_shards_stand_one_after_the_other(tmp_path):
    view = [shard(tmp_path, (ids(10 * n, 4), []), name=f"{n}") for n in (1, 2)]
    programs = Programs(view, 6, bos=BOS, eos=EOS)
    assert [row[1] for row in programs] == [10, 20]
    assert programs.batch([1, 0, 1]).tolist() == [programs[number].tolist() for number in (1, 0, 1)]


@pytest.mark.parametrize("text", TEXTS)
def test_encoding_in_pieces_is_encoding_the_whole_and_definitions_are_found_in_it(tokenizer, text):
    spans = definitions(SourceFile("m.py", text.strip("\n")))
    document = Document("p", "m.py", "MIT", text.strip("\n"), spans)
    (found, parts), (plain, none) = encode_documents(
        tokenizer, [document, Document("p", "n.py", "MIT", "x = 1", [])]
    )
    assert found == tokenizer.encode(document.text)
    assert [tokenizer.decode(found[start : start + length]) for start, length in parts] == [
        document.text[start:end] for start, end in spans
    ]
    assert (plain, none) == (tokenizer.encode("x = 1"), [])


# ---------------------------------------------------------------- damage


def test_a_token_beyond_the_vocabulary_is_damage(tmp_path):
    view = shard(tmp_path, (ids(10, 6), []))
    whole = Programs([view], 8, bos=BOS, eos=EOS, vocab_size=16)
    assert whole.batch([0]).max() < 16
    damaged = Programs([view], 8, bos=BOS, eos=EOS, vocab_size=15)
    for read in (lambda: damaged[0], lambda: damaged.batch([0])):
        with pytest.raises(ValueError, match="is damaged: token 15 is outside a vocabulary of 15"):
            read()


def flipped(file, value):
    """The table of a shard with another first row."""
    table = np.load(file)
    for name in value:
        table[name][0] = value[name]
    np.save(file, table)


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("documents.npy", lambda file: file.write_bytes(b""), r"documents\.npy is damaged"),
        ("documents.npy", lambda file: file.write_bytes(b"junk"), r"documents\.npy is damaged"),
        ("documents.npy", lambda file: file.write_bytes(file.read_bytes()[:-5]), r"documents\.npy is damaged"),
        ("documents.npy", lambda file: file.write_bytes(file.read_bytes().replace(b"}", b"(")), "is damaged"),
        (
            "documents.npy",
            lambda file: (file.unlink(), os.mkfifo(file)),
            r"documents\.npy is damaged: it is not a regular",
        ),
        (
            "documents.npy",
            lambda file: np.save(file, np.arange(3)),
            r"documents\.npy is damaged: its columns are not as expected",
        ),
        ("parts.npy", lambda file: np.save(file, np.array([{}])), r"parts\.npy is damaged"),
        ("tokens.bin", lambda file: file.write_bytes(b""), r"tokens\.bin is damaged"),
        ("tokens.bin", lambda file: file.write_bytes(file.read_bytes()[:-1]), r"tokens\.bin is damaged"),
        ("tokens.bin", lambda file: file.write_bytes(file.read_bytes()[:-2]), "do not fit its tokens"),
        ("documents.npy", lambda file: flipped(file, {"length": 1 << 30}), "do not fit its tokens"),
        ("documents.npy", lambda file: flipped(file, {"start": -7}), "do not fit its tokens"),
        ("documents.npy", lambda file: flipped(file, {"first_part": 9}), "do not fit its tokens"),
        ("documents.npy", lambda file: flipped(file, {"num_parts": -1}), "do not fit its tokens"),
        ("parts.npy", lambda file: flipped(file, {"length": 1000}), "do not fit its tokens"),
    ],
)
def test_a_damaged_shard_is_one_line_that_names_it(tmp_path, name, damage, message):
    view = shard(tmp_path, (ids(10, 6), [(0, 2), (2, 4)]), (ids(100, 30), [(2, 5), (10, 20)]))
    Programs([view], 8, bos=BOS, eos=EOS)
    damage(tmp_path / "shard" / name)
    with pytest.raises(ValueError, match=message):
        Programs([Shard(view.directory, view.dtype)], 8, bos=BOS, eos=EOS)


def test_a_path_may_hold_any_sign(tmp_path):
    writer = ShardWriter(np.dtype("<u2"))
    paths = ["a\rb.py", "c\x0cd.py", "e\u2028f.py", "[red]g.py", r"h\udce9.py"]
    for path in paths:
        writer.add([1], [], package=0, path=path)
    writer.save(tmp_path / "shard")
    assert Shard(tmp_path / "shard", np.dtype("<u2")).paths == paths


# ---------------------------------------------------------------- order


@pytest.mark.parametrize("count", [1, 2, 7, 100, 1000])
def test_every_epoch_is_another_permutation(count):
    order = Order(count, "key")
    epochs = order.at(np.arange(3 * count)).reshape(3, count)
    for epoch in epochs:
        assert sorted(epoch.tolist()) == list(range(count))
    if count > 7:
        assert (epochs[0] != epochs[1]).mean() > 0.9
        assert (Order(count, "other").at(np.arange(count)) != epochs[0]).mean() > 0.9


def test_places_look_random():
    items = Order(10_000, "key").at(np.arange(10_000))
    assert abs(np.corrcoef(np.arange(10_000), items)[0, 1]) < 0.05
    assert np.abs(np.diff(items)).mean() == pytest.approx(10_000 / 3, rel=0.05)


def test_an_item_depends_only_on_its_index_not_on_the_batch_or_the_ranks():
    order, indices = Order(1000, "key"), np.arange(37 * 24, 38 * 24)
    whole = order.at(indices)
    for num_ranks in (1, 2, 3, 8):
        assert (
            np.concatenate([order.at(share) for share in np.split(indices, num_ranks)]).tolist() == whole.tolist()
        )
    with pytest.raises(ValueError, match="no programs to put in order"):
        Order(0, "key")


# ---------------------------------------------------------------- leaks


def test_the_leaked_share_is_the_share_of_windows_that_train_has_too(tmp_path):
    draw = np.random.default_rng(0)
    train, other = (draw.integers(0, 5000, 400).tolist() for _ in range(2))
    known = [shard(tmp_path, (train[:150], []), (train[150:], []), name="train")]
    half = other[:100] + train[200:300]
    held_out = {
        "half": [shard(tmp_path, (half, []), (train[:20], []), name="half")],  # 20 tokens hold no window of 30
        "across": [shard(tmp_path, (train[130:170], []), name="across")],  # spans two documents of train
        "all": known,
        "none": [],
    }
    shares = leaked_shares(held_out, known)
    assert shares == {"half": pytest.approx(71 / 171), "across": 0, "all": 1, "none": 0}
    assert leaked_shares({"none": []}, known) == {"none": 0}


def test_windows_have_equal_hashes_where_they_are_equal_and_nowhere_else(tmp_path):
    draw = np.random.default_rng(1)
    tokens = draw.integers(0, 3, 3000)  # three ids only: many windows share most of their tokens
    (hashes,) = window_hashes(shard(tmp_path, (tokens.tolist(), [])))
    windows = np.lib.stride_tricks.sliding_window_view(tokens, 30)
    assert len(np.unique(hashes)) == len(np.unique(windows, axis=0)) == len(windows) == len(hashes)
    (twice,) = window_hashes(shard(tmp_path, ([*tokens[:50].tolist(), *tokens[:50].tolist()], []), name="twice"))
    assert twice[:21].tolist() == twice[50:].tolist()
