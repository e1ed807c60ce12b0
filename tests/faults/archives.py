"""Damaged sources of a corpus: folders, archives and tables, in every form that `corpus build` reads."""

import gzip
import io
import json
import os
import shutil
import tarfile
import zipfile
from functools import cache
from hashlib import sha256
from pathlib import Path
from random import Random

from .calling import WRONG, Fault, call, check, succeeds
from .mutations import JUNK, flip_bit, mutated_bytes, nested
from .world import World

# Formats with checksums of their contents: all damage is found.
CHECKED = (".tar.gz", ".zip", ".jsonl.gz")


def archives(world: World, random: Random, sandbox: Path) -> None:
    """A build ends with all programs or says what was lost, and writes nowhere else."""
    whole = random.choice(world.sources)
    source, out, mark = sandbox / whole.name, sandbox / "out", sandbox / "escaped"
    if random.random() < 0.2:
        source, what = _odd_folder(world, random, sandbox), "an odd folder"
    elif random.random() < 0.3:
        what = _odd_members(world, random, source, mark)
    else:
        what = _damaged(random, whole, source)
    there = set(sandbox.iterdir())
    outcome = check(call(*world.building(source, out)))
    if mark.exists() or set(sandbox.iterdir()) - there - {out}:
        raise Fault(WRONG, f"corpus build, {what}: wrote outside of its folder")
    if outcome.code:
        if (out / "corpus.json").exists():
            raise Fault(WRONG, f"corpus build, {what}: refused, and yet there is a corpus")
        return
    check(call("corpus", "verify", out))
    is_found = tokens_of(out) == whole_tokens(world, whole) or "kipped" in outcome.out
    if what.startswith("damaged") and source.name.endswith(CHECKED) and not is_found:
        raise Fault(WRONG, f"corpus build, {what}: programs are lost without a word")


def _damaged(random: Random, whole: Path, source: Path) -> str:
    data = whole.read_bytes()
    if random.random() < 0.6:
        source.write_bytes(flip_bit(random, data))
        return f"damaged: a flipped bit in {source.name}"
    changed, way = mutated_bytes(random, data)
    source.write_bytes(changed)
    # Bytes after the end of an archive are not part of it.
    return f"{'longer' if 'longer' in way or 'more' in way else 'damaged'}: {source.name}, {way}"


def tokens_of(corpus: Path) -> str:
    """A digest of all programs of a corpus, whatever the order of its folders."""
    digest = sha256()
    for file in sorted(corpus.glob("shards/*/*/tokens.bin")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


@cache
def whole_tokens(world: World, source: Path) -> str:
    out = world.root.parent / f"whole {source.name} {os.getpid()}"
    succeeds(call(*world.building(source, out)))
    found = tokens_of(out)
    shutil.rmtree(out)
    return found


# ---------------------------------------------------------------- malicious archives


def _odd_members(world: World, random: Random, source: Path, mark: Path) -> str:
    """Members that point outside, claim to be large or are not files, and rows of any type."""
    programs = [world.text(number).read_bytes() for number in range(12)]
    odd = random.choice([
        "../escaped", f"{mark}", "a/../../escaped.py", "C:\\x.py", "\\x.py", "x\ny.py", "\udcff.py",
        "a" * 300 + ".py", "/dev/null.py",
    ])  # fmt: skip
    name = source.name
    if name.endswith((".tar", ".tar.gz")):
        with tarfile.open(source, "w:gz" if name.endswith(".gz") else "w") as archive:
            _fill_tar(archive, programs, odd, random)
    elif name.endswith(".zip"):
        with zipfile.ZipFile(source, "w", zipfile.ZIP_DEFLATED) as archive:
            for number, program in enumerate(programs):
                archive.writestr(f"p{number}/m.py", program)
            archive.writestr(odd.encode("utf-8", "replace").decode(), programs[0])
            archive.writestr("bomb.py", bytes(20_000_000))
    elif name.endswith(".parquet"):
        _write_odd_table(source, programs, random)
    else:
        lines = [json.dumps({"text": program.decode()}) for program in programs]
        lines.insert(random.randrange(1, 12), _odd_row(random))
        data = "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogatepass")
        source.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return f"odd members in {name}"


def _fill_tar(archive: tarfile.TarFile, programs: list[bytes], odd: str, random: Random) -> None:
    for number, program in enumerate(programs):
        info = tarfile.TarInfo(f"p{number}/m.py")
        info.size = len(program)
        archive.addfile(info, io.BytesIO(program))
    info = tarfile.TarInfo(odd)
    info.type = random.choice(
        [tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE]
    )
    info.linkname = random.choice(["/etc/passwd", "../../escaped", "p0/m.py"])
    info.size = len(programs[0]) if info.type == tarfile.REGTYPE else 0
    archive.addfile(info, io.BytesIO(programs[0]) if info.size else None)


def _odd_row(random: Random) -> str:
    return random.choice([
        nested(100_000), '{"text": ' + nested(100_000) + "}", "{}", "[]", "null", "7", '"x"', "", "{",
        *(json.dumps({"text": value}) for value in JUNK),
    ])  # fmt: skip


def _write_odd_table(source: Path, programs: list[bytes], random: Random) -> None:
    import pyarrow
    import pyarrow.parquet

    texts = [program.decode() for program in programs]
    table = random.choice([
        {"text": [*texts, None]},
        {"text": list(range(12))},
        {"text": programs},
        {"content": texts},
        {"text": [[one] for one in texts]},
        {"text": texts, "path": ["../../escaped"] * 12},
        {"text": []},
    ])  # fmt: skip
    pyarrow.parquet.write_table(pyarrow.table(table), source)


def _odd_folder(world: World, random: Random, sandbox: Path) -> Path:
    """Make a folder with special files, invalid names or invalid texts among programs."""
    folder = sandbox / "folder"
    folder.mkdir()
    for number in range(12):
        shutil.copy(world.text(number), folder / f"m{number}.py")
    match random.randrange(9):
        case 0:
            os.mkfifo(folder / "pipe.py")
        case 1:
            (folder / "\udcff.py").write_text("x = 1\n")
        case 2:
            (folder / "folder.py").mkdir()
        case 3:
            (folder / "loop.py").symlink_to(folder / "loop.py")
        case 4:
            (folder / "self").symlink_to(folder)
        case 5:
            (folder / "binary.py").write_bytes(random.randbytes(3000))
        case 6:
            (folder / "deep.py").write_text("x = " + "(" * 5000 + ")" * 5000)
        case 7:
            (folder / "two\nlines.py").write_text(world.text(0).read_text())
        case 8:
            shutil.rmtree(folder)
            folder.mkdir()
    return folder
