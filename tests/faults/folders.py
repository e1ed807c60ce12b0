"""Damaged folders and files: models, checkpoints, runs, corpora, pieces, results, judges, registers and texts."""

import filecmp
import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random

from .calling import WRONG, Fault, Outcome, call, check, shown_command, succeeds
from .mutations import (
    mutate_bytes_of_file,
    mutate_json_file,
    mutate_lines_file,
    mutate_safetensors,
    mutate_tensors,
    mutated_bytes,
    replace_file,
)
from .world import World


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")


def mutate_file(random: Random, file: Path, mark: Path) -> str:
    """Damage a file, mostly in a way that fits its format."""
    if random.random() < 0.1:
        return replace_file(random, file, mark)
    if random.random() < 0.1:
        return mutate_bytes_of_file(random, file)
    suited: dict[str, Callable[[Random, Path], str]] = {
        ".json": mutate_json_file,
        ".jsonl": mutate_lines_file,
        ".safetensors": mutate_safetensors,
    }
    return suited.get(file.suffix, mutate_bytes_of_file)(random, file)


def no_code_ran(mark: Path) -> None:
    if mark.exists():
        raise Fault(WRONG, "a pickle was loaded, and its code ran")


# ---------------------------------------------------------------- models


def models(world: World, random: Random, sandbox: Path) -> None:
    """A damaged model is refused, or gives the output of the undamaged one."""
    folder, mark = sandbox / "model", sandbox / "mark"
    shutil.copytree(world.model, folder)
    what = mutate_model(random, folder, mark)
    is_signed = random.random() < 0.5 and sign(folder)
    verb = random.randrange(len(_uses(world, folder)))
    outcome = check(call(*_uses(world, folder)[verb]))
    no_code_ran(mark)
    if outcome.code or outcome.out == whole_output(world, verb):
        return
    if is_signed and not any(f"holds {value}" in what for value in ("nan", "inf", "-inf")):
        return  # with new checksums it is another model
    if is_signed or not check(call("verify", folder)).code:
        raise Fault(WRONG, f"{shown_command(outcome.arguments)}, {what}: takes it and writes something else")


def mutate_model(random: Random, folder: Path, mark: Path) -> str:
    networks = sorted(path for path in folder.iterdir() if path.is_dir())
    match random.choices(("file", "tensors", "swap", "remove"), [75, 12, 8, 5])[0]:
        case "tensors":
            return mutate_tensors(random, random.choice(networks) / "model.safetensors")
        case "swap":
            one, other = random.sample(networks, 2)
            one.rename(folder / "third")
            other.rename(one)
            (folder / "third").rename(other)
            return f"{one.name} and {other.name} swapped"
        case "remove":
            network = random.choice(networks)
            shutil.rmtree(network)
            return f"{network.name} removed"
    return mutate_file(random, random.choice(files_of(folder)), mark)


def sign(folder: Path) -> bool:
    """Write new checksums, as if the damage had always been there; return False if there are none."""
    try:
        from crocodil.checkpoints.checksums import CHECKSUM_FILE, write_checksums
    except ImportError:
        return False
    if any(not (path.is_file() or path.is_dir()) for path in folder.rglob("*")):
        return False  # opening a pipe would block
    for directory in (folder, *(path for path in folder.iterdir() if path.is_dir())):
        if (directory / CHECKSUM_FILE).exists():
            try:
                write_checksums(directory)
            except OSError:
                return False
    return True


def _uses(world: World, model: Path) -> list[list[str]]:
    on = ["--model", str(model), "--device", "cpu"]
    return [
        ["generate", "--calls", "2", *on],
        ["generate", "--method", "conthendisc", "--calls", "1", *on],
        ["generate", "--method", "base", "--calls", "1", "--temperature", "0", *on],
        ["decode", str(world.registers), "--calls", "2", *on],
        ["autoencode", str(world.text(0)), "--calls", "1", *on],
        ["interpolate", str(world.text(0)), str(world.text(1)), "--steps", "2", "--calls", "1", *on],
    ]


@cache
def whole_output(world: World, verb: int) -> str:
    """Return the output of the undamaged model."""
    return succeeds(call(*_uses(world, world.model)[verb])).out


# ---------------------------------------------------------------- training


def checkpoints(world: World, random: Random, sandbox: Path) -> None:
    """A run with a damaged checkpoint is refused, or ends with the same bytes."""
    stage, run, mark = random.choice(("base", "base", "prior")), sandbox / "run", sandbox / "mark"
    shutil.copytree(world.stopped, run)
    file = random.choice([*files_of(run / stage), *files_of(run / stage / "checkpoints"), run / "run.json"])
    what = mutate_file(random, file, mark)
    is_signed = random.random() < 0.3 and _seal(file)
    outcome = check(call(*world.training(stage, run), "--resume"))
    no_code_ran(mark)
    if outcome.code or is_signed:
        return
    for name in files_of(world.run / stage / "model"):
        found = run / stage / "model" / name.relative_to(world.run / stage / "model")
        if not found.is_file() or not filecmp.cmp(name, found, shallow=False):
            raise Fault(WRONG, f"train {stage} --resume, {what}: goes on, and {found.name} differs")


