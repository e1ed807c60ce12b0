"""A whole corpus from a registry of small wheels: resumable, reproducible, movable."""

import gzip
import io
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner
from wheels import make_registry, make_wheel, program

from crocodil import cli
from crocodil.cli.root import table
from crocodil.corpus.build import build, run_harvest
from crocodil.corpus.packing import pack, unpack
from crocodil.corpus.recipe import Recipe
from crocodil.corpus.registry import lock, read_manifest
from crocodil.corpus.shards import Corpus, checksums
from crocodil.corpus.sources import Files, Wheels
from crocodil.corpus.summary import samples, tables, warnings
from crocodil.presets.corpora import own_python
from crocodil.runtime.progress import progress
from crocodil.text.tokenizer import Tokenizer

NAMES = [f"pack{number:02d}" for number in range(12)] + ["copyleft"]


@pytest.fixture(scope="module")
def pinned(tmp_path_factory):
    """The recipe of a corpus of all wheels, in three units."""
    with pytest.MonkeyPatch.context() as patch:
        make_registry(tmp_path_factory.mktemp("pinned") / "registry", patch)
        source = Wheels(tuple(lock(NAMES)), wheels_per_unit=5)
    return Recipe(source=source, vocab_size=500, valid_share=0.2, test_share=0.2, shard_chars=8000)


@pytest.fixture
def recipe(pinned, registry):
    """The same recipe, with a registry that has its wheels."""
    return pinned


@pytest.fixture(scope="module")
def whole(pinned, tmp_path_factory):
    """The corpus of that recipe, built by one process; nobody changes it."""
    root = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        make_registry(root / "registry", patch)
        return build(pinned, root / "out", num_processes=1)


def test_a_corpus_is_built_with_its_provenance(whole):
    corpus = whole
    corpus.verify()
    counts = corpus.description["counts"]
    assert counts["read"][0] == 12 * 3 + 1
    assert counts["dropped"]["licence"][0] == 1
    assert {package["licence"] for package in corpus.packages} == {"MIT"}
    splits = corpus.description["splits"]
    assert sum(own["documents"] for own in splits.values()) == 36
    assert all(own["packages"] for own in splits.values())
    assert len(splits["train"]["shards"]) > 1

    tokenizer = Tokenizer.load(corpus.directory / "tokenizer.json")
    for split in splits:
        for shard in corpus.shards(split):
            for row, path in zip(shard.documents, shard.paths, strict=True):
                text = tokenizer.decode(shard.tokens[row["start"] : row["start"] + row["length"]].tolist())
                name = re.sub(r"\W", "", path.removesuffix(".py").replace("/", ""))
                assert text == program(name, 4).strip("\n")
                assert corpus.packages[row["package"]]["name"].startswith(path.split("/")[0])


def test_a_definition_of_a_long_file_is_kept_though_the_file_is_not(registry, tmp_path):
    text = program("long", 60) + "\n\nTABLE = 3\n"
    make_wheel(registry, "longpack", files={"longpack/a.py": text})
    recipe = Recipe(source=Wheels(tuple(lock(["longpack"]))), vocab_size=400, max_chars=5000, near_duplicate=1.0)
    corpus = build(recipe, tmp_path / "out", num_processes=1)
    assert corpus.description["splits"]["train"]["documents"] == 60
    assert corpus.description["counts"]["dropped"]["between and outside the definitions of long files"][0] == 1


def test_the_number_of_processes_does_not_change_a_byte(whole, recipe, tmp_path):
    two = build(recipe, tmp_path / "two", num_processes=2)
    assert whole.description["sha256"] == two.description["sha256"]
    assert len(whole.description["sha256"]) > 8


