"""A report as blocks, written as Markdown and as one HTML page that needs no other file."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

from crocodil.figures import Panel

UNKNOWN = "–"


@dataclass(frozen=True)
class Text:
    """A paragraph; **strong** and `code` are understood."""

    text: str


@dataclass(frozen=True)
class Table:
    heads: Sequence[str]
    body: Sequence[Sequence[str]]
    caption: str = ""


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
    """To so many significant digits, and never in powers of ten."""
    if value is None:
        return UNKNOWN
    if isinstance(value, int) or value == int(value):
        return f"{value:,.0f}" if abs(value) >= 10 or isinstance(value, int) else f"{value:.1f}"
    return f"{value:,.0f}" if abs(value) >= 10**digits else f"{float(f'{value:.{digits}g}'):.10g}"


def spread_around(value: float | None, spread: float | None, digits: int = 3) -> str:
    if value is None or spread is None:
        return number(value, digits)
    return f"{number(value, digits)} ± {number(spread, 1 if spread < 10 else 2)}"


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
            return block.text
        case Table():
            lines = [block.heads, ["---", *["---:"] * (len(block.heads) - 1)], *block.body]
            rows = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
            return f"**{block.caption}**\n\n{rows}" if block.caption else rows
        case Picture():
            return f"![{block.caption}]({files[block.name]})" if block.name in files else ""
        case Listing():
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", block.text)), default=0))
            return f"**{block.title}**\n\n{fence}python\n{block.text}\n{fence}"


# ---------------------------------------------------------------- HTML

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.5rem; border-top: 1px solid #ddd; padding-top: 1rem; }
table { border-collapse: collapse; margin: 1rem 0; font-size: 14px; display: block; overflow-x: auto; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { padding: .2rem .6rem; border-bottom: 1px solid #e5e5e5; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
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
            return f"<p>{_inline(block.text)}</p>"
        case Table():
            published = ['class="published"' if "published" in head else "" for head in block.heads]
            return (
                f"<table><caption>{_inline(block.caption)}</caption>"
                f"<thead>{_html_row('th', block.heads, published)}</thead><tbody>"
                + "\n".join(_html_row("td", line, published) for line in block.body)
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
