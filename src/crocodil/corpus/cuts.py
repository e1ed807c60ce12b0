"""Where a program is cut into a prompt and an answer (decision D55). Pure functions of the text.

Cuts are at line breaks. The answer has whole lines with their indentation, and no line break at its end. Prompt,
answer and what follows are one stretch of the program, so joining them gives its text again, byte for byte.
"""

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import Literal, NamedTuple, TypeAlias

from crocodil.corpus.documents import SourceFile, Span, definitions
from crocodil.runtime.config import Count, config

Kind: TypeAlias = Literal["body", "middle", "block"]
KINDS: tuple[Kind, ...] = ("body", "middle", "block")
Function = ast.FunctionDef | ast.AsyncFunctionDef
WITH_BLOCKS = ast.stmt | ast.ExceptHandler | ast.match_case

_DIRECTIVE = re.compile(
    r"\b(noqa|pylint|pragma|fmt|isort|mypy|pyright|flake8|todo|fixme|xxx|copyright|licen[cs]e|nosec)\b|\btype:",
    re.I,
)
_WORDS_OF_A_COMMENT = 3


@config
class Cuts:
    """Which cuts are made, and how many."""

    kinds: tuple[Kind, ...] = KINDS
    per_document: Count = 4  # of each kind
    max_lines: Count = 32  # of an answer
    max_chars: Count = 4000  # of prompt, answer and suffix together
    seed: str = "0"

    def __post_init__(self) -> None:
        if not self.kinds or len(set(self.kinds)) < len(self.kinds):
            raise ValueError(f"kinds should be some of {', '.join(KINDS)}, each once")


class Cut(NamedTuple):
    """A stretch of a program, and the answer inside it: the prompt is before it, the suffix after it."""

    kind: Kind
    whole: Span
    answer: Span


def cuts_of(text: str, cuts: Cuts) -> list[Cut]:
    """Return the cuts of a program, in order; a text that is not Python has none.

    At most `per_document` random cuts of each kind are kept; the choice depends on the text and the seed alone.
    """
    source = _Source("", text)
    if source.tree is None:
        return []
    rules = {"body": bodies, "middle": middles, "block": blocks}
    kept: list[Cut] = []
    for kind in cuts.kinds:
        fitting = {cut for cut in rules[kind](source, cuts) if _fits(cut, text, cuts)}
        kept += sorted(fitting, key=lambda cut: draw(cuts.seed, source.key, *cut.whole, *cut.answer))[
            : cuts.per_document
        ]
    return sorted(kept, key=lambda cut: (cut.answer, cut.whole, cut.kind))


def bodies(source: "_Source", _: Cuts) -> Iterator[Cut]:
    """Signature and docstring -> body, for every function with both. Blank lines between belong to the prompt."""
    for node in source.nodes:
        if not isinstance(node, Function) or ast.get_docstring(node, clean=False) is None:
            continue
        docstring, *body = node.body
        if not body or _is_stub(body) or _first_line(body[0]) <= _last_line(docstring):
            continue
        answer = source.lines_span(_last_line(docstring) + 1, _last_line(node))
        yield Cut("body", Span(source.offsets[_first_line(node) - 1], answer.end), answer)


def middles(source: "_Source", cuts: Cuts) -> Iterator[Cut]:
    """Prefix and suffix -> middle: one run of statements of one block, drawn from each top-level definition.

    First the statement is drawn at which the run starts, then the one at which it ends.
    """
    for number, whole in enumerate(definitions(source)):
        starts = [
            runs
            for block in source.blocks
            for index in range(len(block))
            if whole.start < source.offsets[_first_line(block[index]) - 1] < whole.end
            and (runs := list(_runs(source, cuts, whole, block, index)))
        ]
        if starts:
            runs = starts[draw(cuts.seed, source.key, "start", number) % len(starts)]
            yield runs[draw(cuts.seed, source.key, "end", number) % len(runs)]


def _runs(source: "_Source", cuts: Cuts, whole: Span, block: Sequence[ast.stmt], first: int) -> Iterator[Cut]:
    """Yield the runs of statements that start with this one, fit, and are followed by text of the definition."""
    for last in range(first, len(block)):
        answer = source.statements_span(block, first, last)
        if answer is None:
            continue
        cut = Cut("middle", whole, answer)
        if not source.text[answer.end : whole.end].strip() or not _fits(cut, source.text, cuts):
            return
        yield cut


