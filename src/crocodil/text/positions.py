"""A place in a file where text is completed: the text before it, the text after it, and its indentation.

A new line has the indentation that Python expects there (decision D56). Does not import torch.
"""

import io
import keyword
import tokenize
from typing import NamedTuple

_LAST_IN_BLOCK = {"return", "raise", "break", "continue", "pass"}
_LAYOUT = {
    tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT, tokenize.ENDMARKER,
}  # fmt: skip
_UNIT = "    "


class Place(NamedTuple):
    """Where text is completed: `prefix + answer + suffix` is the new file."""

    prefix: str
    suffix: str
    at_column: bool  # the prefix ends with the indentation of a line, so the answer starts with no whitespace


def parse_place(text: str) -> tuple[int, int | None]:
    """Read LINE or LINE:COLUMN, both counted from 1."""
    line, colon, column = text.partition(":")
    numbers = [line, column] if colon else [line]
    if not all(part.isdecimal() and part.isascii() and int(part) > 0 for part in numbers):
        raise ValueError(f"{text!r} is not a place in a file: write LINE or LINE:COLUMN, counted from 1")
    return int(line), int(column) if colon else None


def place_in(text: str, line: int, column: int | None = None) -> Place:
    """Return the place before a column or, without one, a new line after `line`. A blank line is filled."""
    lines = text.split("\n")
    if line > len(lines):
        raise ValueError(f"there is no line {line}: the file has {len(lines)}")
    start = sum(len(above) + 1 for above in lines[: line - 1])
    content = lines[line - 1]
    if column is not None:
        if column > len(content) + 1:
            raise ValueError(f"there is no column {column}: line {line} has {len(content)} characters")
        before = content[: column - 1]
        return Place(text[:start] + before, text[start + len(before) :], bool(start) and not before.strip())
    end = start + len(content)
    above = text[:end] + "\n" if content.strip() else text[:start]
    return Place(above + indentation_after(above), text[end:], at_column=True)


def indentation_after(text: str) -> str:
    """Return the indentation of the line after a text that ends with a line break.

    It is that of the last statement; deeper by one level after a colon, and less deep after `return` and the like.
    Within brackets or a string, and below a comment, it is that of the last line.
    """
    last_line = next((line for line in reversed(text.split("\n")) if line.strip()), "")
    same = _leading(last_line)
    if last_line.lstrip().startswith("#"):
        return same
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        return same  # not Python up to here: what stands below the fault was not read
    statement = _last_statement(tokens)
    is_python = not any(token.type == tokenize.ERRORTOKEN and token.string.strip() for token in tokens)
    if not (is_python and statement and statement[-1].type == tokenize.NEWLINE):
        return same  # not Python, or an open bracket or string
    levels = _levels(tokens)
    depth = _leading(statement[0].line.split("\n")[0])
    last = next((token.string for token in reversed(statement) if token.type not in _LAYOUT), "")
    if last == ":":
        return depth + (levels[1] if len(levels) > 1 else _UNIT)
    first = statement[0].string
    if keyword.iskeyword(first) and first in _LAST_IN_BLOCK:
        return max((level for level in levels if len(level) < len(depth)), key=len, default="")
    return depth


def _last_statement(tokens: list[tokenize.TokenInfo]) -> list[tokenize.TokenInfo]:
    """Return the tokens of the last line of code, maybe of several lines, with its NEWLINE if it is complete."""
    statement: list[tokenize.TokenInfo] = []
    for token in tokens:
        if statement and statement[-1].type == tokenize.NEWLINE and token.type not in _LAYOUT:
            statement = []
        is_part = token.type == tokenize.NEWLINE or token.type not in _LAYOUT
        if is_part and (statement or token.type != tokenize.NEWLINE):
            statement.append(token)
    return statement


def _levels(tokens: list[tokenize.TokenInfo]) -> list[str]:
    """Return the indentations that occur, from none to the deepest."""
    return sorted({"", *(token.string for token in tokens if token.type == tokenize.INDENT)}, key=len)


def _leading(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]