def test_the_manifest_rebuilds_the_same_bytes(whole, recipe, registry, tmp_path):
    manifest = tmp_path / "manifest.txt"
    manifest.write_text("".join(f"{pin}\n" for pin in recipe.source.pins))
    make_wheel(registry, "pack00", "9.0", files={"pack00/new.py": program("new")})  # published since
    again = replace(recipe, source=Wheels(tuple(read_manifest(manifest)), wheels_per_unit=5))
    assert build(again, tmp_path / "out", num_processes=1).description["sha256"] == whole.description["sha256"]


BUILD_IN_A_PROCESS = """
import sys
from pathlib import Path
from crocodil.corpus.build import build
from crocodil.corpus.recipe import Recipe
from crocodil.corpus.sources import Files

def recipe(source):
    return Recipe(source=Files(Path(source), files_per_unit=4), permissive_only=False, vocab_size=500,
                  valid_share=0.2, test_share=0.2, shard_chars=6000)

if __name__ == "__main__":
    build(recipe(sys.argv[1]), Path(sys.argv[3]), num_processes=int(sys.argv[2]))
"""


@pytest.fixture
def own_files(tmp_path):
    """A folder of programs, and a script that builds a corpus from it in a process of its own."""
    folder = tmp_path / "own"
    for number in range(40):
        file = folder / f"project{number % 10}" / f"module{number}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(program(f"m{number}", 5))
    script = tmp_path / "script.py"
    script.write_text(BUILD_IN_A_PROCESS)
    return [sys.executable, str(script), str(folder), "1"]


def finished(command, out, **options):
    return subprocess.run([*command, str(out)], capture_output=True, text=True, check=False, **options)


@pytest.mark.parametrize("num_processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_build_that_is_killed_again_and_again_ends_with_the_same_checksums(own_files, tmp_path, num_processes):
    own_files = [*own_files[:-1], f"{num_processes}"]
    started_at = time.monotonic()
    assert finished(own_files, tmp_path / "whole").returncode == 0
    full_s = time.monotonic() - started_at
    expected = Corpus(tmp_path / "whole").description["sha256"]
    out = tmp_path / "killed"
    survived = 0
    for share in (0.35, 0.5, 0.6, 0.7, 0.8, 0.9):
        process = subprocess.Popen([*own_files, str(out)], stderr=subprocess.DEVNULL)
        try:
            process.wait(timeout=share * full_s)
            survived += 1
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
    assert survived < 6
    assert finished(own_files, out).returncode == 0
    assert Corpus(out).description["sha256"] == expected
    assert not list(out.rglob(".unfinished-*"))


def test_what_a_build_that_was_killed_left_of_a_file_is_no_part_of_the_corpus(whole, recipe, tmp_path):
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / ".unfinished-description").write_text('{"format": ')
    found = build(recipe, tmp_path / "killed", num_processes=1)
    assert found.description["sha256"] == whole.description["sha256"]
    assert not list((tmp_path / "killed").glob(".unfinished-*"))


def test_a_full_disk_leaves_nothing_that_is_taken_for_whole(own_files, tmp_path):
    def little_room():
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    out = tmp_path / "out"
    failed = finished(own_files, out, preexec_fn=little_room)
    assert failed.returncode != 0
    assert "File too large" in failed.stderr
    assert not (out / "corpus.json").exists()
    assert finished(own_files, out).returncode == 0
    assert finished(own_files, tmp_path / "whole").returncode == 0
    assert checksums(out) == checksums(tmp_path / "whole")


def test_a_directory_belongs_to_the_recipe_that_began_it(whole, recipe, tmp_path):
    shutil.copytree(whole.directory, tmp_path / "out")
    assert build(recipe, tmp_path / "out", num_processes=1).description == whole.description
    with pytest.raises(ValueError, match="started with another recipe"):
        build(replace(recipe, vocab_size=600), tmp_path / "out", num_processes=1)
    shutil.rmtree(tmp_path / "out" / "work")  # may be deleted when a corpus is finished
    assert build(recipe, tmp_path / "out", num_processes=1).description == whole.description
    with pytest.raises(ValueError, match="started with another recipe"):
        build(replace(recipe, vocab_size=600), tmp_path / "out", num_processes=1)


