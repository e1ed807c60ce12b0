"""What is measured of answers has exact values on pairs made by hand, and real answers are perfect."""

import pytest

from crocodil.corpus.cuts import Cuts, cuts_of
from crocodil.metrics.answer_quality import (
    edit_similarity,
    ended,
    exact_match,
    has_checks,
    is_indented_well,
    parses_in_place,
    starts_at_column,
)

PROMPT = 'def mean(values):\n    """Return the mean."""\n'
REAL = "    total = sum(values)\n    return total / len(values)"
PROGRAM = '''
class Table:
    """Rows."""

    def find(self, name):
        """Return a row.

        >>> Table().find("x")
        """
        # Ask every row for its name
        for row in (
    self.rows):

            # also an empty one
            if row.name == name:
                text = """
at the first column
"""
                return row

        else:
            return None
        return text
'''.lstrip()


def test_exact_match_and_edit_similarity_have_known_values():
    assert exact_match("return 1\n", "return 1")
    assert not exact_match(" return 1", "return 1")
    assert edit_similarity("abcd", "abcd\n") == 1
    assert edit_similarity("abcx", "abcd") == 0.75
    assert edit_similarity("", "abcd") == 0
    assert edit_similarity("ab", "abcdefgh") == 0.25
    assert edit_similarity("  ab", "ab") == 0.5  # indentation is part of an answer


def test_an_answer_parses_in_place_with_prompt_and_suffix():
    assert parses_in_place(PROMPT, REAL, "")
    assert parses_in_place(PROMPT, "", "")  # why shares that parse are compared with those of the empty answer
    assert not parses_in_place(PROMPT, "    return (", "")
    assert parses_in_place("try:\n", "    x = 1", "\nexcept OSError:\n    pass\n")
    assert parses_in_place("    def f(self):\n", "        return 1", "")  # a method by itself
    assert not parses_in_place("    def f(self):\n", "    return 1", "")
    assert parses_in_place("\tdef f(self):\n", "\t\treturn 1", "")


@pytest.mark.parametrize(
    ("answer", "column", "indentation"),
    [
        (REAL, True, True),
        ("    for x in values:\n        print(x)\n    return 1", True, True),
        ("    x = [\n1,\n]\n    return x", True, True),  # brackets may stand anywhere
        ("\n    return 1", True, True),
        ("  return 1", False, True),
        ("return 1", False, True),
        ("    x = 1\n      y = 2", True, False),  # deeper without a colon
        ("    if x:\n    y = 2", True, False),  # not deeper after one
        ("    if x:\n        y = 1\n      z = 2", True, False),  # between two levels
        ("    return 1\nprint(2)", True, False),  # leaves the function
        ("    return (1,\n", True, True),  # nothing is wrong so far
        ("", False, False),
    ],
)
def test_column_and_indentation_are_those_that_python_asks_for(answer, column, indentation):
    assert starts_at_column(PROMPT, answer, REAL) == column
    assert is_indented_well(PROMPT, answer) == indentation


@pytest.mark.parametrize(
    ("kind", "answer", "rest"),
    [
        ("body", REAL, "\n\ndef other():\n    return 2\n"),
        ("body", REAL, "\n# the next one\nx = 1"),
        ("body", REAL, "\n  x = 1"),
        ("body", REAL + "\n\n    # still the body\n    return 2", "\nx = 1"),
        ("block", REAL, "\n\n    return 3"),
        ("block", REAL, "\n    # Another block\n    return 3"),
        ("own", REAL + "\n\nx = 1\n", ""),
    ],
)
def test_a_generated_answer_is_cut_where_an_answer_of_its_kind_ends(kind, answer, rest):
    assert ended(PROMPT, answer + rest, kind) == answer


@pytest.mark.parametrize("kind", ["body", "middle", "block"])
def test_real_answers_are_perfect(kind):
    cuts = cuts_of(PROGRAM, Cuts(kinds=(kind,), per_document=100))
    assert cuts
    for _, whole, place in cuts:
        prompt, real = PROGRAM[whole.start : place.start], PROGRAM[place.start : place.end]
        assert ended(prompt, real, kind) == real
        assert starts_at_column(prompt, real, real)
        assert is_indented_well(prompt, real)
        assert parses_in_place(prompt, real, PROGRAM[place.end : whole.end])


def test_doctests_around_an_answer_and_asserts_behind_it_are_checks():
    assert has_checks('def f():\n    """\n    >>> f()\n    1\n    """\n', "")
    assert has_checks("def f():\n", "\nassert f() == 1\n")
    assert not has_checks("def f():\n    assert True\n", "\n    assert f\n")
