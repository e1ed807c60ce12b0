"""The model that ships with the package: small enough, whole, at work, and in the wheel."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from crocodil.metrics import character_error_rate
from crocodil.pipeline import Crocodil
from crocodil.pipeline import settings as model_folders

REPOSITORY = Path(__file__).parent.parent
FOLDER = Path(model_folders.__file__).parent.parent / model_folders.BUILTIN
FILES = {path.relative_to(FOLDER.parent.parent).as_posix() for path in FOLDER.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def pipe():
    return Crocodil.from_pretrained(device="cpu")


def test_the_folder_is_at_most_100_megabytes():
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= 100e6


def test_it_generates(pipe):
    made = pipe.generate(1, length=32, calls=4)
    assert made.texts[0]
    assert made.costs[0].demasker_calls <= 4
    assert made.costs[0].denoiser_calls >= pipe.settings.drawing.prior_steps


def test_what_it_autoencodes_is_the_same_text(pipe):
    text = (REPOSITORY / "examples" / "greeting.py").read_text()
    assert character_error_rate(text, pipe.autoencode([text], calls=8).texts[0]) < 0.05


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_its_model(tmp_path):
    pytest.importorskip("hatchling", reason="hatchling, which builds the wheel, is not installed")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert names >= FILES | {"crocodil/pipeline/folder.py", "crocodil/py.typed"}


@pytest.mark.slow
def test_the_demo_shows_three_programs_and_an_error_rate():
    command = [sys.executable, str(REPOSITORY / "examples" / "demo.py")]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "Three programs" in shown
    assert "3 texts in" in shown
    assert "CER" in shown


def printed_in_readme():
    """Return commands of README with the output that is printed below them."""
    text = (REPOSITORY / "README.md").read_text()
    return re.findall(r"```bash\ncrocodil ([^\n]+)\n```\n\n```text\n(.*?)```", text, re.DOTALL)


def test_readme_shows_the_output_of_three_commands():
    assert [command.split()[0] for command, _ in printed_in_readme()] == ["autoencode", "interpolate", "generate"]


@pytest.mark.slow
@pytest.mark.parametrize(("command", "output"), printed_in_readme())
def test_commands_print_what_readme_shows(command, output):
    run = [sys.executable, "-m", "crocodil.cli", *command.split(), "--device", "cpu"]
    printed = subprocess.run(run, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout
    rest = printed
    for part in output.split("...\n"):  # "..." stands for lines left out
        assert part in rest
        rest = rest.partition(part)[2] if part else rest
