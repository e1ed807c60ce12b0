"""How good an answer to a prompt is, beside the real one: the same text, a similar one, one that fits its place.

A text that fits its place parses there and keeps column and indentation. Texts are Python; where the real answer
itself does not parse in place, or has no such column, a pair does not count (decision D58).
"""

import doctest
import io
import tokenize
from collections.abc import Iterator
from typing import NamedTuple

from crocodil.metrics.text_statistics import parses_as_python

_LAYOUT = {
    tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT, tokenize.ENDMARKER, tokenize.ENCODING,
}  # fmt: skip
_GO_ON = {"else", "elif", "except", "finally"}


def exact_match(answer: str, real: str) -> bool:
    """Whether two answers are the same, up to white space at their end."""
    return answer.rstrip() == real.rstrip()


def edit_similarity(answer: str, real: str) -> float:
    """Return 1 minus the character edits between two answers, divided by the length of the longer one."""
    try:
        from rapidfuzz.distance import Levenshtein
    except ImportError as missing:
        raise ValueError("the edit similarity needs rapidfuzz: pip install rapidfuzz") from missing
    return Levenshtein.normalized_similarity(answer.rstrip(), real.rstrip())


# ---------------------------------------------------------------- in place


def program_of(prompt: str, answer: str, suffix: str) -> str:
    """Return the text with the answer in place; a stretch that starts with indentation stands below an `if`."""
    text = f"{prompt}{answer}{suffix}"
    return f"if True:\n{text}" if text[:1] in (" ", "\t") else text


def parses_in_place(prompt: str, answer: str, suffix: str) -> bool:
    """Whether the text with the answer in place is Python."""
    return parses_as_python(program_of(prompt, answer, suffix))


def starts_at_column(prompt: str, answer: str, real: str) -> bool:
    """Whether the first line of an answer is indented like that of the real one."""
    return bool(answer.strip()) and _first_indentation(prompt, answer) == _first_indentation(prompt, real)


def is_indented_well(prompt: str, answer: str) -> bool:
    """Whether every line of an answer is indented as Python asks, and none leaves the block that it starts in.

    A line is indented more than the one above exactly if that ends with a colon. Where a text cannot be split into
    tokens, for an open bracket for example, the lines before that count.
    """
    if not answer.strip():
        return False
    column, opens = len(_first_indentation(prompt, answer)), False
    levels = [column]
    for line in _lines(prompt, answer):
        if line.column < column or line.is_wrong:
            return False
        if opens != (line.column > levels[-1]):
            return False
        if opens:
            levels.append(line.column)
        while levels[-1] > line.column:
            levels.pop()
        if levels[-1] != line.column:
            return False
        opens = line.opens
    return True


def ended(prompt: str, answer: str, kind: str) -> str:
    """Cut a generated answer where an answer of its kind ends; a real answer is not changed.

    body, middle and block end before a line that is indented less than their first one. A block also ends before a
    blank line or a comment between its own statements. All other answers end where the model ends them.
    """
    if kind not in ("body", "middle", "block") or not answer.strip():
        return answer
    rows, column, last = answer.split("\n"), len(_first_indentation(prompt, answer)), 0
    for line in _lines(prompt, answer):
        is_next_block = kind == "block" and line.column == column and line.first > last and not line.goes_on
        if last and (line.column < column or is_next_block):
            return "\n".join(rows[:last])
        last = line.last
    return answer.rstrip()


class _Line(NamedTuple):
    """A line of code, maybe over several rows of the answer."""

    first: int  # row, from 0
    last: int  # the row after its last one
    column: int
    opens: bool = False  # it ends with a colon
    goes_on: bool = False  # it is part of the statement above
    is_wrong: bool = False  # its indentation is none that Python accepts


def _lines(prompt: str, answer: str) -> Iterator[_Line]:
    """Yield the lines of code of an answer, up to where it cannot be split into tokens."""
    text = prompt[prompt.rfind("\n") + 1 :] + answer
    tokens: list[tokenize.TokenInfo] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text + "\n").readline):
            if token.type == tokenize.NEWLINE and tokens:
                yield _line(tokens)
                tokens = []
            elif token.type not in _LAYOUT:
                tokens.append(token)
    except IndentationError as error:
        row = (error.lineno or 1) - 1
        rows = text.split("\n")
        if row < len(rows):
            yield _Line(row, row + 1, len(_leading(rows[row])), is_wrong=True)
    except (tokenize.TokenError, SyntaxError):
        return


def _line(tokens: list[tokenize.TokenInfo]) -> _Line:
    first, last = tokens[0], tokens[-1]
    return _Line(first.start[0] - 1, last.end[0], first.start[1], last.string == ":", first.string in _GO_ON)


def _first_indentation(prompt: str, answer: str) -> str:
    """Return the indentation of the line at which an answer starts."""
    rows = (prompt[prompt.rfind("\n") + 1 :] + answer).split("\n")
    return _leading(next((row for row in rows if row.strip()), ""))


def _leading(row: str) -> str:
    return row[: len(row) - len(row.lstrip(" \t"))]


# ---------------------------------------------------------------- checks


def has_checks(prompt: str, suffix: str) -> bool:
    """Whether the text around an answer has doctests, or asserts that are not inside a function or class."""
    return any(_has_examples(text) for text in (prompt, suffix)) or _has_asserts(suffix)


def _has_examples(text: str) -> bool:
    try:
        return ">>>" in text and bool(doctest.DocTestParser().get_examples(text))
    except ValueError:  # inconsistent white space
        return False


def _has_asserts(suffix: str) -> bool:
    """Whether a row of the suffix that starts at the first column is an assert."""
    return any(row.startswith("assert ") for row in suffix.split("\n"))
