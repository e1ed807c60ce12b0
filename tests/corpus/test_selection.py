from dataclasses import replace

import numpy as np
import pytest
from wheels import program

from crocodil.corpus.documents import Document
from crocodil.corpus.harvest import INDEX_FILE, Index
from crocodil.corpus.recipe import Recipe
from crocodil.corpus.selection import _draw, catalogue, near_duplicates, nearly_known, select
from crocodil.corpus.sources import Files
from crocodil.corpus.splits import SPLITS, family


def catalogued(tmp_path, *units):
    """Documents as the selection finds them: lists of (package, text)."""
    directories = []
    for number, documents in enumerate(units):
        index = Index()
        for package, text in documents:
            index.add(Document(package, "path", "MIT", text, []))
        directories.append(tmp_path / f"{number}")
        directories[-1].mkdir()
        index.save(directories[-1] / INDEX_FILE)
    return catalogue(directories, tmp_path / "signatures.bin")


@pytest.fixture
def recipe(tmp_path):
    return Recipe(source=Files(tmp_path))


def kept(documents, recipe):
    return (select(documents, recipe).split >= 0).tolist()


def test_only_the_first_of_equal_texts_is_kept_across_units_and_packages(tmp_path, recipe):
    text, other = program("a", 9), program("b", 9)
    documents = catalogued(tmp_path, [("x", text), ("x", other)], [("y", text), ("z", program("c", 9))])
    assert kept(documents, recipe) == [True, True, False, True]
    assert select(documents, recipe).dropped["exact duplicate"] == (1, len(text))


def test_a_lightly_edited_copy_is_dropped_and_a_different_program_is_kept(tmp_path, recipe):
    text = "\n".join(program(name, 7) for name in ("a", "b", "c"))
    edited = text.replace("on scale 3", "on another scale", 1) + "\n# copied"
    documents = catalogued(tmp_path, [("x", text), ("y", edited), ("z", program("q", 20))])
    assert kept(documents, recipe) == [True, False, True]
    assert select(documents, recipe).dropped["near duplicate"][0] == 1


def test_near_duplicates_are_found_by_sorting_as_by_comparing_all_pairs():
    draw = np.random.default_rng(0)
    originals = draw.integers(0, 2**32, (60, 128), dtype=np.uint32)
    copies = originals[draw.integers(0, 60, 200)].copy()
    for copy, share in zip(copies, draw.uniform(0, 0.5, 200), strict=True):
        places = draw.random(128) < share
        copy[places] = draw.integers(0, 2**32, places.sum(), dtype=np.uint32)
    signature = np.concatenate([originals, copies])
    alike = (signature[:, None] == signature[None]).mean(axis=2)
    earlier = np.tril(np.ones_like(alike), k=-1).astype(bool)
    clearly = ((alike >= 0.75) & earlier).any(axis=1)
    possibly = ((alike >= 0.7) & earlier).any(axis=1)
    found = near_duplicates(signature, 0.7)
    assert (found[clearly]).mean() > 0.97  # hashing in bands misses a pair now and then
    assert not found[~possibly].any()
    assert not found[:60].any()


def test_copies_of_another_corpus_are_dropped_first(tmp_path, recipe):
    (tmp_path / "other").mkdir()
    text = "\n".join(program(name, 7) for name in ("a", "b", "c"))
    edited = text.replace("on scale 3", "on another scale", 1) + "\n# copied"
    known = catalogued(tmp_path / "other", [("x", program("d", 9)), ("x", text)])
    rows = [("y", edited), ("y", program("e", 9)), ("y", program("e", 9)), ("y", program("d", 9))]
    documents = catalogued(tmp_path, rows)
    selection = select(documents, recipe, known)
    assert (selection.split >= 0).tolist() == [False, True, False, False]
    dropped = {reason: amount[0] for reason, amount in selection.dropped.items() if amount[0]}
    assert dropped == {
        "exact duplicate of another corpus": 1, "near duplicate of another corpus": 1, "exact duplicate": 1,
    }  # fmt: skip
    with pytest.raises(ValueError, match="all documents also occur in the other corpora"):
        select(documents, recipe, documents)


def test_a_known_document_is_found_even_if_it_is_not_the_first_of_its_band():
    draw = np.random.default_rng(0)
    known = draw.integers(0, 2**32, (3, 128), dtype=np.uint32)
    known[:, :5] = known[0, :5]
    assert nearly_known(known[2:], known[:2], 0.7).tolist() == [False]
    assert nearly_known(known[2:], known, 0.7).tolist() == [True]


def test_a_package_is_capped_by_a_random_part_that_is_always_the_same(tmp_path, recipe):
    texts = [program(f"p{number}", 6) for number in range(20)]
    documents = catalogued(tmp_path, [("big", text) for text in texts] + [("small", program("s", 6))])
    capped = Recipe(source=recipe.source, package_cap_chars=sum(map(len, texts)) // 2, near_duplicate=1.0)
    chosen = kept(documents, capped)
    assert 8 <= sum(chosen[:20]) <= 10
    assert chosen[20]
    assert chosen[:20] != sorted(chosen[:20], reverse=True)  # not simply the first ones
    assert kept(documents, capped) == chosen


@pytest.mark.parametrize(
    ("package", "expected"),
    [
        ("django==5.1", "django"),
        ("Django_Filter==1.0", "django"),
        ("zope.interface==6", "zope"),
        ("six==1.16", "six"),
        ("owner/repo", "owner"),
    ],
)
def test_packages_of_one_family_share_its_name(package, expected):
    assert family(package) == expected


def test_whole_families_are_held_out_at_the_share_asked_for(tmp_path, recipe):
    packages = [f"family{number}-{part}==1" for number in range(300) for part in ("core", "extra")]
    documents = catalogued(tmp_path, [(name, program(f"m{i}", 5)) for i, name in enumerate(packages)])
    recipe = Recipe(source=recipe.source, valid_share=0.1, test_share=0.2, near_duplicate=1.0)
    split = select(documents, recipe).split
    assert (split[::2] == split[1::2]).all()
    shares = [(split == SPLITS.index(name)).mean() for name in SPLITS]
    assert shares == pytest.approx([0.7, 0.1, 0.2], abs=0.06)
    single = Recipe(
        source=recipe.source, valid_share=0.1, test_share=0.2, near_duplicate=1.0, hold_out_families=False
    )
    split = select(documents, single).split
    assert (split[::2] != split[1::2]).any()
    assert [(split == SPLITS.index(name)).mean() for name in SPLITS] == pytest.approx([0.7, 0.1, 0.2], abs=0.06)


def test_nothing_left_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="no document passed the filters"):
        catalogued(tmp_path, [], [])


@pytest.mark.parametrize("by_family", [True, False])
@pytest.mark.parametrize("count", [3, 4, 21])
def test_three_files_or_families_fill_all_splits(tmp_path, recipe, count, by_family):
    rows = [(f"family{number % count}", program(f"m{number}", 5)) for number in range(2 * count)]
    rows = rows if by_family else rows[:count]
    documents = catalogued(tmp_path, rows)
    for key in range(5):
        small = replace(recipe, hold_out_families=by_family, split_key=f"{key}", near_duplicate=1.0)
        split = select(documents, small).split
        held = [(split == number).sum() for number in range(3)]
        assert min(held) > 0
        assert held[SPLITS.index("train")] == max(held)
        if by_family:
            assert (split[:count] == split[count:]).all()


def test_a_split_that_is_drawn_stays_as_it_is_drawn(tmp_path, recipe):
    documents = catalogued(tmp_path, [(f"family{number}", program(f"m{number}", 5)) for number in range(40)])
    drawn = replace(recipe, valid_share=0.2, test_share=0.2, near_duplicate=1.0)
    draws = np.array([_draw(f"{drawn.split_key}/family{number}") for number in range(40)])
    expected = np.where(draws < 0.2, SPLITS.index("valid"), np.where(draws < 0.4, SPLITS.index("test"), 0))
    assert len(np.unique(expected)) == 3
    assert select(documents, drawn).split.tolist() == expected.tolist()


def test_train_is_filled_first_and_a_split_without_a_share_stays_empty(tmp_path, recipe):
    (tmp_path / "one").mkdir()
    one = catalogued(tmp_path / "one", [("a", program("m", 5))])
    assert select(one, replace(recipe, valid_share=0.9)).split.tolist() == [SPLITS.index("train")]
    documents = catalogued(tmp_path, [(f"family{number}", program(f"m{number}", 5)) for number in range(9)])
    split = select(documents, replace(recipe, valid_share=0.0, test_share=0.0)).split
    assert set(split.tolist()) == {SPLITS.index("train")}


def test_all_documents_can_be_for_tests(tmp_path, recipe):
    documents = catalogued(tmp_path, [(f"family{number}", program(f"m{number}", 5)) for number in range(9)])
    split = select(documents, replace(recipe, valid_share=0.0, test_share=1.0)).split
    assert set(split.tolist()) == {SPLITS.index("test")}


@pytest.mark.parametrize("shares", [(-0.1, 0.1), (0.5, 0.5), (float("nan"), 0.1)])
def test_shares_that_leave_nothing_to_train_are_refused(recipe, shares):
    with pytest.raises(ValueError, match="leave nothing to train"):
        replace(recipe, valid_share=shares[0], test_share=shares[1])
