"""The command line: a mistake is a one-line error, before torch is imported; help, old names and output files."""

import json
import os
import subprocess
import sys
from dataclasses import field, fields
from typing import Any, get_args

import pytest
import typer
from typer.testing import CliRunner

from crocodil import __version__
from crocodil.cli import app, main, options
from crocodil.cli.texts import NewFolder, check_new_registers, read_texts
from crocodil.judges import DEFAULT_JUDGE, PACKAGED
from crocodil.pipeline.folder import NETWORKS
from crocodil.pipeline.settings import BUILTIN, read_settings, settings_file
from crocodil.presets.ablated import ABLATIONS
from crocodil.presets.runs import FROM_CAUSAL, FROM_PRETRAINED, FROM_SCRATCH
from crocodil.reproduce.experiments import NAMES
from crocodil.reproduce.protocol import PROTOCOLS
from crocodil.runtime.config import Temperature, config
from crocodil.sampling.configs import Decoding, Drawing
from crocodil.training.stage_setup import STAGES

BUILT_IN = read_settings(settings_file(BUILTIN))


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


def failure(capsys, monkeypatch, *arguments):
    """Return the exit status and the message of a command that fails."""
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
        (["generate", "--pag-scale", "inf"], "'--pag-scale': should be a finite number"),
        (["generate", "--coherence", "inf"], "'--coherence': should be a finite number"),
        (["generate", "--top-p", "0"], "'--top-p': should be greater than 0"),
        (["generate", "--threshold", "2"], "'--threshold': should be less than or equal to 1"),
        (["generate", "--count", "0"], "'--count': should be greater than or equal to 1"),
        (["generate", "--block-size", "0"], "'--block-size': should be greater than or equal to 1"),
        (["generate", "--block-size", "24"], "block_size 24 does not divide length 256: use 16 or 32"),
        (
            ["generate", "--length", "48", "--block-size", "7"],
            "block_size 7 does not divide length 48: use 6 or 8",
        ),
        (
            ["generate", "--length", "32", "--calls", "64"],
            "64 calls exceed the 32 tokens of the canvas: use 32 or fewer",
        ),
        (["generate", "a prompt"], "unexpected extra argument (a prompt): use --prompt TEXT or --prefix TEXT"),
        (["generate", "--method", "CONTHENDISC", "--calls", "999"], "999 calls exceed the 256 tokens"),
        (["evaluate", "--method", "ConThenDisc", "--data", "nowhere"], "nowhere"),
        (["interpolate", __file__, __file__, "--steps", "1"], "needs at least 2 steps: both ends count"),
        (["generate", "--length", "9999"], f"fills canvases of 2 to {BUILT_IN.lengths[-1]} tokens, not 9999"),
        (["generate", "--device", "gpu"], "no device 'gpu': choose cpu, cuda or cuda:N"),
        (["generate", "--device", "mps"], "no device 'mps': choose cpu, cuda or cuda:N"),
        (
            ["generate", "--rule", "best"],
            "'--rule': should be a reveal rule (confidence, noisy-confidence, random,",
        ),
        (["generate", "--out-dir", __file__], "test_cli.py is not a folder: choose another --out-dir"),
        (["generate", "--out-dir", f"{__file__}/new"], f"crocodil: {__file__}/new: Not a directory"),
        (["generate", "--out-dir", "/"], "/ is not empty: texts are never overwritten, choose another --out-dir"),
        (["generate", "--extension", "a/b"], "'a/b' is not a file extension: write py or txt, for example"),
        (["generate", "--model", "nowhere"], "no model 'nowhere': a model is 'builtin', or a folder"),
        (["generate", "--prefix", "\udcff"], "'--prefix': is not UTF-8 text"),
        (["generate", "--nonsense"], "No such option: --nonsense"),
        (["encode", "/dev/null", "--out", "x.safetensors"], "/dev/null is a pipe or a device, not a file"),
        (["encode", __file__, "--out", "x"], "x does not end in .safetensors: choose another --out"),
        (["autoencode", "a" * 300], f"{'a' * 300}: File name too long"),
        (["autoencode", "/"], "/ is a folder: name the files in it"),
        (["complete", __file__, "--at", "0"], "'0' is not a place in a file: write LINE or LINE:COLUMN, counted"),
        (["reproduce", "all", "--protocol", "/"], "/ is a folder, not a file"),
        (["autoencode", "-", "-"], "- reads stdin, which has one text: give - once"),
        (["interpolate", "-", "-"], "- reads stdin, which has one text: give - once"),
        (["generate", "--extension", "py"], "--extension is for the files in --out-dir: give both"),
        (["generate", "--prompt", "x", "--extension", "py"], "--prompt goes with none of --prefix, --show"),
        (["decode", __file__, "--extension", "py"], "--extension is for the files in --out-dir: give both"),
        (["decode", "nowhere"], "nowhere does not exist or is not a file"),
        (["decode", __file__, "--out-dir", "x", "--format", "jsonl"], "--out-dir goes with --format text"),
        (["nonsense"], "No such command 'nonsense'"),
        (["train", "base", "run"], "Got unexpected extra argument(s) (run)"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(capsys, monkeypatch, arguments, message):
    status, message_line = failure(capsys, monkeypatch, *arguments)
    assert status in (1, 2)
    assert message_line.startswith("crocodil: ")
    assert message_line.count("\n") == 1
    assert message in message_line
    assert "Value error" not in message_line


def test_what_may_not_be_read_or_written_is_named_in_one_line(capsys, monkeypatch, tmp_path):
    file, folder = tmp_path / "secret.py", tmp_path / "locked"
    file.touch(mode=0)
    folder.mkdir(mode=0o555)
    if os.access(folder, os.W_OK):
        pytest.skip("root may read and write everything")
    refused = failure(capsys, monkeypatch, "autoencode", file)
    assert refused == (2, f"crocodil: Invalid value for 'FILE': path '{file}' is not readable.\n")
    refused = failure(capsys, monkeypatch, "generate", "--out-dir", folder / "new")
    assert refused == (1, f"crocodil: {folder}/new: Permission denied\n")


@pytest.mark.parametrize(
    ("arguments", "package", "extra"),
    [
        (["corpus", "build", "--preset", "files", "--out", "out"], "rensa", "data"),
        (["play"], "starlette", "play"),
        (["reproduce", "all"], "faiss", "eval"),
    ],
)
def test_a_command_says_at_once_which_extra_it_lacks(capsys, monkeypatch, arguments, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    answer = failure(capsys, monkeypatch, *arguments)
    assert answer == (
        1,
        f"crocodil: {package} not installed: pip install 'crocodil[{extra}]' ('.[{extra}]' in a clone)\n",
    )


WITHOUT_TORCH = [
    ["--version"],
    ["--help"],
    ["generate", "--method", "nosuch"],
    ["generate", "--calls", "7", "--block-size", "64"],
    ["generate", "--model", "nowhere"],
    ["autoencode", "nowhere.py"],
    ["generate", "a prompt"],
    ["interpolate", "a", "b", "--steps", "1"],
    ["verify"],
    ["train", "guided", "--preset", "nosuch"],
    ["train", "guided", "--data", "nowhere", "--out", "out"],
    ["generate", "--help"],
    ["generate", "--out-dir", "/"],
    ["export", "nowhere", "--data", "nowhere", "--out", "out"],
    ["reproduce", "nosuch"],
    ["reproduce", "all", "--data", "nowhere"],
    ["evaluate", "--split", "nosuch"],
    ["corpus", "show", "nowhere"],
    ["judges", "install", "nosuch"],
]
# One process imports the command line and forks one for every command.
FORK_FOR_EACH = """
import json, os, sys, traceback
from crocodil.cli import main

for arguments in json.load(sys.stdin):
    sys.stdout.flush()
    if not os.fork():
        os.dup2(1, 2)
        sys.argv = ["crocodil", *arguments]
        try:
            main()
        except SystemExit:
            pass
        except BaseException:
            traceback.print_exc()
        print(f"\\n{arguments}:", sorted({"torch", "transformers"} & set(sys.modules)), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def answers():
    """What all commands print, and after each of them the modules that it loaded."""
    command = [sys.executable, "-c", FORK_FOR_EACH]
    given = json.dumps(WITHOUT_TORCH)
    return subprocess.run(command, input=given, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("arguments", WITHOUT_TORCH)
def test_what_needs_no_network_is_answered_without_torch(answers, arguments):
    assert f"\n{arguments}: []\n" in answers
    assert "Traceback" not in answers


def test_the_version_is_printed(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["crocodil", "--version"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    assert capsys.readouterr().out == f"crocodil {__version__}\n"


def test_the_names_on_the_command_line_are_those_of_the_library():
    assert get_args(options.Stage) == STAGES
    assert get_args(options.Preset) == (*FROM_SCRATCH, *FROM_CAUSAL, *FROM_PRETRAINED)
    assert get_args(options.Ablation) == tuple(ABLATIONS)
    assert get_args(options.Protocol) == tuple(PROTOCOLS)
    assert get_args(options.Network) == tuple(NETWORKS)
    assert get_args(options.Judge) == tuple(PACKAGED)
    assert options.DEFAULT_JUDGE == DEFAULT_JUDGE
    assert get_args(options.Experiment) == ("all", *NAMES)


# ---------------------------------------------------------------- help and old names


def test_the_help_shows_new_names_in_panels_and_hides_old_ones():
    commands = run("--help").output
    for panel in ("Use a model", "Train a model", "Measure and reproduce"):
        assert panel in commands
    for name in ("export", "runs", "report"):
        assert f"│ {name} " in commands
    assert "assemble" not in commands
    options_of_generate = run("generate", "--help").output
    for panel in ("Text", "Decoding", "Registers", "Output"):
        assert f"╭─ {panel} ─" in options_of_generate
    assert "--coherence" not in options_of_generate


def test_every_command_and_option_has_a_help_text():
    def without_help(command, name):
        parameters = [one for one in command.params if not getattr(one, "hidden", False)]
        missing = [] if command.help else [name]
        missing += [f"{name} {one.name}" for one in parameters if not getattr(one, "help", None)]
        subcommands = getattr(command, "commands", {}).items()
        return missing + [line for sub, child in subcommands for line in without_help(child, f"{name} {sub}")]

    assert without_help(typer.main.get_command(app), "crocodil") == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["assemble", "nowhere", "--data", "nowhere", "--out", "out"], ["export", "nowhere", "--data", "nowhere"]),
        (["train", "show", "nowhere"], ["runs", "show", "nowhere"]),
        (["reproduce", "report", "--out", "nowhere"], ["report", "--out", "nowhere"]),
    ],
)
def test_old_commands_do_the_same_as_the_new_ones(old, new):
    new = [*new, "--out", "out"] if new[0] == "export" else new
    first, second = run(*old), run(*new)
    assert isinstance(first.exception, ValueError)
    assert str(first.exception) == str(second.exception)


# ---------------------------------------------------------------- options from configs


def knobs_of(*arguments, configs=(Decoding, Drawing)):
    """Return the knobs that a command gets for these options."""
    got: dict[str, Any] = {}
    toy = typer.Typer()

    @toy.command()
    @options.with_knobs_of(*configs)
    def command(*, knobs: dict[str, Any]) -> None:
        got.update(knobs)

    result = CliRunner().invoke(toy, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return got


def test_options_become_knobs_and_those_not_given_are_left_to_the_model():
    assert knobs_of() == {}
    asked = ["--calls", 8, "--temperature", 0.5, "--registers", 2, "--pag-scale", 1]
    assert knobs_of(*asked) == {"calls": 8, "temperature": 0.5, "num_registers": 2, "pag_scale": 1.0}


@pytest.mark.parametrize(
    ("old", "knobs"),
    [
        (["--coherence", 2], {"pag_scale": 2.0}),
        (["--rule", "remask by confidence"], {"rule": "remask-confidence"}),
        (["--rule", "most confident"], {"rule": "confidence"}),
    ],
)
def test_old_option_names_are_accepted(old, knobs):
    assert knobs_of(*old) == knobs


def test_a_new_field_of_a_config_is_at_once_an_option(monkeypatch):
    @config
    class Decoding:
        warmth: Temperature | None = field(default=None, metadata={"help": "A new knob."})
        gentle: bool = field(default=False, metadata={"help": "A new switch."})
        internal: int = 0  # without a help text: not an option

    assert knobs_of("--warmth", 0.5, "--gentle", configs=[Decoding]) == {"warmth": 0.5, "gentle": True}
    assert knobs_of("--no-gentle", configs=[Decoding]) == {"gentle": False}


@pytest.mark.parametrize("command", ["generate", "evaluate", "export"])
def test_every_knob_is_an_option_of_every_command_that_samples(command):
    parameters = {one.name for one in typer.main.get_command(app).commands[command].params}
    assert parameters >= {
        one.name for kind in (Decoding, Drawing) for one in fields(kind) if one.metadata.get("help")
    }


# ---------------------------------------------------------------- files of texts


def test_a_new_folder_gets_one_file_per_text_and_is_never_overwritten(tmp_path):
    folder = NewFolder(tmp_path / "a" / "b", "py")
    assert folder.write(0, "x = 1\n") == tmp_path / "a" / "b" / "0000.py"
    assert folder.write(12345, "y = 2\n").name == "12345.py"
    assert (folder.directory / "0000.py").read_text() == "x = 1\n"
    with pytest.raises(ValueError, match=r"0000\.py exists"):
        folder.write(0, "z = 3\n")
    with pytest.raises(ValueError, match="is not empty: texts are never overwritten, choose another --out-dir"):
        NewFolder(folder.directory, "py")
    assert sorted(file.name for file in folder.directory.iterdir()) == ["0000.py", "12345.py"]
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="link is not a folder"):
        NewFolder(tmp_path / "link", "py")


def test_a_text_to_encode_has_no_line_breaks_at_its_end(tmp_path):
    for name, content in (("unix", b"\n a \n\nb  \n\n"), ("windows", b"c\r\nd\r\n"), ("none", b"e")):
        (tmp_path / name).write_bytes(content)
    read = read_texts([tmp_path / name for name in ("unix", "windows", "none")])
    assert read == ["\n a \n\nb  ", "c\r\nd", "e"]


def test_a_file_of_registers_is_never_overwritten(tmp_path):
    out = tmp_path / "r.safetensors"
    check_new_registers(out)
    out.write_bytes(b"registers")
    with pytest.raises(ValueError, match=r"r\.safetensors exists: registers are never overwritten"):
        check_new_registers(out)
    with pytest.raises(ValueError, match="create this folder first"):
        check_new_registers(tmp_path / "missing" / "r.safetensors")


def test_only_missing_memory_is_reported_as_such(capsys, monkeypatch):
    """A fault of a GPU mentions memory too, and must not be hidden."""

    def failing(message):
        def command(**_):
            raise RuntimeError(message)

        return command

    monkeypatch.setattr("crocodil.cli.root.app", failing("CUDA out of memory. Tried to allocate 2 GiB"))
    assert failure(capsys, monkeypatch) == (
        1,
        "crocodil: out of memory: use a smaller batch, a shorter length or another device\n",
    )
    monkeypatch.setattr("crocodil.cli.root.app", failing("CUDA error: an illegal memory access was encountered"))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        main()


def test_an_empty_prompt_is_refused_before_a_model_is_loaded(capsys, monkeypatch):
    assert failure(capsys, monkeypatch, "generate", "--prompt", "") == (
        1,
        "crocodil: the prompt is empty: leave out --prompt\n",
    )


def test_the_help_says_how_many_calls_are_made_and_on_which_lengths_the_built_in_model_was_trained():
    commands = typer.main.get_command(app).commands

    def help_of(verb, name):
        return next(one.help for one in commands[verb].params if one.name == name)

    for verb in ("generate", "autoencode", "interpolate", "decode", "complete"):
        assert help_of(verb, "calls").startswith("Most forward passes per text. Default: one per 16 tokens")
    assert BUILT_IN.lengths == (256, 512)
    for verb in ("generate", "decode", "complete"):
        assert help_of(verb, "length").endswith("The built-in model was trained on 256 and 512.")


def test_a_paragraph_of_help_has_no_line_breaks_of_the_source():
    shown = run("--help").output
    assert "Start with crocodil generate, which uses a small built-in model of Python code." in shown
