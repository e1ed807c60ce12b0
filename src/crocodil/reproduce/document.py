"""A report as blocks, written as Markdown and as one HTML page that needs no other file."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, TypeAlias

from crocodil.reproduce.figures import Panel

UNKNOWN = "-"
NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Text:
    """A paragraph, however its lines are broken; **strong** and `code` are understood."""

    text: str

    def __str__(self) -> str:
        return " ".join(self.text.split())


@dataclass(frozen=True)
class Table:
    heads: Sequence[str]
    body: Sequence[Sequence[str]]
    caption: str = ""

    def known(self) -> "Table":
        """Without the columns of which nothing is known."""
        kept = [place for place in range(len(self.heads)) if any(line[place] != UNKNOWN for line in self.body)]
        lines = [[line[place] for place in kept] for line in (self.heads, *self.body)]
        return Table(lines[0], lines[1:], self.caption)

    def holds_numbers(self) -> list[bool]:
        """Of each column: to be set to the right."""
        return [
            all(cell[:1].isdigit() or cell in (UNKNOWN, NOT_MEASURED) for cell in column)
            for column in zip(*self.body, strict=True)
        ]


@dataclass(frozen=True)
class Picture:
    name: str  # of its file
    panels: Sequence[Panel]
    caption: str = ""


@dataclass(frozen=True)
class Listing:
    """A program."""

    title: str
    text: str


Block: TypeAlias = Text | Table | Picture | Listing


@dataclass(frozen=True)
class Section:
    title: str
    blocks: Sequence[Block]


# ---------------------------------------------------------------- numbers


def number(value: float | None, digits: int = 3) -> str:
    """To so many significant digits, and never in powers of ten; whole numbers as they are."""
    if value is None:
        return UNKNOWN
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{_decimals(value, digits)}f}"


def spread_around(value: float | None, spread: float | None, digits: int = 3) -> str:
    """Both to the same place."""
    if value is None or spread is None:
        return number(value, digits)
    return f"{number(value, digits)} ± {spread:,.{_decimals(value, digits)}f}"


def spread_or_not_measured(row: Mapping[str, Any], name: str) -> str:
    """A measure that older rows do not have, with its spread; never left out with its column."""
    if row.get(name) is None:
        return NOT_MEASURED
    return spread_around(row[name], row[f"{name}_spread"])


def _decimals(value: float, digits: int) -> int:
    before = 1 + math.floor(math.log10(abs(value))) if value else 0  # digits left of the point
    return max(0, digits - max(0, before))


# ---------------------------------------------------------------- Markdown


def as_markdown(title: str, sections: Sequence[Section], files: Mapping[str, str]) -> str:
    """`files` says where each picture that was drawn lies."""
    parts = [f"# {title}"]
    for section in sections:
        parts.append(f"## {section.title}")
        parts += [_markdown(block, files) for block in section.blocks]
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown(block: Block, files: Mapping[str, str]) -> str:
    match block:
        case Text():
            return str(block)
        case Table():
            block = block.known()
            lines = [block.heads, ["---:" if right else "---" for right in block.holds_numbers()], *block.body]
            rows = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
            return f"**{block.caption}**\n\n{rows}" if block.caption else rows
        case Picture():
            if block.name not in files:
                return ""
            picture = f"![{block.name}]({files[block.name]})"
            return f"{picture}\n\n{block.caption}" if block.caption else picture
        case Listing():
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", block.text)), default=0))
            return f"**{block.title}**\n\n{fence}python\n{block.text}\n{fence}"


# ---------------------------------------------------------------- HTML

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.5rem; border-top: 1px solid #ddd; padding-top: 1rem; }
table { border-collapse: collapse; margin: 1rem 0; font-size: 14px; display: block; overflow-x: auto; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { padding: .2rem .6rem; border-bottom: 1px solid #e5e5e5; text-align: left; white-space: nowrap; }
.number { text-align: right; }
.published { color: #777; }
figure { margin: 1rem 0; } figure svg { max-width: 100%; height: auto; } figcaption { color: #555; }
pre { background: #f6f6f6; padding: .7rem; overflow-x: auto; font-size: 13px; line-height: 1.35; }
code { background: #f2f2f2; padding: 0 .2rem; }
"""


def as_html(title: str, sections: Sequence[Section], drawings: Mapping[str, str]) -> str:
    """`drawings` are the SVG elements of the pictures, which stand in the page itself."""
    body = "\n".join(_html_parts(title, sections, drawings))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f"<style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _html_parts(title: str, sections: Sequence[Section], drawings: Mapping[str, str]) -> Iterator[str]:
    yield f"<h1>{escape(title)}</h1>"
    yield "<nav><ul>"
    for place, section in enumerate(sections):
        yield f'<li><a href="#s{place}">{escape(section.title)}</a></li>'
    yield "</ul></nav>"
    for place, section in enumerate(sections):
        yield f'<h2 id="s{place}">{escape(section.title)}</h2>'
        yield from (_html(block, drawings) for block in section.blocks)


def _html(block: Block, drawings: Mapping[str, str]) -> str:
    match block:
        case Text():
            return f"<p>{_inline(str(block))}</p>"
        case Table():
            block = block.known()
            kinds = [
                f'class="{"number" if right else ""} {"published" if "published" in head else ""}"'
                for head, right in zip(block.heads, block.holds_numbers(), strict=True)
            ]
            return (
                f"<table><caption>{_inline(block.caption)}</caption>"
                f"<thead>{_html_row('th', block.heads, kinds)}</thead><tbody>"
                + "\n".join(_html_row("td", line, kinds) for line in block.body)
                + "</tbody></table>"
            )
        case Picture():
            if block.name not in drawings:
                return ""
            return f"<figure>{drawings[block.name]}<figcaption>{_inline(block.caption)}</figcaption></figure>"
        case Listing():
            return f"<p><strong>{escape(block.title)}</strong></p><pre>{escape(block.text)}</pre>"


def _html_row(tag: str, cells: Sequence[str], kinds: Sequence[str]) -> str:
    made = (f"<{tag} {kind}>{_inline(cell)}</{tag}>" for cell, kind in zip(cells, kinds, strict=True))
    return f"<tr>{''.join(made)}</tr>"


def _inline(text: str) -> str:
    text = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", escape(text))
    return re.sub(r"`(.+?)`", r"<code>\1</code>", text)
