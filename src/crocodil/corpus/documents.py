"""A source file as the corpus sees it: its text made plain, its definitions, what it is cut into."""

import ast
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias


class Span(NamedTuple):
    """A stretch of characters."""

    start: int
    end: int


@dataclass(frozen=True)
class RawFile:
    """What a source gives: bytes with their provenance."""

    package: str  # whose cap and whose split it shares
    path: str
    licence: str
    data: bytes


def utf8_name(name: str) -> str:
    r"""A name as valid UTF-8: bytes of a file name that are none stand as escapes, `caf\udce9.py`."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


@dataclass(frozen=True)
class SourceFile:
    """A decoded file; what filters look at."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module | None:
        """The syntax tree; None where this is no Python that the running version can read."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old code is full of invalid escapes
            try:
                return ast.parse(self.text)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                return None


@dataclass(frozen=True)
class Document:
    """What the corpus keeps: a whole file, or one definition of a file too long to keep whole."""

    package: str
    path: str
    licence: str
    text: str
    starts: list[Span]  # where a shorter program may start: the definitions inside


Cut: TypeAlias = Callable[[SourceFile], list[Span]]  # the parts that can stand alone

_LEADING_COMMENTS = re.compile(r"\A(?:[ \t]*(?:#[^\n]*)?\n)+")
_NOTICE = re.compile(r"copyright|licen[cs]e|\(c\)|all rights reserved|spdx", re.I)


def plain(text: str) -> str:
    """Unix newlines, no byte-order mark, no blanks at line ends, no newline at the end."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    return re.sub(r"[ \t]+$", "", text, flags=re.M).strip("\n")


def without_notice(text: str) -> str:
    """Python without its shebang and coding lines and without a leading block of licence comments."""
    while match := re.match(r"#!.*\n|#.*coding[:=].*\n", text):
        text = text[match.end() :]
    leading = _LEADING_COMMENTS.match(text)
    if leading and _NOTICE.search(leading.group()):
        text = text[leading.end() :]
    return text.lstrip("\n")


def definitions(file: SourceFile) -> list[Span]:
    """Top-level functions and classes, with their decorators and the comments right above them."""
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
    """Stretches between blank lines: where plain text may be cut."""
    return [Span(*match.span()) for match in re.finditer(r"[^\n]+(?:\n[^\n]+)*", file.text)]