def test_a_source_without_files_does_not_take_the_directory(recipe, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="has no readable file"):
        build(own_python(tmp_path / "empty"), tmp_path / "out", num_processes=1)
    assert build(recipe, tmp_path / "out", num_processes=1).description["recipe"]


def test_an_existing_tokenizer_is_the_same_code_path(recipe, tmp_path):
    Tokenizer.train([program("x", 20)], vocab_size=300).save(tmp_path / "own.json")
    corpus = build(replace(recipe, tokenizer=tmp_path / "own.json"), tmp_path / "out", num_processes=1)
    assert corpus.description["tokenizer"]["vocab_size"] == 300


# ---------------------------------------------------------------- looking at it, moving it


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "files"
    for number in range(30):
        file = folder / f"p{number}" / "m.py"
        file.parent.mkdir(parents=True)
        file.write_text(program(f"q{number}", 5))
    recipe = Recipe(source=Files(folder), permissive_only=False, vocab_size=400, valid_share=0.2, test_share=0.2)
    return build(recipe, tmp_path / "corpus", num_processes=1)


@pytest.fixture(scope="module")
def small_corpus(tmp_path_factory):
    """The folder of a corpus of 21 files that nobody changes; one name looks like markup, one file is a pipe."""
    root = tmp_path_factory.mktemp("small")
    (root / "files").mkdir()
    for number in range(20):
        (root / "files" / f"m{number}.py").write_text(program(f"q{number}", 5))
    (root / "files" / "[red]x.py").write_text(program("red", 5))
    os.mkfifo(root / "files" / "[bold]p.py")
    build(replace(own_python(root / "files"), vocab_size=400), root / "corpus", num_processes=1)
    return root / "corpus"


def test_a_small_folder_of_own_files_fills_all_splits(small_corpus):
    found = Corpus(small_corpus)
    assert all(found.shards(split) for split in ("train", "valid", "test"))
    assert list(warnings(found)) == []


def test_a_corpus_for_tests_leaves_out_what_another_corpus_has(small_corpus, tmp_path, capsys):
    shutil.copytree(small_corpus, without_work := tmp_path / "other", ignore=shutil.ignore_patterns("work"))
    known = small_corpus.parent / "files" / Corpus(small_corpus).shards("train")[0].paths[-1]
    last = "\n" + known.read_text().split("\n\n")[-1]
    for name, text in {"new": program("new", 5) + last, "same": known.read_text()}.items():
        (tmp_path / "files" / name).mkdir(parents=True)
        (tmp_path / "files" / name / "m.py").write_text(text)
    recipe = replace(own_python(tmp_path / "files"), valid_share=0.0, test_share=1.0)
    with pytest.raises(ValueError, match="a corpus for tests alone cannot train a tokenizer: give one with"):
        build(recipe, tmp_path / "out")
    with pytest.raises(ValueError, match="files is not a finished corpus"):
        build(replace(own_python(tmp_path), against=(tmp_path / "files",)), tmp_path / "out")
    for number, other in enumerate((small_corpus, without_work)):
        full = replace(recipe, tokenizer=other / "tokenizer.json", against=(other,))
        built = build(full, tmp_path / f"{number}", num_processes=1)
        assert [package["split"] for package in built.packages] == ["test", None]
        assert built.description["counts"]["dropped"]["exact duplicate of another corpus"][0] == 1
        assert 0 < built.description["leaked_share"]["test"] < 0.3
        assert list(warnings(built)) == []
    code, shown, _ = called(capsys, "corpus", "show", tmp_path / "0")
    assert code == 0
    assert "Lengths of documents in test" in shown
    assert "def " not in shown


