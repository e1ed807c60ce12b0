"""The documentation holds: links point somewhere, named verbs and options exist, and every code block runs.

The blocks of a page run in order, in a temporary folder of their own.
A block is left out only under a line `<!-- not run: the reason -->` (an 8B model, a GPU, the network, `make`).

To be quick, commands run in this process and sizes are turned down:

- What a command reads and no earlier command wrote is put there: a tiny corpus for `--data`, a tiny trained model
  for `--model` and in place of the built-in model, its run for `--run`, a short program for every `.py` file.
- `SMALLER` replaces values of options (`--preset small` becomes `--preset tiny`), `LARGEST` bounds them, `ADDED`
  adds options to a verb. With `--dry-run` nothing is changed.
- `IN_PYTHON` does the same for Python blocks, which share one namespace per page; it begins with lists of `TEXTS`.
- The judges are tiny random networks, installed under the names of the real ones.
- `crocodil reproduce all` computes one experiment; tests/test_reproduce.py has them all.
- A bash block may hold `crocodil`, `python examples/own_data.py`, `mkdir`, `cd`, `for` loops and `> FILE`.
"""

import contextlib
import io
import json
import re
import runpy
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import typer
from markdown_it import MarkdownIt
from markdown_it.token import Token
from typer.testing import CliRunner

