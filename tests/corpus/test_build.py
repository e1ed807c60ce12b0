"""A whole corpus from a registry of small wheels: resumable, reproducible, movable."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner
from wheels import make_wheel, program

from crocodil import cli
from crocodil.corpus.build import build
from crocodil.corpus.packing import pack, unpack
from crocodil.corpus.recipe import Recipe
from crocodil.corpus.registry import lock, read_manifest
from crocodil.corpus.report import samples, tables
from crocodil.corpus.shards import Corpus, checksums
from crocodil.corpus.sources import Files, Wheels
from crocodil.tokenization import Tokenizer

NAMES = [f"pack{number:02d}" for number in range(12)] + ["copyleft"]


@pytest.fixture
def recipe(registry):
    source = Wheels(tuple(lock(NAMES)), wheels_per_unit=3)
    return Recipe(source=source, vocab_size=500, valid_share=0.2, test_share=0.2, shard_chars=8000)


def test_a_corpus_is_built_with_its_provenance(recipe, tmp_path):
    corpus = build(recipe, tmp_path / "out", num_processes=1)
    corpus.verify()
    counts = corpus.description["counts"]
    assert counts["read"][0] == 12 * 3 + 1
    assert counts["dropped"]["licence"][0] == 1
    assert {package["licence"] for package in corpus.packages} == {"MIT"}
    splits = corpus.description["splits"]
    assert sum(own["documents"] for own in splits.values()) == 36
    assert all(own["packages"] for own in splits.values())
    assert len(splits["train"]["shards"]) > 1

    tokenizer = Tokenizer.load(tmp_path / "out" / "tokenizer.json")
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


def test_the_number_of_processes_does_not_change_a_byte(recipe, tmp_path):
    one, two = (build(recipe, tmp_path / f"{n}", num_processes=n) for n in (1, 2))
    assert one.description["sha256"] == two.description["sha256"]
    assert len(one.description["sha256"]) > 8


def test_the_manifest_rebuilds_the_same_bytes(recipe, registry, tmp_path):
    manifest = tmp_path / "manifest.txt"
    manifest.write_text("".join(f"{pin}\n" for pin in recipe.source.pins))
    make_wheel(registry, "pack00", "9.0", files={"pack00/new.py": program("new")})  # published since
    again = replace(recipe, source=Wheels(tuple(read_manifest(manifest)), wheels_per_unit=3))
    first, second = build(recipe, tmp_path / "a", num_processes=1), build(again, tmp_path / "b", num_processes=1)
    assert first.description["sha256"] == second.description["sha256"]


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


@pytest.mark.parametrize("num_processes", [1, 2])
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


def test_what_a_build_that_was_killed_left_of_a_file_is_no_part_of_the_corpus(recipe, tmp_path):
    whole = build(recipe, tmp_path / "whole", num_processes=1)
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


def test_a_directory_belongs_to_the_recipe_that_began_it(recipe, tmp_path):
    first = build(recipe, tmp_path / "out", num_processes=1)
    assert build(recipe, tmp_path / "out", num_processes=1).description == first.description
    with pytest.raises(ValueError, match="begun with another recipe"):
        build(replace(recipe, vocab_size=600), tmp_path / "out", num_processes=1)


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


def test_a_packed_corpus_comes_back_whole(corpus, tmp_path):
    pieces = pack(corpus, tmp_path / "pieces", piece_bytes=2000)
    assert len(pieces) > 2
    assert all(file.stat().st_size <= 2000 for file in pieces)
    back = unpack(tmp_path / "pieces", tmp_path / "back")
    assert back.description == corpus.description
    assert checksums(back.directory) == checksums(corpus.directory)
    programs, again = corpus.programs("train", length=128), back.programs("train", length=128)
    assert np.array_equal(programs.batch(range(10)), again.batch(range(10)))


def test_missing_and_damaged_pieces_are_refused(corpus, tmp_path):
    pieces = pack(corpus, tmp_path / "pieces", piece_bytes=2000)
    with pytest.raises(ValueError, match="exists"):
        pack(corpus, tmp_path / "pieces", piece_bytes=2000)
    last = pieces[-1].read_bytes()
    pieces[-1].unlink()
    with pytest.raises(ValueError, match="damaged or not all there"):
        unpack(tmp_path / "pieces", tmp_path / "back")
    pieces[-1].write_bytes(last)
    pieces[1].write_bytes(bytes(2000))
    with pytest.raises(ValueError, match="damaged or not all there"):
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
    with pytest.raises(ValueError, match="no finished corpus"):
        Corpus(corpus.directory)


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


def test_the_command_line_shows_packs_and_unpacks_a_corpus(corpus, tmp_path):
    command = CliRunner()
    shown = command.invoke(cli.app, ["corpus", "show", str(corpus.directory), "--samples", "2"])
    assert shown.exit_code == 0
    assert "Splits" in shown.output
    assert "def " in shown.output
    pieces, back = str(tmp_path / "pieces"), str(tmp_path / "back")
    assert command.invoke(cli.app, ["corpus", "pack", str(corpus.directory), "--out", pieces]).exit_code == 0
    assert command.invoke(cli.app, ["corpus", "unpack", pieces, "--out", back]).exit_code == 0
    assert "is whole" in command.invoke(cli.app, ["corpus", "verify", back]).output


def test_a_users_mistake_is_one_clear_line(tmp_path):
    for arguments, message in (
        (["corpus", "show", tmp_path], "crocodil: .* holds no finished corpus"),
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
    assert "What became of all files" in shown
    assert Corpus(Path(tmp_path / "out")).description["splits"]["train"]["documents"] > 20
