"""How Sphinx builds the documentation site: `make docs` (decision D38).

Pages are the Markdown files of this folder. In docs/api a line `::: crocodil.package` stands for the docstrings of
all modules of that package, so that no list of modules has to be kept.
"""

import ast
import dataclasses
import inspect
import re
import textwrap
from functools import partial
from pathlib import Path

from sphinx.errors import ExtensionError

import crocodil

DOCS = Path(__file__).parent.resolve()
SOURCE = Path(crocodil.__file__).parent
RECORDED = DOCS.parent / "build" / "recorded"  # what `make docs` records goes to the root of the site
LINK = r"(?<!!)\[([^\]]+)\]\(([^)#\s]+)(?:#[^)]*)?\)"
CONTENTS = {  # of the pages that have others below them
    "index": [
        "quickstart",
        "how-it-works",
        "results",
        "pretrained-start",
        "sampling",
        "speed",
        "play",
        "training",
        "more-stages",
        "corpus",
        "evaluation",
        "speed-up",
        "protocol",
        "reproduce",
        "scale",
        "*",
        "api/index",
    ],
    "api/index": ["pipeline", "sampling", "processes", "models", "*"],
}

project = "crocodil"
version = release = crocodil.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["conf.py"]
default_role = "code"  # `name` in a docstring is code, as in Markdown
myst_heading_anchors = 4
autodoc_member_order = "bysource"
add_module_names = False
python_maximum_signature_line_length = 100  # longer ones have a line per parameter
suppress_warnings = ["ref.python"]  # a name in a signature may have two homes
html_theme = "furo"  # no fonts or scripts from other hosts; search works from a local file
html_title = f"crocodil {release}"
html_copy_source = False
html_extra_path = [str(RECORDED)] if RECORDED.is_dir() else []


def modules_of(package: str) -> list[str]:
    """Return the modules below a package, or the module itself."""
    folder = SOURCE.joinpath(*package.split(".")[1:])
    if not folder.is_dir():
        return [package]
    files = sorted(file for file in folder.rglob("*.py") if file.name != "__main__.py" and file.stat().st_size)
    paths = [file.relative_to(SOURCE.parent).with_suffix("").parts for file in files]
    return [".".join(path).removesuffix(".__init__") for path in paths]


def link_outside(folder: Path, found: re.Match[str]) -> str:
    """Link a package to its API page, and offer a Markdown file outside docs/ for download."""
    text, target = found[1], folder / found[2]
    if target.is_dir():
        page = DOCS / "api" / f"{target.name}.md"
        return f"[{text}](/api/{page.name})" if page.exists() else text
    if target.suffix == ".md" and target.is_file() and DOCS not in target.resolve().parents:
        return f"{{download}}`{text.replace('`', '')} <{found[2]}>`"
    return found[0]


def fill_page(app: object, page: str, text: list[str]) -> None:
    """Replace `::: package` by its modules, mend links out of docs/, and add the tables of contents."""

    def documented(found: re.Match[str]) -> str:
        return "\n".join(
            f"## `{module}`\n\n```{{eval-rst}}\n.. automodule:: {module}\n   :members:\n```\n"
            for module in modules_of(found[1])
        )

    text[0] = re.sub(r"^::: ([\w.]+)$", documented, text[0], flags=re.MULTILINE)
    if RECORDED.is_dir():
        text[0] = re.sub(r"`site/(playground/index\.html)`", r'<a href="\1">open it</a>', text[0])
    text[0] = re.sub(LINK, partial(link_outside, (DOCS / page).parent), text[0])
    if page in CONTENTS:
        text[0] += "\n\n```{toctree}\n:hidden:\n:glob:\n\n" + "\n".join(CONTENTS[page]) + "\n```\n"


def escape_markdown(app: object, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Escape the characters that are markup in reStructuredText but plain text in our docstrings."""
    if lines[:1] and lines[0].startswith("Alias for field number"):  # Python's own text for a named tuple
        lines.clear()
    for number, line in enumerate(lines):
        parts = line.split("`")
        parts[::2] = [re.sub(r"([*|_\\])", r"\\\1", part) for part in parts[::2]]
        lines[number] = "`".join(parts)


def signature_as_written(
    app: object, what: str, name: str, thing: object, options: object, signature: str, returned: str
) -> tuple[str, str] | None:
    """Show annotations as the source writes them: `RegisterBank`, not the type that it stands for."""
    try:
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(thing)))).body  # type: ignore[arg-type]
    except (TypeError, ValueError, OSError, SyntaxError):
        return None
    if isinstance(node, ast.FunctionDef):
        arguments = node.args
        if what == "method" and arguments.args[:1] and arguments.args[0].arg in ("self", "cls"):
            del arguments.args[0]
        return f"({ast.unparse(arguments)})", ast.unparse(node.returns) if node.returns else ""
    if dataclasses.is_dataclass(thing) or (isinstance(thing, type) and hasattr(thing, "_fields")):
        fields = [ast.unparse(part) for part in node.body if isinstance(part, ast.AnnAssign)]
        fields = [re.sub(r" = (knob|field)\((.*?)[,)].*", r" = \2", field, flags=re.DOTALL) for field in fields]
        return f"({', '.join(field for field in fields if 'ClassVar' not in field)})", ""
    return None


def check_api_pages(app: object, error: Exception | None) -> None:
    """Fail if a page of docs/api documents nothing."""
    pages = sorted(Path(app.outdir, "api").glob("[!i]*.html"))  # type: ignore[attr-defined]
    empty = [page.name for page in pages if "sig-object" not in page.read_text(encoding="utf-8")]
    if empty and error is None:
        raise ExtensionError(f"API pages without a single function or class: {', '.join(empty)}")


def setup(app: object) -> None:
    """Connect the functions above; docstrings are escaped before napoleon reads their sections."""
    app.connect("autodoc-process-signature", signature_as_written)  # type: ignore[attr-defined]
    app.connect("build-finished", check_api_pages)  # type: ignore[attr-defined]
    app.connect("source-read", fill_page)  # type: ignore[attr-defined]
    app.connect("autodoc-process-docstring", escape_markdown, priority=400)  # type: ignore[attr-defined]
