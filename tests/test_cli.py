"""The command line: every mistake is one line, and is told before torch is loaded."""

import subprocess
import sys
from typing import get_args

import pytest

from crocodil import __version__
from crocodil.cli import main, options
from crocodil.judges.folders import PACKAGED
from crocodil.pipeline.folder import NETWORKS
from crocodil.presets.runs import FROM_PRETRAINED, FROM_SCRATCH
from crocodil.processes.plan import RuleName
from crocodil.processes.reveal import RULES
from crocodil.reproduce.experiments import NAMES
from crocodil.reproduce.protocol import PROTOCOLS
from crocodil.training.run import STAGES


def told(capsys, monkeypatch, *arguments):
    """The exit status and what was said."""
    monkeypatch.setattr(sys, "argv", ["crocodil", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "--method", "nosuch"], "'--method'"),
        (["generate", "--temperature", "nan"], "'--temperature': should be a finite number, not 'nan'"),
        (["generate", "--temperature", "inf"], "'--temperature': should be a finite number, not 'inf'"),
        (["generate", "--temperature", "1e308"], "'--temperature': should be less than or equal to 1000"),
        (["generate", "--temperature", "1e-45"], "should be 0 (the most probable token) or at least 0.001"),
        (["generate", "--temperature", "warm"], "'--temperature': should be a valid number"),
        (["generate", "--guidance", "nan"], "'--guidance': should be a finite number"),
        (["generate", "--guidance", "inf"], "'--guidance': should be a finite number"),
        (["generate", "--coherence", "inf"], "'--coherence': should be a finite number"),
        (["generate", "--top-p", "0"], "'--top-p': should be greater than 0"),
        (["generate", "--threshold", "2"], "'--threshold': should be less than or equal to 1"),
        (["generate", "--count", "0"], "'--count': should be greater than or equal to 1"),
        (["generate", "--block-size", "0"], "'--block-size': should be greater than or equal to 1"),
        (["generate", "--block-size", "24"], "block_size 24 does not divide length 256: take 16 or 32"),
        (["generate", "--calls", "257"], "257 calls for 256 tokens"),
        (["generate", "--length", "1000"], "this model fills canvases of 2 to 512 tokens, not 1000"),
        (["generate", "--device", "gpu"], "no device 'gpu': take cpu, cuda or cuda:N"),
        (["generate", "--device", "mps"], "no device 'mps': take cpu, cuda or cuda:N"),
        (["generate", "--rule", "best"], "'--rule': should be 'most confident', 'noisy confidence'"),
        (["generate", "--model", "nowhere"], "no model 'nowhere': a model is 'builtin', or a folder"),
        (["generate", "--prefix", "\udcff"], "'--prefix': is no UTF-8 text"),
        (["generate", "--nonsense"], "No such option: --nonsense"),
        (["encode", "/dev/null", "--out", "x"], "/dev/null is a pipe or a device, not a file"),
        (["decode", "nowhere"], "nowhere does not exist, or is no file"),
        (["nonsense"], "No such command 'nonsense'"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(capsys, monkeypatch, arguments, message):
    status, said = told(capsys, monkeypatch, *arguments)
    assert status in (1, 2)
    assert said.startswith("crocodil: ")
    assert said.count("\n") == 1
    assert message in said
    assert "Value error" not in said


WITHOUT_TORCH = """
import sys
from crocodil.cli import main
sys.argv = ["crocodil", *sys.argv[1:]]
try:
    main()
finally:
    print(sorted({"torch", "transformers"} & set(sys.modules)))
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["--help"],
        ["generate", "--method", "nosuch"],
        ["generate", "--calls", "7", "--block-size", "64"],
        ["generate", "--model", "nowhere"],
        ["autoencode", "nowhere.py"],
        ["verify"],
        ["train", "guided", "--preset", "nosuch"],
        ["train", "guided", "--data", "nowhere", "--out", "out"],
        ["assemble", "nowhere", "--data", "nowhere", "--out", "out"],
        ["reproduce", "nosuch"],
        ["reproduce", "all", "--data", "nowhere"],
        ["evaluate", "--split", "nosuch"],
        ["corpus", "show", "nowhere"],
        ["judges", "install", "nosuch"],
    ],
)
def test_what_needs_no_network_is_answered_without_torch(arguments):
    command = [sys.executable, "-c", WITHOUT_TORCH, *arguments]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.stdout.splitlines()[-1] == "[]"
    assert "Traceback" not in found.stderr


def test_the_version_is_printed(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["crocodil", "--version"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    assert capsys.readouterr().out == f"crocodil {__version__}\n"


def test_the_names_on_the_command_line_are_those_of_the_library():
    assert get_args(RuleName) == tuple(RULES)
    assert get_args(options.Stage) == STAGES
    assert get_args(options.Preset) == (*FROM_SCRATCH, *FROM_PRETRAINED)
    assert get_args(options.Protocol) == tuple(PROTOCOLS)
    assert get_args(options.Network) == tuple(NETWORKS)
    assert get_args(options.Judge) == tuple(PACKAGED)
    assert get_args(options.Experiment) == ("all", "report", *NAMES)
