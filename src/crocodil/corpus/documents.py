"""Source files and documents: normalised text, definitions, and the parts into which a file is cut."""

import ast
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias


class Span(NamedTuple):
    """A range of characters."""

    start: int
    end: int


@dataclass(frozen=True)
class RawFile:
    """A file from a source: bytes with their provenance."""

    package: str  # files of one package share a size cap and a split
    path: str
    licence: str
    data: bytes


def utf8_name(name: str) -> str:
    r"""Return a file name as valid UTF-8; other bytes are escaped, as in `caf\udce9.py`."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


@dataclass(frozen=True)
class SourceFile:
    """A decoded file, the input of filters."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module | None:
        """The syntax tree, or None if the running Python version cannot parse the file."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old code has many invalid escapes
            try:
                return ast.parse(self.text)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                return None


@dataclass(frozen=True)
class Document:
    """A unit of the corpus: a whole file, or one definition of a file that is too long."""

    package: str
    path: str
    licence: str
    text: str
    starts: list[Span]  # the definitions inside, at which a shorter program may start


Cut: TypeAlias = Callable[[SourceFile], list[Span]]  # the parts that are programs by themselves

_LEADING_COMMENTS = re.compile(r"\A(?:[ \t]*(?:#[^\n]*)?\n)+")
_NOTICE = re.compile(r"copyright|licen[cs]e|\(c\)|all rights reserved|spdx", re.I)


def plain(text: str) -> str:
    """Normalise: Unix newlines, no byte-order mark, no trailing whitespace, no newline at the end."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    return re.sub(r"[ \t]+$", "", text, flags=re.M).strip("\n")


def without_notice(text: str) -> str:
    """Remove the shebang and coding lines and a leading block of licence comments."""
    while match := re.match(r"#!.*\n|#.*coding[:=].*\n", text):
        text = text[match.end() :]
    leading = _LEADING_COMMENTS.match(text)
    if leading and _NOTICE.search(leading.group()):
        text = text[leading.end() :]
    return text.lstrip("\n")


def definitions(file: SourceFile) -> list[Span]:
    """Return the top-level functions and classes, with decorators and the comments directly above."""
    if file.tree is None:
        return []
    lines = file.text.split("\n")
    offsets = [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line) + 1)
    spans = []
    for node in file.tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1
            while first and lines[first - 1].startswith("#"):
                first -= 1
            assert node.end_lineno is not None
            spans.append(Span(offsets[first], offsets[node.end_lineno] - 1))
    return spans


def paragraphs(file: SourceFile) -> list[Span]:
    """Return the paragraphs of a plain text, separated by blank lines."""
    return [Span(*match.span()) for match in re.finditer(r"[^\n]+(?:\n[^\n]+)*", file.text)]
