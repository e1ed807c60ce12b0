"""The static page: its files, and what it shows of a model. Needs no web server."""

from pathlib import Path
from typing import Any

import crocodil
from crocodil.pipeline import Crocodil
from crocodil.play.requests import MAX_CHARACTERS, defaults
from crocodil.play.trace import STATES
from crocodil.play.views import LABELS, methods_of, num_drawn, num_guiding

PAGE = Path(__file__).parent / "page"
FILES = {"/": "index.html"} | {
    f"/{name}": name for name in ("play.css", "draw.js", "runs.js", "forms.js", "play.js")
}


def about(pipe: Crocodil, name: str) -> dict[str, Any]:
    """Return what the page shows of a model, and the requests that it begins with."""
    return {
        "name": name,
        "version": crocodil.__version__,
        "lengths": pipe.settings.lengths,
        "registers": pipe.demasker.config.num_registers,
        "drawable": num_drawn(pipe),
        "guiding": num_guiding(pipe),
        "methods": {method: LABELS[method] for method in methods_of(pipe)},
        "states": STATES,
        "max_characters": MAX_CHARACTERS,
        "defaults": _fitting_defaults(pipe),
    }


def _fitting_defaults(pipe: Crocodil) -> dict[str, dict[str, Any]]:
    """Return the default requests, limited to what the model can do."""
    limits = {"length": pipe.settings.lengths[-1], "registers": pipe.demasker.config.num_registers}
    requests = defaults()
    for values in requests.values():
        values |= {name: min(values[name], limit) for name, limit in limits.items() if name in values}
        if "methods" in values:
            known = [str(method) for method in methods_of(pipe)]
            values["methods"] = [method for method in values["methods"] if method in known] or known
    return requests