import crocodil
from crocodil.cli import app

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + DOCS
RUN = [ROOT / "README.md", *(page for page in DOCS if page.parent.name == "docs")]
SHELL = {"bash", "sh", "shell", "console"}
COMMANDS = ("crocodil", "python", "pip", "make", "torchrun")
OTHER_OPTIONS = {"--steps", "--only", "--number"}  # of examples and of the fault campaign
PLACEHOLDER = re.compile(r"[A-Z_.]+|\.\.\.|…")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@cache
def tokens_of(page: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(page.read_text())


def inline(page: Path) -> Iterator[Token]:
    for token in tokens_of(page):
        yield token
        yield from token.children or ()


# ---------------------------------------------------------------- links


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    seen: Counter[str] = Counter()
    found = set(re.findall(r'<a (?:id|name)="([^"]+)"', page.read_text()))
    tokens = tokens_of(page)
    for token, content in pairwise(tokens):
        if token.type == "heading_open":
            text = "".join(part.content for part in content.children or ())
            slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            seen[slug] += 1
    return found


def links(page: Path) -> Iterator[str]:
    for token in inline(page):
        if token.type in ("link_open", "image"):
            yield str(token.attrs.get("href") or token.attrs.get("src"))
        elif token.type in ("html_block", "html_inline"):
            yield from re.findall(r'(?:href|src|srcset)="([^"]+)"', token.content)


def is_broken(page: Path, link: str) -> bool:
    if re.match(r"[a-z]+:", link):  # another host: not asked
        return False
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    return not target.exists() or (bool(anchor) and target.suffix == ".md" and anchor not in anchors(target))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_and_images_point_at_files_and_headings_that_exist(page):
    assert [link for link in links(page) if is_broken(page, link)] == []


def test_a_broken_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text('# One: `code`\n\n[1](page.md#one-code) [2](#no) ![3](no.svg)\n\n<img src="no.png">')
    assert [link for link in links(page) if is_broken(page, link)] == ["#no", "no.svg", "no.png"]


def test_every_package_has_an_api_page():
    packages = {path.name for path in Path(crocodil.__file__).parent.iterdir() if (path / "__init__.py").exists()}
    text = "".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    assert set(re.findall(r"^::: crocodil\.(\w+)$", text, re.MULTILINE)) >= packages - {"cli"}


def test_changelog_and_citation_name_the_version_of_the_package():
    yaml = pytest.importorskip("yaml")
    heading = "Unreleased" if ".dev" in crocodil.__version__ else crocodil.__version__
    assert f"## [{heading}]" in (ROOT / "CHANGELOG.md").read_text()
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == crocodil.__version__
    assert {"cff-version", "message", "title", "authors", "license", "preferred-citation"} <= set(citation)


# ---------------------------------------------------------------- blocks


@dataclass(frozen=True)
class Block:
    language: str
    code: str
    reason: str | None  # why it is not run

    @property
    def is_shell(self) -> bool:
        return self.language in SHELL


def blocks(page: Path) -> list[Block]:
    found, previous = [], None
    for token in tokens_of(page):
        if token.type == "fence":
            comment = previous.content if previous is not None and previous.type == "html_block" else ""
            reason = re.search(r"<!-- not run:(.*?)-->\s*$", comment, re.DOTALL)
            found.append(Block(token.info.strip(), token.content, reason and reason[1].strip()))
        previous = token
    return found


def is_run(block: Block) -> bool:
    return block.reason is None and (block.is_shell or block.language == "python")


def commands(code: str, **variables: str) -> Iterator[list[str]]:
    """Split shell code into the words of its commands; loops are unrolled, comments left out."""
    lines = iter(code.replace("\\\n", " ").splitlines())
    for line in lines:
        for name, value in variables.items():
            line = re.sub(rf"\$({name}\b|{{{name}}})", value, line)
        words = shlex.split(line, comments=True)
        if words[:1] == ["for"]:
            body = "\n".join(iter(lambda: next(lines), "done"))
            for value in words[3 : words.index("do")]:
                yield from commands(body, **variables, **{words[1]: value.rstrip(";")})
        elif words:
            yield words


@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_a_block_that_is_not_run_has_a_reason_and_commands_are_marked_as_shell(page):
    for block in blocks(page):
        assert block.reason != "", f"no reason: {block.code}"
        if block.language in ("", "text"):
            is_command = block.code.split(" ")[0] in COMMANDS
            assert not is_command, f"not ```bash: {block.code}"


# ---------------------------------------------------------------- verbs and options


CLI = typer.main.get_command(app)


def options_of(command) -> set[str]:
    found = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return found | {"--help"}


def all_options(command=CLI) -> set[str]:
    return options_of(command).union(*map(all_options, getattr(command, "commands", {}).values()))


def unknown_words(words: list[str]) -> list[str]:
    """Return the verbs and options in the words after `crocodil` that the command line does not have."""
    command, words = CLI, list(words)
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        if words[0] not in command.commands:
            return [] if PLACEHOLDER.fullmatch(words[0]) else [words[0]]
        command = command.commands[words.pop(0)]
    named = [word.split("=")[0] for word in words if re.match(r"--[a-z]", word)]
    return [name for name in named if name not in options_of(command)]


def invocations(page: Path) -> Iterator[list[str]]:
    """Yield the words after `crocodil`, wherever a page has them in code."""
    spans = [token.content for token in inline(page) if token.type == "code_inline"]
    lines = [words for block in blocks(page) if block.is_shell for words in commands(block.code)]
    for words in [*(span.split() for span in spans), *lines]:
        for start in ("crocodil", "crocodil.cli"):
            if start in words[:1] or (start == "crocodil.cli" and start in words):
                yield words[words.index(start) + 1 :]


HISTORY = ("CHANGELOG.md", "research-log.md")  # they name what is gone, too


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in HISTORY], ids=name_of)
def test_verbs_and_options_that_are_named_exist(page):
    assert [(words, wrong) for words in invocations(page) if (wrong := unknown_words(words))] == []
    spans = [token.content for token in inline(page) if token.type == "code_inline"]
    named = {option for span in spans for option in re.findall(r"^--[a-z][a-z0-9-]*", span)}
    assert named - all_options() - OTHER_OPTIONS == set()


def test_a_verb_or_an_option_that_does_not_exist_is_found():
    assert unknown_words(["corpus", "show", "DIR", "--samples", "3"]) == []
    assert unknown_words(["corpus", "look", "DIR"]) == ["look"]
    assert unknown_words(["generate", "--calls", "4", "--loud"]) == ["--loud"]


# ---------------------------------------------------------------- running

