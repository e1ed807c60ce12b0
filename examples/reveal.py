"""Draw how the built-in model generates a program, call by call, as an animated SVG.

    python examples/reveal.py --out docs/assets/reveal.svg

Every frame is the canvas after one demasker call of a real sample. A token stands where the final program has it,
so the picture does not jump; a token that is replaced later is squeezed into the same space. The squares below are
the positions after the end of the text, where the final tokens are EOS.
"""

from collections.abc import Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from crocodil import Crocodil, Snapshot
from crocodil.runtime.atomic import plain_file, whole_file
from crocodil.text.tokenizer import Tokenizer

SECONDS_PER_CALL, SECONDS_AT_END = 0.8, 4.0
CHARACTER, LINE, MARGIN, TOP, FOOT = 8.43, 21.0, 24.0, 88.0, 56.0  # pixels
CELL, CELLS_PER_ROW, LABEL = 9.0, 58, 38.0  # of positions after the end of the text, and their label
COLOURS = {"hidden": "#3b4656", "new": "#1f7a4d", "again": "#b8651b", "kept": "none"}
LEGEND = {"hidden": "hidden", "new": "new in this call", "kept": "kept", "again": "hidden again"}


class Frame(NamedTuple):
    """The canvas after a call, and how many denoiser calls were made so far."""

    tokens: list[int]
    denoiser_calls: int


class Slot(NamedTuple):
    """Where a position of the canvas is drawn."""

    x: float
    y: float
    width: float
    is_text: bool  # else a cell after the end of the text


# ---------------------------------------------------------------- sampling


def record(pipe: Crocodil, *, length: int, calls: int, seed: int) -> list[Frame]:
    """Sample one text with ConWithinDisc, and return the canvas after each call."""
    frames: list[Frame] = []

    def on_call(snapshot: Snapshot) -> None:
        frames.append(Frame(snapshot.tokens[0].tolist(), snapshot.cost.denoiser_calls))

    pipe.generate(1, method="conwithindisc", length=length, calls=calls, seed=seed, on_call=on_call)
    return frames


# ---------------------------------------------------------------- layout


def lay_out(tokens: Sequence[int], tokenizer: Tokenizer) -> list[Slot | None]:
    """Return the slot of each position; None for the BOS token."""
    special = tokenizer.special
    num_shown = tokens.index(special.eos) if special.eos in tokens else len(tokens)
    slots: list[Slot | None] = []
    column = line = 0
    for token in tokens[:num_shown]:
        if token == special.bos:
            slots.append(None)
            continue
        first, *later = tokenizer.decode([token]).split("\n")
        num_columns = len(first) + bool(later)  # a line break takes one column
        slots.append(Slot(MARGIN + column * CHARACTER, TOP + line * LINE, num_columns * CHARACTER, True))
        column = len(later[-1]) if later else column + len(first)
        line += len(later)
    below = TOP + line * LINE + 22
    for number in range(len(tokens) - num_shown):
        row, cell = divmod(number, CELLS_PER_ROW)
        slots.append(Slot(MARGIN + LABEL + cell * (CELL + 1.5), below + row * (CELL + 2), CELL, False))
    return slots


def state_of(before: int, now: int, mask_id: int) -> str:
    if now == mask_id:
        return "hidden" if before == mask_id else "again"
    return "kept" if before == now else "new"


# ---------------------------------------------------------------- drawing


def draw(frames: Sequence[Frame], tokenizer: Tokenizer, *, title: str) -> str:
    """Return the SVG: one group for each call, of which CSS shows one at a time and ends with the last."""
    special = tokenizer.special
    assert special.mask is not None
    slots = lay_out(frames[-1].tokens, tokenizer)
    blank = [special.bos if slot is None else special.mask for slot in slots]
    frames = [Frame(blank, frames[0].denoiser_calls), *frames]
    refreshes = [
        call
        for call, (old, new) in enumerate(pairwise(frames), start=1)
        if new.denoiser_calls > old.denoiser_calls
    ]
    drawn = [slot for slot in slots if slot is not None]
    width = 2 * MARGIN + max(80 * CHARACTER, max(slot.x + slot.width for slot in drawn) - MARGIN)
    height = max(slot.y for slot in drawn) + CELL + FOOT
    groups = []
    for call, frame in enumerate(frames):
        before = frames[max(call - 1, 0)].tokens
        cells = [
            _cell(slot, state_of(old, new, special.mask), tokenizer.decode([new]))
            for slot, old, new in zip(slots, before, frame.tokens, strict=True)
            if slot is not None
        ]
        note = _note(call, len(frames) - 1, refreshes)
        header = _text(MARGIN, 52, note, "note", len(note) * CHARACTER)
        header += _timeline(call, len(frames) - 1, refreshes, width)
        groups.append(f'<g class="frame" id="call-{call}">{header}{"".join(cells)}</g>')
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
            f'width="{width:.0f}" height="{height:.0f}" role="img" aria-label="{escape(title)}">',
            f"<style>{_style(len(frames))}</style>",
            f'<rect width="{width:.0f}" height="{height:.0f}" rx="10" fill="#0f1722"/>',
            _text(MARGIN, 30, title, "title"),
            *groups,
            *(_text(MARGIN, slot.y + 9, "EOS", "note") for slot in drawn if _begins_row(slot)),
            _legend(height),
            "</svg>\n",
        ]
    )


