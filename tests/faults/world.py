"""The originals that trials copy and damage: a small real corpus, a run of all stages, a model and a judge.

The commands themselves build them, in child processes, so that the parent has no threads and can fork.
"""

import gzip
import importlib
import json
import os
import shutil
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from .calling import SMALL, Fault, check, forked, succeeds

TESTS = Path(__file__).parent.parent
STAGES = ("base", "guided", "registers", "prior", "conditional")
NUM_PROGRAMS = 24


@dataclass(frozen=True)
class World:
    root: Path

    @property
    def files(self) -> Path:
        return self.root / "files"

    @property
    def corpus(self) -> Path:
        return self.root / "corpus"

    @property
    def run(self) -> Path:
        """A run with all stages finished."""
        return self.root / "run"

    @property
    def stopped(self) -> Path:
        """A run whose stages base and prior were stopped after two of four steps."""
        return self.root / "stopped"

    @property
    def model(self) -> Path:
        return self.root / "model"

    @property
    def judge(self) -> Path:
        return self.root / "judge"

    @property
    def causal(self) -> Path:
        """A causal language model, which can be trimmed."""
        return self.root / "causal"

    @property
    def results(self) -> Path:
        return self.root / "results"

    @property
    def pieces(self) -> Path:
        return self.root / "pieces"

    @property
    def registers(self) -> Path:
        return self.root / "registers.safetensors"

    @property
    def texts(self) -> Path:
        """Rows, as `crocodil evaluate --samples` reads them."""
        return self.root / "texts.jsonl"

    def text(self, number: int = 0) -> Path:
        return self.files / f"p{number}" / "m.py"

    @property
    def sources(self) -> list[Path]:
        """The same programs in every form that `corpus build` reads."""
        names = ("files.tar", "files.tar.gz", "files.zip", "files.jsonl", "files.jsonl.gz", "files.parquet")
        return [self.root / name for name in names]

    def training(self, stage: str, out: Path, data: Path | None = None) -> list[str]:
        """Return the arguments of a small `crocodil train`."""
        return [
            "train", stage, "--preset", "tiny", "--data", str(data or self.corpus), "--out", str(out),
            "--device", "cpu", *(word for change in SMALL for word in ("--set", change)),
        ]  # fmt: skip

    def building(self, source: Path, out: Path) -> list[str]:
        return [
            "corpus", "build", "--preset", "python-files", "--source", str(source), "--out", str(out),
            "--vocab-size", "300", "--processes", "1",
        ]  # fmt: skip

    def reproducing(self, out: Path, *experiments: str) -> list[str]:
        return [
            "reproduce", *experiments, "--preset", "tiny", "--model", str(self.model), "--data", str(self.corpus),
            "--judge", str(self.judge), "--out", str(out), "--device", "cpu",
        ]  # fmt: skip


def prepare_process() -> None:
    """Use one thread and no network, and import everything, so that forked children start at once."""
    os.environ |= {
        "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "PIP_NO_INDEX": "1",
        "TERM": "dumb", "COLUMNS": "500", "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }  # fmt: skip
    for name in ("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    sys.path[:0] = [str(TESTS), str(TESTS / "corpus")]
    import torch

    torch.set_num_threads(1)
    for module in (
        "cli", "cli.display", "pipeline", "corpus.build", "corpus.packing", "corpus.summary", "presets.corpora",
        "presets.runs", "training.run", "training.journal", "reproduce.experiments", "reproduce.report",
        "reproduce.evaluation",
    ):  # fmt: skip
        importlib.import_module(f"crocodil.{module}")
    for module in ("pyarrow.parquet", "matplotlib.pyplot", "faiss", "rapidfuzz", "tiny_judges", "tiny_causal"):
        importlib.import_module(module)


def build_world(root: Path) -> World:
    """Build all originals."""
    world = World(root)
    _write_sources(world)
    _does(*world.building(world.files, world.corpus))
    for stage in STAGES:
        _does(*world.training(stage, world.run))
    _stop_stages(world)
    _does("export", world.run, "--data", world.corpus, "--out", world.model, *_QUICK_DRAWS)
    _does(
        "encode", world.text(0), world.text(1), "--model", world.model, "--device", "cpu", "--out", world.registers
    )
    _does("corpus", "pack", world.corpus, "--out", world.pieces, "--piece-megabytes", "0.01")
    _in_child(_write_language_models, world)
    _does(*world.reproducing(world.results, "demasker", "memorisation"))
    rows = [{"text": world.text(number).read_text()} for number in range(6)]
    world.texts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return world


_QUICK_DRAWS = ("--prior-steps", "2", "--refresh-steps", "2")


def _stop_stages(world: World) -> None:
    """Copy a run with its last two steps of base and prior removed."""
    world.stopped.mkdir()
    shutil.copytree(world.run / "guided", world.stopped / "guided")
    shutil.copytree(world.run / "registers", world.stopped / "registers")
    for stage in ("base", "prior"):
        shutil.copytree(world.run / stage, world.stopped / stage)
        shutil.rmtree(world.stopped / stage / "model")
        shutil.rmtree(world.stopped / stage / "checkpoints" / "step-00000004")
    shutil.copy(world.run / "run.json", world.stopped)


def _does(*arguments: object) -> None:
    outcome = forked(*arguments).wait()
    assert outcome is not None
    try:
        succeeds(check(outcome))
    except Fault as fault:
        raise SystemExit(f"the campaign cannot begin: {fault}\n{outcome.err}{outcome.raised}") from None


def _in_child(function: object, *arguments: object) -> None:
    pid = os.fork()
    if not pid:
        try:
            function(*arguments)  # type: ignore[operator]
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0, f"{function} failed"


def _write_language_models(world: World) -> None:
    from tiny_causal import save_causal
    from tiny_judges import save_language_model

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # their progress bars
    save_causal(world.causal)
    world.judge.mkdir()
    save_language_model(world.judge)


def _write_sources(world: World) -> None:
    import pyarrow
    import pyarrow.parquet
    from wheels import program

    for number in range(NUM_PROGRAMS):
        file = world.text(number)
        file.parent.mkdir(parents=True)
        file.write_text(program(f"q{number}", 4))
    files = sorted(world.files.rglob("*.py"))
    names = {file: file.relative_to(world.files).as_posix() for file in files}
    tar, tar_gz, zipped, jsonl, jsonl_gz, parquet = world.sources
    for archive, mode in ((tar, "w"), (tar_gz, "w:gz")):
        with tarfile.open(archive, mode) as opened:
            for file, name in names.items():
                opened.add(file, name)
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as opened:
        for file, name in names.items():
            opened.write(file, name)
    rows = [{"text": file.read_text()} for file in files]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    jsonl.write_text(lines)
    jsonl_gz.write_bytes(gzip.compress(lines.encode()))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), parquet)