def _seal(file: Path) -> bool:
    """Write new checksums of a checkpoint, so that the checks after the checksums are tested too."""
    from crocodil.checkpoints.checksums import sha256
    from crocodil.training.record import write_checksummed

    state = file if file.suffix == ".json" else file.parent / "state.json"
    if not all(one.is_file() for one in (file, state)):  # opening a pipe would block
        return False
    try:
        values = json.loads(state.read_text())
        values.pop("checksum")
        if state != file:
            values["sha256"] = {one.name: sha256(one) for one in state.parent.glob("*.safetensors")}
        write_checksummed(state, values)
    except (OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError):
        return False
    return True


def runs(world: World, random: Random, sandbox: Path) -> None:
    """A damaged run is exported as a complete model or refused; it is shown or refused."""
    run, mark, out = sandbox / "run", sandbox / "mark", sandbox / "model"
    shutil.copytree(world.run, run)
    if random.random() < 0.4:
        what = mutate_file(
            random, random.choice([file for file in files_of(run) if file.suffix == ".jsonl"]), mark
        )
        check(call("train", "show", run))
        return
    files = [run / "run.json", *(file for file in files_of(run) if "model" in file.parts[len(run.parts) :])]
    what = mutate_file(random, random.choice(files), mark)
    outcome = check(call("assemble", run, "--data", world.corpus, "--out", out))
    no_code_ran(mark)
    if outcome.code and out.exists():
        raise Fault(WRONG, f"assemble, {what}: refused, and yet there is a model")
    if not outcome.code:
        check(call("generate", "--model", out, "--device", "cpu", "--calls", "1"))


# ---------------------------------------------------------------- corpora


def corpora(world: World, random: Random, sandbox: Path) -> None:
    """Damage to files with checksums is always found."""
    folder, mark = sandbox / "corpus", sandbox / "mark"
    shutil.copytree(world.corpus, folder, ignore=shutil.ignore_patterns("work"))
    file = random.choice([*files_of(folder), *3 * [folder / "corpus.json"]])
    before = file.read_bytes()
    what = mutate_file(random, file, mark)
    uses = [
        ["corpus", "show", str(folder), "--samples", "2"],
        ["corpus", "card", str(folder), "--out", str(sandbox / "card.md")],
        ["corpus", "pack", str(folder), "--out", str(sandbox / "pieces"), "--piece-megabytes", "0.01"],
        ["evaluate", "--samples", str(world.texts), "--data", str(folder), "--judge", str(world.judge),
         "--device", "cpu", "--length", "64"],
        world.training("base", sandbox / "run", folder),
    ]  # fmt: skip
    if random.random() < 0.6:
        check(call(*random.choices(uses, [5, 3, 3, 2, 2])[0]))
    is_changed = not file.is_file() or file.read_bytes() != before
    outcome = check(call("corpus", "verify", folder))
    no_code_ran(mark)
    if outcome.code == 0 and is_changed and file.name != "corpus.json":
        raise Fault(WRONG, f"corpus verify, {what}: says that it is whole")


def pieces(world: World, random: Random, sandbox: Path) -> None:
    """Damaged pieces are unpacked to the whole corpus, or refused."""
    folder, out, mark = sandbox / "pieces", sandbox / "corpus", sandbox / "mark"
    shutil.copytree(world.pieces, folder)
    what = mutate_file(random, random.choice(files_of(folder)), mark)
    outcome = check(call("corpus", "unpack", folder, "--out", out))
    if outcome.code:
        if out.exists():
            raise Fault(WRONG, f"corpus unpack, {what}: refused, and yet there is a corpus")
        return
    for file in files_of(world.corpus):
        name = file.relative_to(world.corpus)
        if name.parts[0] != "work" and not filecmp.cmp(file, out / name, shallow=False):
            raise Fault(WRONG, f"corpus unpack, {what}: {name} differs")


# ---------------------------------------------------------------- results and judges


def results(world: World, random: Random, sandbox: Path) -> None:
    """A report of damaged rows is written, or refused."""
    folder, mark = sandbox / "results", sandbox / "mark"
    shutil.copytree(world.results, folder, ignore=shutil.ignore_patterns("*.html", "*.md", "figures"))
    mutate_file(random, random.choice([file for file in files_of(folder) if file.name != "summary.json"]), mark)
    check(call("reproduce", "report", "--out", folder))


