"""What is written appears whole or not at all, and by one process at a time."""

import os
import subprocess
import sys

import pytest

from crocodil.runtime.atomic import locked, whole_file


def test_a_pipe_or_a_folder_is_never_written_over(tmp_path):
    pipe, folder, loop = tmp_path / "pipe", tmp_path / "folder", tmp_path / "loop"
    os.mkfifo(pipe)
    folder.mkdir()
    loop.symlink_to(loop)
    for target in (pipe, folder, loop, "/dev/null"):
        with (
            pytest.raises(ValueError, match="is not a regular file: choose another name"),
            whole_file(type(tmp_path)(target)),
        ):
            pass
    assert pipe.is_fifo()
    assert loop.is_symlink()
    assert sorted(tmp_path.iterdir()) == [folder, loop, pipe]


def test_a_link_to_a_file_stays_a_link(tmp_path):
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("old")
    link.symlink_to(file)
    with whole_file(link) as unfinished:
        unfinished.write_text("new")
    assert link.is_symlink()
    assert file.read_text() == "new"


def test_a_file_in_a_folder_that_is_not_there_is_one_line(tmp_path):
    with (
        pytest.raises(ValueError, match="does not exist: create this folder first"),
        whole_file(tmp_path / "a" / "b"),
    ):
        pass


def test_a_second_process_is_told_that_a_place_is_in_use(tmp_path):
    out = tmp_path / "out"
    ask = (
        "from pathlib import Path; from crocodil.runtime.atomic import locked\n"
        f"with locked(Path({str(out)!r})): print()"
    )
    run = [sys.executable, "-c", ask]
    with locked(out):
        second = subprocess.run(run, capture_output=True, text=True, check=False)
    assert second.returncode == 1
    assert "out is in use by another process: wait for it, or choose another" in second.stderr
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout == "\n"