def _begins_row(slot: Slot) -> bool:
    return not slot.is_text and slot.x == MARGIN + LABEL


def _style(num_frames: int) -> str:
    """Each frame is visible in its own part of the cycle; without animation the last one is."""
    cycle = (num_frames - 1) * SECONDS_PER_CALL + SECONDS_AT_END
    fonts = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
    rules = [
        f"text{{font:14px {fonts};fill:#e6edf3}}",
        ".title{font-weight:bold}.note{fill:#9fb1c5}.new{fill:#fff}.mark{fill:#5d6b7d}",
        f".frame{{visibility:hidden;animation-duration:{cycle:g}s;animation-timing-function:step-end;"
        "animation-iteration-count:infinite}",
        f"#call-{num_frames - 1}{{visibility:visible}}",
    ]
    for call in range(num_frames):
        start, end = (100 * SECONDS_PER_CALL * number / cycle for number in (call, call + 1))
        hidden_at = "" if call == num_frames - 1 else f"{end:.3f}%{{visibility:hidden}}"
        first = "" if call == 0 else "0%{visibility:hidden}"
        rules.append(f"@keyframes k{call}{{{first}{start:.3f}%{{visibility:visible}}{hidden_at}}}")
        rules.append(f"#call-{call}{{animation-name:k{call}}}")
    rules.append("@media(prefers-reduced-motion:reduce){.frame{animation:none}}")
    return "".join(rules)


def _cell(slot: Slot, state: str, token: str) -> str:
    """A token, or a block where it is hidden."""
    if not slot.is_text:
        colour = "#22303f" if state == "kept" else COLOURS[state]
        return f'<rect x="{slot.x:g}" y="{slot.y:g}" width="{CELL:g}" height="{CELL:g}" rx="2" fill="{colour}"/>'
    block = (
        f'<rect x="{slot.x + 0.7:g}" y="{slot.y - 14:g}" width="{slot.width - 1.4:g}" height="18" rx="3" '
        f'fill="{COLOURS[state]}"/>'
    )
    if state in ("hidden", "again"):
        return block
    shown = token.split("\n")[0] + ("↵" if "\n" in token else "")
    kind = "new" if state == "new" else "mark" if shown == "↵" else ""
    squeezed = min(len(shown) * CHARACTER, slot.width)
    return (block if state == "new" else "") + _text(slot.x, slot.y, shown, kind, squeezed)


def _text(x: float, y: float, text: str, kind: str = "", width: float | None = None) -> str:
    if not text.strip():
        return ""
    stripped = text.lstrip(" ")
    if width is not None:  # renderers differ in how they measure leading blanks
        per_character = width / len(text)
        x, width = x + per_character * (len(text) - len(stripped)), per_character * len(stripped)
    fixed = "" if width is None else f' textLength="{width:.1f}" lengthAdjust="spacingAndGlyphs"'
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:g}"{named}{fixed}>{escape(stripped, quote=False)}</text>'


def _note(call: int, num_calls: int, refreshes: Sequence[int]) -> str:
    if call == 0:
        return "registers drawn from the prior; all tokens hidden"
    if call in refreshes:
        return f"call {call} of {num_calls}: registers drawn again from the text"
    return f"call {call} of {num_calls}"


def _timeline(call: int, num_calls: int, refreshes: Sequence[int], width: float) -> str:
    """One tick for each call at the upper right; a tick in orange marks a refresh of the registers."""
    step = 12.0
    left = width - MARGIN - num_calls * step
    ticks = []
    for number in range(1, num_calls + 1):
        done = "#d98a3d" if number in refreshes else "#4fb286"
        colour = done if number <= call else "#5b4630" if number in refreshes else "#2a3746"
        ticks.append(
            f'<rect x="{left + (number - 1) * step:g}" y="42" width="9" height="10" rx="2" fill="{colour}"/>'
        )
    return "".join(ticks)


def _legend(height: float) -> str:
    parts, x, y = [], MARGIN, height - 20
    for state, words in LEGEND.items():
        edge = ' stroke="#5d6b7d"' if state == "kept" else ""
        parts.append(
            f'<rect x="{x:g}" y="{y - 11:g}" width="14" height="14" rx="3" fill="{COLOURS[state]}"{edge}/>'
        )
        parts.append(_text(x + 21, y, words, "note"))
        x += 21 + len(words) * CHARACTER + 26
    return "".join(parts)


def main(
    out: Annotated[Path, typer.Option(help="The SVG file to write.")] = Path("reveal.svg"),
    seed: Annotated[int, typer.Option(help="The seed of the sample.")] = 1,
    length: Annotated[int, typer.Option(help="Tokens of the canvas.")] = 128,
    calls: Annotated[int, typer.Option(help="Demasker calls.")] = 16,
) -> None:
    """Sample one program from the built-in model, and write the animation."""
    out = plain_file(out)
    pipe = Crocodil.from_pretrained(device="cpu")
    frames = record(pipe, length=length, calls=calls, seed=seed)
    title = f"ConWithinDisc, built-in model, seed {seed}: {length} tokens in {calls} calls"
    with whole_file(out) as unfinished:
        unfinished.write_text(draw(frames, pipe.tokenizer, title=title), encoding="utf-8")
    typer.echo(f"{out}: {out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    try:
        typer.run(main)
    except (ValueError, OSError) as error:
        raise SystemExit(f"reveal: {error}") from None
