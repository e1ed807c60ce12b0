"""The package without its extras: only building a corpus and serving the playground need one."""

import importlib
import pkgutil
import re
import sys
import tomllib
from pathlib import Path

import forked

# What needs an extra at its import. All other modules ask for one when they use it, or never.
NEEDS = {
    "corpus.build": "rensa",
    "corpus.harvest": "rensa",
    "corpus.known": "rensa",
    "corpus.selection": "rensa",
    "play.server": "starlette",
}
IMPORTED_AS = {"faiss-cpu": "faiss"}
BROUGHT_ALONG = {"pyarrow"}  # by datasets


def extras() -> set[str]:
    """The packages of all extras, as they are imported."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    lines = [line for name, lines in project["optional-dependencies"].items() if name != "dev" for line in lines]
    names = {re.split(r"[<>=\[]", line)[0] for line in lines}
    return {IMPORTED_AS.get(name, name).replace("-", "_") for name in names} | BROUGHT_ALONG


def import_every_module(missing: set[str]) -> None:
    """Print the modules that cannot be imported without these packages, and why."""
    for name in list(sys.modules):
        if name.split(".")[0] in {"crocodil", *missing}:
            del sys.modules[name]
    sys.modules |= dict.fromkeys(missing)  # what is None there cannot be imported
    import crocodil

    for module in pkgutil.walk_packages(crocodil.__path__, "crocodil."):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ImportError as error:
                print(module.name.removeprefix("crocodil."), (error.name or str(error)).split(".")[0])


def test_every_module_but_those_that_build_or_serve_is_imported_without_extras(tmp_path):
    found = forked.run(import_every_module, extras(), out=tmp_path)
    assert found.returncode == 0, found.stderr
    assert dict(line.split() for line in found.stdout.splitlines()) == NEEDS, found.stdout