def test_an_empty_split_is_said_by_the_build_by_the_report_and_by_whatever_needs_it(tmp_path, capsys):
    for number in range(2):
        (tmp_path / "files").mkdir(exist_ok=True)
        (tmp_path / "files" / f"m{number}.py").write_text(program(f"q{number}", 5))
    out = tmp_path / "out"
    arguments = [
        "build",
        "--preset",
        "python-files",
        "--source",
        tmp_path / "files",
        "--out",
        out,
        "--processes",
        1,
    ]
    warning = (
        "crocodil: warning: the test split is empty, but `crocodil reproduce` needs it: build a corpus from more"
    )
    for verb in ([*arguments, "--vocab-size", 300], ["show", out]):
        code, _, said = called(capsys, "corpus", *verb)
        assert code == 0
        assert warning in said
    with pytest.raises(ValueError, match="the test split has no program of at most 64 tokens"):
        Corpus(out).programs("test", length=64)
    for verb in (["evaluate", "--split", "test"], ["reproduce", "generation", "--out", tmp_path / "results"]):
        code, _, said = called(capsys, *verb, "--data", out)
        assert code == 1
        assert said.startswith("crocodil: the test split of ")
        assert len(said.splitlines()) == 1


def test_a_build_goes_on_only_with_the_files_it_began_with(tmp_path):
    for number in range(5):
        (tmp_path / "files").mkdir(exist_ok=True)
        (tmp_path / "files" / f"m{number}.py").write_text(program(f"q{number}", 5))
    recipe = replace(own_python(tmp_path / "files"), vocab_size=300)
    run_harvest(recipe, tmp_path / "out" / "work", num_processes=1)
    (tmp_path / "files" / "m1.py").unlink()
    with pytest.raises(ValueError, match="gained or lost files"):
        build(recipe, tmp_path / "out", num_processes=1)


def test_a_packed_corpus_comes_back_whole(corpus, tmp_path):
    pieces = pack(corpus, tmp_path / "pieces", piece_bytes=2000)
    assert len(pieces) > 2
    assert all(file.stat().st_size <= 2000 for file in pieces)
    back = unpack(tmp_path / "pieces", tmp_path / "back")
    assert back.description == corpus.description
    assert checksums(back.directory) == checksums(corpus.directory)
    programs, again = corpus.programs("train", length=128), back.programs("train", length=128)
    assert np.array_equal(programs.batch(range(10)), again.batch(range(10)))