SMALLER = {
    "--preset": {"small": "tiny", "full": "tiny", "quick": "tiny"},
    "--device": {"cuda": "cpu"},
}
LARGEST = {"--calls": 4, "--length": 64, "--count": 2}
_FEW_STEPS = [
    f"--set={loop}_loop.{field}={value}"
    for loop in ("base", "guided", "prior", "conditional")
    for field, value in (("num_steps", 2), ("warmup_steps", 1), ("batch_size", 2))
]
ADDED = {
    "generate": ["--device", "cpu"],
    "autoencode": ["--device", "cpu"],
    "interpolate": ["--device", "cpu"],
    "complete": ["--device", "cpu", "--count", "1", "--calls", "2"],
    "encode": ["--device", "cpu"],
    "decode": ["--device", "cpu"],
    "train": ["--device", "cpu", "--set=encoder_warmup_steps=1", *_FEW_STEPS],
    "evaluate": ["--device", "cpu", "--count", "2"],
    "reproduce": ["--device", "cpu"],
    "corpus build": ["--vocab-size", "320", "--processes", "1"],
    "examples/own_data.py": ["--device", "cpu", "--steps", "2", "--batch-size", "4"],
}
IN_PYTHON = [
    (r'"cuda(:\d)?"', '"cpu"'),
    (r"\bbatch_size=\d+", "batch_size=16"),
    (r"\b(num_)?calls=\d+", r"\1calls=4"),
    (r"\blength=\d+", "length=64"),
    (r"\b(generate|stream)\(\d+", r"\1(2"),
]
PROGRAMS = ["def q1_alpha_0(q1_delta, scale=0):\n    return total\n", "def g(y):\n    return 2 * y\n"]
TEXTS = ("texts", "real_texts", "other_real_texts")  # names that Python blocks may use
WRITES = ("--out", "--out-dir")
READS = {
    "--data": "corpus", "--model": "model", "--run": "run", "--base-run": "run", "--from": "run",
    "--source": "code", "--base": "base", "--causal": "causal",
}  # fmt: skip
READS_IN_PYTHON = {
    r'from_pretrained\("([^"]+)"': "model",
    r'\bCorpus\("([^"]+)"': "corpus",
    r'"([^"]+)/tokenizer\.json"': "corpus",
}
FIRST_ARGUMENT = {
    "verify": "model", "export": "run", "assemble": "run", "runs show": "run", "corpus show": "corpus",
    "corpus verify": "corpus", "corpus pack": "corpus", "corpus card": "corpus", "corpus pairs": "corpus",
    "examples/own_data.py": "code", "trim": "causal",
}  # fmt: skip


class Shell:
    """A folder in which the commands of one page run, in this process."""

    def __init__(self, folder: Path, things: dict[str, Path]) -> None:
        self.folder, self.things = folder, things
        self.provide("builtin", "model")

    def provide(self, name: str, kind: str) -> None:
        """Put a tiny corpus, model, run or folder of code where a command will look for it."""
        path = self.folder / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(self.things[kind])

    def provide_texts(self, words: list[str]) -> None:
        names = [word for word in words if re.fullmatch(r"[\w/.-]+\.(py|txt)|FILE|A|B", word)]
        for name, program in zip(names, [*PROGRAMS, *PROGRAMS], strict=False):
            path = self.folder / name
            assert not name.startswith("examples/") or (ROOT / name).exists(), f"there is no {name}"
            if not path.exists() and not words[words.index(name) - 1].startswith("--"):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(program)

    def prepare(self, verb: str, words: list[str]) -> list[str]:
        """Turn sizes down, provide what is read, and make room for what is written."""
        if "--dry-run" in words:
            return words
        words = [word.removesuffix("...") for word in words] + ADDED.get(verb, [])
        if verb == "reproduce":
            words = ["demasker" if word == "all" else word for word in words if word != "--compiled"]
        for index, (option, value) in enumerate(pairwise(tuple(words))):
            words[index + 1] = SMALLER.get(option, {}).get(value, value)
            if option in LARGEST:
                words[index + 1] = str(min(int(value), LARGEST[option]))
            if option in READS:
                self.provide(value, READS[option])
            if option == "--samples" and verb == "evaluate":
                rows = [json.dumps({"text": program}) for program in PROGRAMS * 4]
                (self.folder / value).write_text("\n".join(rows))
            if option in WRITES and (self.folder / value).is_symlink():
                (self.folder / value).unlink()
        if verb in FIRST_ARGUMENT:
            self.provide(words[0], FIRST_ARGUMENT[verb])
        self.provide_texts(words)
        return words

    def run(self, words: list[str]) -> None:
        """Run one command; its output goes to the file behind `>`, if there is one."""
        program, *words = words
        target = words[words.index(">") + 1] if ">" in words else None
        words = words[: words.index(">")] if target else words
        if program == "crocodil":
            count = 2 if hasattr(CLI.commands.get(words[0]), "commands") else 1
            verb = words[:count]
            words = self.prepare(" ".join(verb), words[count:])
            output = run_verb(*verb, *words)
        elif program == "python" and words[0] in ADDED:
            output = self.run_example(words[0], self.prepare(words[0], words[1:]))
        elif program in ("mkdir", "cd"):
            output = ""
            if program == "mkdir":
                (self.folder / words[-1]).mkdir(parents=True, exist_ok=True)
        else:
            raise AssertionError(f"`{program}` is not run here: write <!-- not run: reason --> above its block")
        if target:
            (self.folder / target).write_text(output)

    def run_python(self, code: str, namespace: dict[str, object]) -> None:
        for pattern, smaller in IN_PYTHON:
            code = re.sub(pattern, smaller, code)
        for pattern, kind in READS_IN_PYTHON.items():
            for name in re.findall(pattern, code):
                self.provide(name, kind)
        exec(compile(code, "a block of the page", "exec"), namespace)

    def run_example(self, script: str, words: list[str]) -> str:
        output, arguments = io.StringIO(), sys.argv
        sys.argv = [script, *words]
        try:
            with contextlib.redirect_stdout(output), pytest.raises(SystemExit) as stop:
                runpy.run_path(str(ROOT / script), run_name="__main__")
        finally:
            sys.argv = arguments
        assert not stop.value.code, f"python {shlex.join([script, *words])}: {output.getvalue()}"
        return output.getvalue()


