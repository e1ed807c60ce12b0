"""A report as blocks, written as Markdown and as one HTML page that needs no other file."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, TypeAlias

from markdown_it import MarkdownIt

from crocodil.reproduce.figures import Panel

UNKNOWN = "-"
NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Text:
    """A paragraph of Markdown; line breaks and indentation do not matter."""

    text: str

    def __str__(self) -> str:
        return " ".join(self.text.split())


@dataclass(frozen=True)
class Table:
    heads: Sequence[str]
    body: Sequence[Sequence[str]]
    caption: str = ""

    def without_unknown_columns(self) -> "Table":
        """Return the table without the columns whose cells are all unknown."""
        kept = [index for index in range(len(self.heads)) if any(line[index] != UNKNOWN for line in self.body)]
        heads, *body = [[line[index] for index in kept] for line in (self.heads, *self.body)]
        return Table(heads, body, self.caption)

    def holds_numbers(self) -> list[bool]:
        """Return for each column whether all its cells are numbers, which are aligned to the right."""
        return [
            all(cell[:1].isdigit() or cell in (UNKNOWN, NOT_MEASURED) for cell in column)
            for column in zip(*self.body, strict=True)
        ]


@dataclass(frozen=True)
class Picture:
    name: str  # the file name without its suffix
    panels: Sequence[Panel]
    caption: str = ""


@dataclass(frozen=True)
class Listing:
    """A program with a title."""

    title: str
    text: str


Block: TypeAlias = Text | Table | Picture | Listing


@dataclass(frozen=True)
class Section:
    title: str
    blocks: Sequence[Block]


# ---------------------------------------------------------------- cells


def number(value: float | None, digits: int = 3) -> str:
    """Return the value with this many significant digits and no exponent; integers are written in full."""
    if value is None:
        return UNKNOWN
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{_decimals(value, digits)}f}"


def with_spread(value: float | None, spread: float | None, digits: int = 3) -> str:
    """Return "value ± spread", both with the same number of decimals."""
    if value is None or spread is None:
        return number(value, digits)
    return f"{number(value, digits)} ± {spread:,.{_decimals(value, digits)}f}"


def measure(row: Mapping[str, Any], name: str) -> str:
    """Return a measure of a row with its spread; rows of older versions may lack the measure."""
    return NOT_MEASURED if row.get(name) is None else with_spread(row[name], row[f"{name}_spread"])


def percent(share: float) -> str:
    return f"{share:.0%}"


def _decimals(value: float, digits: int) -> int:
    before = 1 + math.floor(math.log10(abs(value))) if value else 0  # digits left of the point
    return max(0, digits - max(0, before))


# ---------------------------------------------------------------- Markdown


def as_markdown(title: str, sections: Sequence[Section], files: Mapping[str, str]) -> str:
    """Return the report as Markdown. `files` maps the name of each drawn picture to its address."""
    parts = [f"# {title}"]
    for section in sections:
        parts.append(f"## {section.title}")
        parts += [_markdown(block, files) for block in section.blocks]
    return "\n\n".join(part for part in parts if part) + "\n"


def section_markdown(blocks: Sequence[Block]) -> str:
    """Return blocks without pictures as Markdown."""
    return "\n\n".join(_markdown(block, {}) for block in blocks)


def _markdown(block: Block, files: Mapping[str, str]) -> str:
    match block:
        case Text():
            return str(block)
        case Table():
            return _markdown_table(block.without_unknown_columns())
        case Picture():
            if block.name not in files:
                return ""
            picture = f"![{'; '.join(panel.title for panel in block.panels)}]({files[block.name]})"
            return f"{picture}\n\n{block.caption}" if block.caption else picture
        case Listing():
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", block.text)), default=0))
            return f"**{block.title}**\n\n{fence}python\n{block.text}\n{fence}"


def _markdown_table(table: Table) -> str:
    lines = [table.heads, ["---:" if right else "---" for right in table.holds_numbers()], *table.body]
    rows = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    return f"**{table.caption}**\n\n{rows}" if table.caption else rows


# ---------------------------------------------------------------- HTML

STYLE = """
:root { color-scheme: light dark; --text: #222; --page: #fff; --line: #ddd; --box: #f5f5f5; --link: #0969da; }
@media (prefers-color-scheme: dark) {
  :root { --text: #ddd; --page: #16191d; --line: #3a3f45; --box: #22272d; --link: #6cb6ff; }
}
body { font: 16px/1.55 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
       color: var(--text); background: var(--page); }
a { color: var(--link); }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.5rem; border-top: 1px solid var(--line); padding-top: 1rem; }
nav ul { columns: 2 20rem; }
table { border-collapse: collapse; margin: 1rem 0; font-size: 14px; display: block; overflow-x: auto; }
th, td { padding: .2rem .6rem; border-bottom: 1px solid var(--line); text-align: left; white-space: nowrap; }
svg { max-width: 100%; height: auto; border-radius: 6px; }
pre { background: var(--box); padding: .7rem; overflow-x: auto; font-size: 13px; line-height: 1.35; }
:not(pre) > code { background: var(--box); padding: 0 .2rem; }
"""


def as_html(title: str, sections: Sequence[Section], drawings: Mapping[str, str]) -> str:
    """Return the report as an HTML page. `drawings` maps the name of each picture to its SVG element."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")  # html=False: tags in texts are escaped
    markdown.add_render_rule("image", lambda _, tokens, index, *rest: drawings[str(tokens[index].attrs["src"])])
    tokens = markdown.parse(as_markdown(title, sections, {name: name for name in drawings}))
    for index, heading in enumerate(token for token in tokens if token.type == "heading_open"):
        heading.attrSet("id", f"s{index}")  # s0 is the title
    links = [
        f'<li><a href="#s{index}">{escape(section.title)}</a></li>'
        for index, section in enumerate(sections, start=1)
    ]
    body = markdown.renderer.render(tokens, markdown.options, {})
    body = body.replace("</h1>", f"</h1>\n<nav><ul>{''.join(links)}</ul></nav>", 1)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style></head>\n<body>\n{body}</body></html>\n"
    )