def test_more_than_a_thousand_pieces_are_put_together_in_order(corpus, tmp_path):
    (piece,) = pack(corpus, tmp_path / "pieces", piece_bytes=10**9)
    data, size = piece.read_bytes(), piece.stat().st_size // 1100
    for number in range(0, -(-len(data) // size)):
        (tmp_path / "pieces" / f"piece-{number:03d}.xz").write_bytes(data[number * size : (number + 1) * size])
    assert (tmp_path / "pieces" / "piece-1000.xz").exists()
    unpack(tmp_path / "pieces", tmp_path / "back")


def test_a_pack_that_fails_leaves_no_pieces(corpus, tmp_path):
    next(corpus.directory.rglob("tokens.bin")).unlink()
    with pytest.raises(OSError, match="No such file"):
        pack(corpus, tmp_path / "pieces", piece_bytes=2000)
    assert not (tmp_path / "pieces").exists()
    assert not list(tmp_path.glob(".unfinished-*"))
    for size in (0, -1, 999):
        with pytest.raises(ValueError, match="at least 1,000 bytes"):
            pack(corpus, tmp_path / "pieces", piece_bytes=size)


def test_missing_and_damaged_pieces_are_refused(corpus, tmp_path):
    pieces = pack(corpus, tmp_path / "pieces", piece_bytes=2000)
    with pytest.raises(ValueError, match="exists"):
        pack(corpus, tmp_path / "pieces", piece_bytes=2000)
    last = pieces[-1].read_bytes()
    pieces[-1].unlink()
    with pytest.raises(ValueError, match="damaged or incomplete"):
        unpack(tmp_path / "pieces", tmp_path / "back")
    pieces[-1].write_bytes(last)
    pieces[1].write_bytes(bytes(2000))
    with pytest.raises(ValueError, match="damaged or incomplete"):
        unpack(tmp_path / "pieces", tmp_path / "back")
    assert not (tmp_path / "back").exists()
    assert not list(tmp_path.glob(".unfinished-*"))
    with pytest.raises(ValueError, match="no pieces"):
        unpack(tmp_path / "nowhere", tmp_path / "back")


def test_a_damaged_or_unfinished_corpus_is_refused(corpus):
    file = next(corpus.directory.rglob("tokens.bin"))
    file.write_bytes(file.read_bytes()[:-2])
    with pytest.raises(ValueError, match="is damaged"):
        corpus.verify()
    file.unlink()
    with pytest.raises(ValueError, match="is missing"):
        corpus.verify()
    with pytest.raises(ValueError, match="no split 'dev'"):
        corpus.programs("dev", length=128)
    (corpus.directory / "corpus.json").write_text(json.dumps({"format": "other"}))
    with pytest.raises(ValueError, match="not version 1"):
        Corpus(corpus.directory)
    (corpus.directory / "corpus.json").unlink()
    with pytest.raises(ValueError, match="not a finished corpus"):
        Corpus(corpus.directory)


WRONG_VALUES = [
    ("packages", None), ("packages", [1]), ("packages", [{"name": 1, "licence": "MIT", "split": None}]),
    ("splits", []), ("splits.train", "x"), ("splits.train.shards", [3]),
    ("splits.valid.documents", "3"), ("splits.test.tokens", -1),
    ("tokenizer", None), ("tokenizer.vocab_size", "400"), ("tokenizer.vocab_size", 10**30),
    ("tokenizer.vocab_size", 0), ("tokenizer.special.eos", None), ("tokenizer.special.eos", True),
    ("leaked_share.valid", float("nan")), ("counts.read", [1]), ("counts.dropped", {"x": "y"}), ("counts", 3),
    ("counts.skipped", {"x": 1}), ("sha256", {"x": 1}), ("recipe", None),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), WRONG_VALUES)
def test_a_wrong_value_in_the_description_is_one_line_that_names_its_field(small_corpus, tmp_path, field, value):
    description = json.loads((small_corpus / "corpus.json").read_text())
    *path, last = field.split(".")
    owner = description
    for name in path:
        owner = owner[name]
    owner[last] = value
    (tmp_path / "corpus.json").write_text(json.dumps(description))
    with pytest.raises(ValueError, match=rf"corpus\.json: {field}") as caught:
        Corpus(tmp_path)
    assert "\n" not in str(caught.value)
    assert "crocodil corpus verify" in str(caught.value)


@pytest.mark.parametrize("name", ["../../elsewhere", "/etc/passwd", "a/../../b"])
def test_a_description_that_points_outside_is_refused(small_corpus, tmp_path, name):
    description = json.loads((small_corpus / "corpus.json").read_text())
    checksums = description["sha256"] | {name: "0" * 64}
    splits = description["splits"] | {"test": description["splits"]["test"] | {"shards": [name]}}
    for change in ({"sha256": checksums}, {"splits": splits}):
        (tmp_path / "corpus.json").write_text(json.dumps(description | change))
        with pytest.raises(ValueError, match=rf"{name}' is not a file of this corpus; rebuild"):
            Corpus(tmp_path)


def test_a_description_that_lacks_a_field_is_refused(small_corpus, tmp_path):
    description = json.loads((small_corpus / "corpus.json").read_text())
    for field in description.keys() - {"format", "version"}:
        rest = {name: value for name, value in description.items() if name != field}
        (tmp_path / "corpus.json").write_text(json.dumps(rest))
        with pytest.raises(ValueError, match=rf"corpus\.json: {field} is missing"):
            Corpus(tmp_path)


@pytest.mark.parametrize("content", ["[1, 2]", "3", "null", '"x"', "{}"])
def test_a_description_that_is_no_description_is_refused(tmp_path, content):
    (tmp_path / "corpus.json").write_text(content)
    with pytest.raises(ValueError, match="is not version 1"):
        Corpus(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xff", b"[" * 200_000])
def test_a_description_that_is_not_json_is_refused(tmp_path, content):
    (tmp_path / "corpus.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"corpus\.json is not JSON"):
        Corpus(tmp_path)


def test_the_report_counts_what_is_there(corpus):
    found = {rows[0][0]: rows for rows in tables(corpus)}
    assert found["Splits"][2][0] == "train"
    documents = sum(int(row[2]) for row in found["Splits"][2:])
    assert documents == 30
    assert found["Licences of packages"][2][:2] == ("unspecified", "30")
    assert [row for row in found["Programs by length"] if row[0] == "256"]
    drawn = list(samples(corpus, count=3, length=256))
    assert len(drawn) == 3
    assert all("def " in text for text in drawn)


def run(*arguments):
    """The command line as a user meets it: exit code, and what it said."""
    command = [sys.executable, "-m", "crocodil.cli", *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "120"}
    )
    return done.returncode, done.stdout, done.stderr


def called(capsys, *arguments):
    """The same without a process of its own."""
    before, sys.argv = sys.argv, ["crocodil", *map(str, arguments)]
    try:
        cli.main()
        code = 0
    except SystemExit as ended:
        code = ended.code or 0
    finally:
        sys.argv = before
    return code, *capsys.readouterr()


def test_names_are_printed_as_they_are(small_corpus, capsys):
    code, shown, _ = called(capsys, "corpus", "show", small_corpus, "--samples", 0)
    assert code == 0
    assert "[bold]p.py" in shown
    console = Console(width=200, file=io.StringIO())
    names = ("[red]x.py", ":smile:", "[/]", "[link=x]")
    console.print(table([("[b]title of it",), ("[i]head", "other"), names[:2], names[2:]]))
    assert all(name in console.file.getvalue() for name in ("[b]title of it", "[i]head", *names))


def test_progress_prints_names_as_they_are(capsys):
    with progress("reading", 1, unit="units") as advance:
        advance(1, "[red]x.py ...")
    assert "[red]x.py ..." in capsys.readouterr().err


OUT_OF_RANGE = [
    ("pack", "--piece-megabytes", (0, -1, 1e-9, "inf", "-inf", "nan", "x")),
    ("show", "--samples", (-1, "x", 10**30)),
    ("show", "--length", (0, 2, -1, 10**30)),
    ("build", "--vocab-size", (0, -1, 259, 10**30)),
    ("build", "--processes", (0, -1, 10**9)),
]


@pytest.mark.parametrize(("verb", "option", "values"), OUT_OF_RANGE)
def test_a_number_out_of_range_is_refused_at_the_option(small_corpus, tmp_path, capsys, verb, option, values):
    place = {
        "pack": [small_corpus, "--out", tmp_path / "out"],
        "show": [small_corpus],
        "build": ["--preset", "python-files", "--source", tmp_path, "--out", tmp_path / "out"],
    }[verb]
    for value in values:
        code, _, said = called(capsys, "corpus", verb, *place, f"{option}={value}")
        assert code == 2
        assert option in said
    assert not (tmp_path / "out").exists()


def test_every_mistake_is_one_line(small_corpus, tmp_path, capsys):
    (tmp_path / "names.txt").write_bytes(b"\xff\0\x80")
    (tmp_path / "list.txt").write_text("numpy --log=x")
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.py").write_text(program("a", 5))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(b'{"text": "x"}' * 1000)[:-20])
    own = ["build", "--preset", "python-files", "--out", tmp_path / "out", "--processes", 1, "--source"]
    for arguments, message in (
        (["card", small_corpus, "--out", tmp_path], "is not a regular file"),
        (["card", small_corpus, "--out", tmp_path / "no" / "card.md"], "does not exist"),
        (["lock", tmp_path / "names.txt", "--out", tmp_path / "lock"], r"names\.txt is not a text file"),
        (["lock", tmp_path / "list.txt", "--out", tmp_path / "lock"], "is neither a package name"),
        (["lock", tmp_path / "list.txt", "--out", tmp_path / "no" / "lock"], "does not exist"),
        (["lock", tmp_path, "--out", tmp_path / "lock"], "is not a readable file"),
        ([*own, tmp_path / "pipe"], "pipe is neither a folder nor an archive"),
        (
            [*own, tmp_path / "rows.jsonl.gz"],
            r"rows\.jsonl\.gz is not a readable file of rows: Compressed file ended",
        ),
        (
            [*own, tmp_path / "files", "--tokenizer", tmp_path / "tokenizer.json"],
            r"is not a usable tokenizer\.json",
        ),
        ([*own, tmp_path / "files", "--tokenizer", tmp_path], "is missing: expected a tokenizer.json"),
    ):
        code, _, said = called(capsys, "corpus", *arguments)
        assert (code, len(said.strip().splitlines())) == (1, 1), said
        assert re.search(f"crocodil: .*{message}", said), said
        for leftover in (tmp_path / "out", tmp_path / "lock"):
            assert not (leftover / "corpus.json").exists()
        shutil.rmtree(tmp_path / "out", ignore_errors=True)


def test_a_card_is_written_whole(small_corpus, tmp_path, capsys):
    code, *_ = called(capsys, "corpus", "card", small_corpus, "--out", tmp_path / "card.md")
    assert code == 0
    assert (tmp_path / "card.md").read_text().startswith("# Sources and licences")
    assert [file.name for file in tmp_path.iterdir()] == ["card.md"]


def test_the_command_line_shows_packs_and_unpacks_a_corpus(corpus, tmp_path):
    command = CliRunner()
    shown = command.invoke(cli.app, ["corpus", "show", str(corpus.directory), "--samples", "2"])
    assert shown.exit_code == 0
    assert "Splits" in shown.output
    assert "def " in shown.output
    pieces, back = str(tmp_path / "pieces"), str(tmp_path / "back")
    assert command.invoke(cli.app, ["corpus", "pack", str(corpus.directory), "--out", pieces]).exit_code == 0
    assert command.invoke(cli.app, ["corpus", "unpack", pieces, "--out", back]).exit_code == 0
    assert "all files match" in command.invoke(cli.app, ["corpus", "verify", back]).output


def test_a_users_mistake_is_one_clear_line(tmp_path):
    for arguments, message in (
        (["corpus", "show", tmp_path], "crocodil: .* is not a finished corpus"),
        (["corpus", "build", "--preset", "nonsense", "--out", tmp_path], "crocodil: no preset 'nonsense'"),
        (["corpus", "build", "--preset", "python-files", "--out", tmp_path], "needs --source"),
    ):
        code, _, said = run(*arguments)
        assert code == 1
        assert re.search(message, said)
        assert len(said.strip().splitlines()) == 1


def test_the_command_line_builds_from_a_folder(tmp_path):
    folder = tmp_path / "mine"
    for number in range(30):
        file = folder / f"m{number}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(program(f"q{number}", 5))
    code, shown, said = run(
        "corpus", "build", "--preset", "python-files", "--source", folder, "--out", tmp_path / "out",
        "--vocab-size", 400, "--processes", 1,
    )  # fmt: skip
    assert code == 0, said
    assert "Files read, dropped and kept" in shown
    assert Corpus(Path(tmp_path / "out")).description["splits"]["train"]["documents"] > 20