def judges(world: World, random: Random, sandbox: Path) -> None:
    """A damaged judge is refused, or gives the scores of the undamaged one."""
    folder, mark = sandbox / "judge", sandbox / "mark"
    shutil.copytree(world.judge, folder)
    file = random.choice([file for file in files_of(folder) if file.name != "generation_config.json"])
    mutate_file(random, file, mark)
    texts = sandbox / "texts.jsonl"
    shutil.copy(world.texts, texts)
    if random.random() < 0.3:
        mutate_file(random, texts, mark)
    check(
        call("evaluate", "--samples", texts, "--data", world.corpus, "--judge", folder, "--device", "cpu",
             "--length", "64")
    )  # fmt: skip
    no_code_ran(mark)


# ---------------------------------------------------------------- registers and texts


def registers(world: World, random: Random, sandbox: Path) -> None:
    """Registers that are not finite, or have another shape, are never decoded."""
    file, mark = sandbox / "registers.safetensors", sandbox / "mark"
    shutil.copy(world.registers, file)
    match random.choices(("file", "tensors", "shape"), [60, 20, 20])[0]:
        case "tensors":
            what = mutate_tensors(random, file)
        case "shape":
            what = _reshape(random, file)
        case _:
            what = mutate_file(random, file, mark)
    outcome = check(call("decode", file, "--model", world.model, "--device", "cpu", "--calls", "1"))
    no_code_ran(mark)
    if outcome.code == 0 and any(f"holds {value}" in what for value in ("nan", "inf", "-inf")):
        raise Fault(WRONG, f"decode, {what}: exit 0")


def _reshape(random: Random, file: Path) -> str:
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(file, framework="pt") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        about = opened.metadata() or {}
    shape = random.choice(
        [(), (0,), (3,), (0, 4, 8), (1, 0, 8), (1, 4, 0), (1, 4, 7), (1, 5, 8), (1, 4000, 8), (2, 2, 8)]
    )
    dtype = random.choice([torch.float32, torch.float64, torch.float16, torch.int64, torch.bool, torch.complex64])
    tensors["registers"] = torch.ones(shape, dtype=dtype)
    about = random.choice([about, {}, {"files": "x"}, {**about, "length": "0"}, {**about, "lengths": "[[]]"}])
    save_file(tensors, file, about)
    return f"shape {shape}, {dtype}, about {json.dumps(about)}"


def texts(world: World, random: Random, sandbox: Path) -> None:
    """Arbitrary bytes are read as a text, or refused."""
    file = sandbox / random.choice(["text.py", "[red]text.py", "two\nlines.py", "\udcff.py"])
    file.write_bytes(_content(world, random))
    on = ["--model", str(world.model), "--device", "cpu"]
    uses = [
        ["autoencode", str(file), "--calls", "1", *on],
        ["autoencode", str(file), str(world.text(0)), "--calls", "1", *on],
        ["encode", str(file), "--out", str(sandbox / "out.safetensors"), *on],
        ["interpolate", str(file), str(world.text(0)), "--steps", "2", "--calls", "1", *on],
    ]
    outcome: Outcome = check(call(*random.choice(uses)))
    if outcome.code == 0 and outcome.arguments[0] == "encode":
        check(call("decode", sandbox / "out.safetensors", "--calls", "1", *on))


ODD_TEXTS = [
    b"\n", b" " * 5000, b"\t\r\n", b"x" * 100_000, b"\xef\xbb\xbf", b"\x00", b"<mask><bos>", b"<|mask|>" * 50,
    b"\xf0\x9f\x90\x8a" * 3,
]  # fmt: skip


def _content(world: World, random: Random) -> bytes:
    """Return a damaged program, a program in another encoding, random characters or random bytes."""
    some = world.text(random.randrange(8)).read_bytes()
    match random.choices(("damaged", "bytes", "characters", "encoded", "odd", "breaks"), [3, 1, 1, 1, 1, 1])[0]:
        case "bytes":
            return random.randbytes(random.randrange(1, 400))
        case "characters":
            codes = [*range(32, 0xD800), *range(0xE000, 0x11000)]
            return "".join(map(chr, random.choices(codes, k=random.randrange(1, 80)))).encode()
        case "encoded":
            return some.decode().encode(random.choice(["utf-16", "utf-8-sig", "utf-32", "utf-7"]))
        case "odd":
            return random.choice(ODD_TEXTS)
        case "breaks":
            return some.replace(b"\n", random.choice([b"\r\n", b"\r", b"\x0c", b"\xe2\x80\xa8"]))
    return mutated_bytes(random, some)[0]
