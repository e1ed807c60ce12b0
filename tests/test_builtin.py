"""The model that ships with the package: small enough, whole, at work, and in the wheel."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from crocodil import cli
from crocodil.pipeline import Crocodil
from crocodil.pipeline import folder as model_folders

REPOSITORY = Path(__file__).parent.parent
FOLDER = Path(model_folders.__file__).parent.parent / model_folders.BUILTIN
FILES = {path.relative_to(FOLDER.parent.parent).as_posix() for path in FOLDER.rglob("*") if path.is_file()}
MEBIBYTE = 2**20

built_in = pytest.mark.skipif(not FILES, reason="no model is built in yet")


@pytest.fixture(scope="module")
def pipe():
    return Crocodil.from_pretrained(device="cpu")


@built_in
def test_the_folder_is_at_most_80_mebibytes():
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= 80 * MEBIBYTE


@built_in
def test_it_generates(pipe):
    made = pipe.generate(1, length=32, calls=4)
    assert made.texts[0]
    assert made.costs[0].demasker_calls <= 4
    assert made.costs[0].encoder_calls == 1


@built_in
def test_it_autoencodes(pipe):
    text, _ = pipe.fitting("def area(width, height):\n    return width * height\n")
    assert pipe.autoencode([text], calls=8).texts[0]


@pytest.mark.skipif(bool(FILES), reason="a model is built in")
def test_where_no_model_is_built_in_one_line_says_so():
    failed = CliRunner().invoke(cli.app, ["generate"])
    assert isinstance(failed.exception, ValueError)
    assert str(failed.exception).startswith("no model is built in yet: pass a model folder")


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_its_model(tmp_path):
    pytest.importorskip("hatchling", reason="hatchling, which builds the wheel, is not installed")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert names >= FILES | {"crocodil/pipeline/folder.py", "crocodil/py.typed"}


@pytest.mark.slow
@built_in
def test_the_demo_shows_three_programs_and_an_error_rate():
    command = [sys.executable, str(REPOSITORY / "examples" / "demo.py")]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "Three programs" in shown
    assert "3 texts in" in shown
    assert "CER" in shown