def blocks(source: "_Source", _: Cuts) -> Iterator[Cut]:
    """Comment -> block: the statements directly below it, up to a blank line, a comment or the end of the block.

    The prompt starts with the top-level definition around the comment, or with the comment if there is none.
    """
    around = definitions(source)
    below = {_first_line(block[index]): (block, index) for block in source.blocks for index in range(len(block))}
    for first, last in source.comments():
        block, index = below.get(last + 1, ([], 0))
        if not block or isinstance(block[index], Function | ast.ClassDef):
            continue
        end = index
        while end + 1 < len(block) and _first_line(block[end + 1]) == _last_line(block[end]) + 1:
            end += 1
        answer = source.statements_span(block, index, end)
        if answer is not None:
            start = source.offsets[first - 1]
            start = next((span.start for span in around if span.start <= start < span.end), start)
            yield Cut("block", Span(start, answer.end), answer)


def draw(*key: object) -> int:
    """Return a number that is determined by `key` alone."""
    digest = blake2b("/".join(map(str, key)).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")


class _Source(SourceFile):
    """A program with its lines, numbered from 1 as in `ast`, and its blocks of statements."""

    @cached_property
    def key(self) -> int:
        return draw(self.text)

    @cached_property
    def lines(self) -> list[str]:
        return self.text.split("\n")

    @cached_property
    def offsets(self) -> list[int]:
        """Where each line starts."""
        starts = [0]
        for line in self.lines:
            starts.append(starts[-1] + len(line) + 1)
        return starts

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """The nodes that can have blocks of statements, in the order of `ast.walk`; expressions have none."""
        assert self.tree is not None
        nodes: list[ast.AST] = [self.tree]
        for node in nodes:  # the list grows meanwhile
            nodes += (child for child in ast.iter_child_nodes(node) if isinstance(child, WITH_BLOCKS))
        return nodes

    @cached_property
    def blocks(self) -> list[Sequence[ast.stmt]]:
        """Runs of statements that stand on lines of their own, without docstrings."""
        lists = [
            value
            for node in self.nodes
            for _, value in ast.iter_fields(node)
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt)
        ]
        return [block for statements in lists if (block := self._on_own_lines(statements))]

    def _on_own_lines(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        block = statements[1:] if _is_text(statements[0]) else statements
        column = block[0].col_offset if block else 0
        for statement in block:
            line = self.lines[_first_line(statement) - 1]
            if line[:column].strip() or line[column:].startswith("elif"):
                return []
        return block

    def lines_span(self, first: int, last: int) -> Span:
        """Return these lines without the line break at their end; blank lines at the beginning are left out."""
        while first < last and not self.lines[first - 1].strip():
            first += 1
        return Span(self.offsets[first - 1], self.offsets[last] - 1)

    def statements_span(self, block: Sequence[ast.stmt], first: int, last: int) -> Span | None:
        """Return the lines of some statements of a block, or None if they share a line with another one."""
        start, end = _first_line(block[first]), _last_line(block[last])
        if first and _last_line(block[first - 1]) >= start:
            return None
        if last + 1 < len(block) and _first_line(block[last + 1]) <= end:
            return None
        return self.lines_span(start, end)

    def comments(self) -> list[tuple[int, int]]:
        """Return first and last line of the comments in words that stand on lines of their own."""
        alone = {}
        for token in _tokens(self.text):
            if token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip():
                alone[token.start[0]] = token.start[1]
        starts = [line for line, column in alone.items() if alone.get(line - 1) != column]
        spans = []
        for first in starts:
            last = first
            while alone.get(last + 1) == alone[first]:
                last += 1
            if _is_prose("\n".join(self.lines[first - 1 : last])):
                spans.append((first, last))
        return spans


def _tokens(text: str) -> list[tokenize.TokenInfo]:
    try:
        return list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):  # what `ast` takes and `tokenize` does not
        return []


def _is_prose(comment: str) -> bool:
    """Whether a comment has words and is neither a directive nor code."""
    words = "\n".join(line.strip().lstrip("#").removeprefix(" ") for line in comment.split("\n"))
    if _DIRECTIVE.search(words) or len(re.findall(r"[^\W\d_]{2,}", words)) < _WORDS_OF_A_COMMENT:
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(words)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return True
    return False


def _fits(cut: Cut, text: str, cuts: Cuts) -> bool:
    answer = text[cut.answer.start : cut.answer.end]
    size = cut.whole.end - cut.whole.start
    return bool(answer.strip()) and answer.count("\n") < cuts.max_lines and size <= cuts.max_chars


def _is_text(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _is_stub(body: Sequence[ast.stmt]) -> bool:
    """Whether a body is `pass` or `...`."""
    only = body[0] if len(body) == 1 else None
    is_dots = isinstance(only, ast.Expr) and isinstance(only.value, ast.Constant) and only.value.value is ...
    return isinstance(only, ast.Pass) or is_dots


def _first_line(node: ast.stmt) -> int:
    """Return the first line of a statement, with its decorators."""
    return min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])


def _last_line(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno
