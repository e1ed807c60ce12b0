import importlib.util
import math
import sys

import pytest

from crocodil.metrics import (
    character_error_rate,
    distinct_n,
    parses_as_python,
    self_repetition,
    share_that_parses,
    token_entropy,
)

needs_rapidfuzz = pytest.mark.skipif(importlib.util.find_spec("rapidfuzz") is None, reason="needs rapidfuzz")


@needs_rapidfuzz
@pytest.mark.parametrize(
    ("reference", "found", "rate"),
    [
        ("kitten", "sitting", 3 / 6),
        ("return x\n", "return x\n", 0),
        ("abcd", "", 1),
        ("ab", "abcdef", 2),
        ("  x", "x", 2 / 3),  # white space counts, at the edges too
        ("é", "e", 1),
        ("", "", 0),
        ("", "ab", 2),
    ],
)
def test_character_errors_are_edits_per_reference_character(reference, found, rate):
    assert character_error_rate(reference, found) == pytest.approx(rate)


def test_without_its_library_the_error_rate_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "rapidfuzz.distance", None)
    with pytest.raises(ValueError, match=r"pip install rapidfuzz"):
        character_error_rate("a", "b")


@pytest.mark.parametrize(
    ("reference", "found", "rate"),
    [("kitten", "sitting", 3 / 6), ("größe = 1", "grosse = 12", 4 / 9), ("abc", "", 1)],
)
def test_the_character_error_rate_is_that_of_jiwer(reference, found, rate):
    """Numbers that jiwer 4 gave; it strips blanks at both ends first, which here are characters like others."""
    pytest.importorskip("rapidfuzz")
    assert character_error_rate(reference, found) == pytest.approx(rate)
    jiwer = pytest.importorskip("jiwer")
    assert jiwer.cer(reference, found) == pytest.approx(rate)


def test_the_entropy_of_even_tokens_is_the_logarithm_of_their_number():
    assert token_entropy([[1, 2, 3, 4], [5, 5, 5, 5]]) == pytest.approx(math.log(4) / 2)
    assert token_entropy([[1, 1, 2, 2, 2, 2, 3, 3]]) == pytest.approx(1.5 * math.log(2))
    assert token_entropy([[], [7]]) == 0


def test_samples_that_are_all_alike_inside_can_differ_from_each_other():
    constant = [[token] * 10 for token in range(8)]
    assert token_entropy(constant) == 0
    assert token_entropy([[1, 2, 3, 4]] * 8) == pytest.approx(math.log(4))


def test_distinct_n_counts_different_ngrams_over_all_samples():
    samples = [[1, 2, 1, 2], [1, 2, 3]]
    assert distinct_n(samples, 1) == pytest.approx(3 / 7)
    assert distinct_n(samples, 2) == pytest.approx(3 / 5)  # 12 21 12, 12 23
    assert math.isnan(distinct_n(samples, 5))


def test_self_repetition_looks_inside_each_sample_only():
    assert self_repetition([[1, 2, 3, 4, 5], [1, 2, 3, 4, 5]]) == 0
    assert self_repetition([[7] * 13]) == pytest.approx(0.9)  # ten windows, one of them new
    assert self_repetition([[7] * 13, [1, 2, 3, 4], [1, 2]]) == pytest.approx(0.45)
    assert math.isnan(self_repetition([[1, 2, 3]]))


@pytest.mark.parametrize("text", ["x = 1\n", "def f():\n    return '\\d'\n", "x is 1", "async def f(): await g()"])
def test_programs_parse_whatever_python_warns_of(text):
    assert parses_as_python(text)


@pytest.mark.parametrize(
    "text",
    ["def f(:", "  x = 1", "print 'hello'", "", "# only a comment\n", "x = '\0'", "(" * 5000, "-" * 100_000 + "1"],
    ids=["syntax", "indentation", "Python 2", "nothing", "comment", "NUL", "brackets", "operators"],
)
def test_what_is_no_program_does_not_parse(text):
    assert not parses_as_python(text)


def test_the_share_that_parses():
    assert share_that_parses(["x = 1", "x =", "y", ")"]) == 0.5
    assert math.isnan(share_that_parses([]))