def run_verb(*words: object) -> str:
    words = tuple(map(str, words))
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, f"crocodil {shlex.join(words)}: {result.output}{result.exception!r}"
    return result.stdout


@pytest.fixture(scope="session")
def things(corpus, trained, tmp_path_factory):
    """What commands read: a corpus, a run, its model and base, a causal model, a folder of code, and judges."""
    from tiny_causal import save_causal
    from tiny_judges import save_encoder, save_language_model

    from crocodil.judges import DEFAULT_ENCODER, DEFAULT_JUDGE, SECOND_JUDGE, folders
    from crocodil.pipeline import Crocodil

    folder = tmp_path_factory.mktemp("things")
    run_verb("export", trained, "--data", corpus.directory, "--out", folder / "slow")
    model = Crocodil.from_pretrained(folder / "slow", device="cpu")
    drawing = replace(model.settings.drawing, prior_steps=4, refresh_steps=2)
    replace(model, settings=replace(model.settings, drawing=drawing)).save_pretrained(folder / "model")
    judges = {DEFAULT_JUDGE: save_language_model, SECOND_JUDGE: save_language_model, DEFAULT_ENCODER: save_encoder}
    for name, save in judges.items():
        judge = save(folder / "judges" / name)
        folders._write_checksums(judge)  # so that it counts as installed
    save_causal(folder / "causal")
    return {
        "corpus": corpus.directory,
        "run": trained,
        "base": trained / "base" / "model" / "demasker",
        "model": folder / "model",
        "causal": folder / "causal",
        "code": corpus.directory.parent / "files",
        "cache": folder,
    }


@pytest.mark.usefixtures("short_validation")
@pytest.mark.parametrize("page", [page for page in RUN if any(map(is_run, blocks(page)))], ids=name_of)
def test_the_code_blocks_of_a_page_run(page, things, tmp_path, monkeypatch):
    from crocodil.pipeline import settings

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CROCODIL_CACHE", str(things["cache"]))
    monkeypatch.setattr(settings, "BUILTIN", "")  # so that `builtin` is a folder like any other: the tiny model
    shell, namespace = Shell(tmp_path, things), dict.fromkeys(TEXTS, PROGRAMS * 4)
    for block in filter(is_run, blocks(page)):
        if block.is_shell:
            for words in commands(block.code):
                shell.run(words)
        else:
            shell.run_python(block.code, namespace)
