"""A page with recorded runs that needs no server: it can be hosted anywhere, or opened from disk."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from crocodil.pipeline import Crocodil
from crocodil.play.requests import parse
from crocodil.play.static_page import FILES, PAGE
from crocodil.play.views import Event, answer
from crocodil.runtime.atomic import whole_directory

RECORDED = "recorded.js"
SCRIPT = '<script src="draw.js" defer></script>'


def recorded_requests(known: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the requests to record: the default of every view, and some that differ from it."""
    asked = {view: {"view": view, **values} for view, values in known["defaults"].items()}
    counts = [count for count in (1, 4, 16) if count < known["registers"]]
    requests = [
        asked["generate"],
        asked["complete"],
        *(asked["autoencode"] | {"registers": count} for count in [*counts, asked["autoencode"]["registers"]]),
        asked["interpolate"],
    ]
    if known["drawable"]:
        last = known["guiding"] - 1
        requests += [
            asked["steer"],
            asked["steer"] | {"redrawn": [0]},
            asked["steer"] | {"redrawn": [last]},
            asked["steer"] | {"noised": [0], "noise": 1.0},
        ]
    return requests


def record(pipe: Crocodil, request: dict[str, Any]) -> dict[str, Any]:
    """Run a request and return it with its events."""
    events: list[Event] = []
    answer(pipe, parse(request), events.append)
    kept = [event for event in events if event["event"] != "drawing"]
    return {"request": request, "events": [*kept, {"event": "done"}]}


def export(pipe: Crocodil, directory: Path, *, known: dict[str, Any], on_run: Callable[[int, int], None]) -> None:
    """Write the page and the recorded runs to a new folder.

    `known` is what `static_page.about` returns; `on_run` gets the number of runs that are done, and of all.
    """
    requests = recorded_requests(known)
    with whole_directory(directory) as unfinished:
        runs = []
        for number, request in enumerate(requests):
            on_run(number, len(requests))
            runs.append(record(pipe, request))
        for file in FILES.values():
            shutil.copyfile(PAGE / file, unfinished / file)
        page = (PAGE / "index.html").read_text(encoding="utf-8")
        assert SCRIPT in page
        page = page.replace(SCRIPT, f'<script src="{RECORDED}"></script>\n{SCRIPT}')
        (unfinished / "index.html").write_text(page, encoding="utf-8")
        content = json.dumps({"about": known, "runs": runs}, separators=(",", ":")).replace("<", "\\u003c")
        (unfinished / RECORDED).write_text(f"window.RECORDED = {content};\n", encoding="utf-8")
