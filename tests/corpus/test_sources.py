import gzip
import io
import json
import os
import socket
import tarfile
import zipfile
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet
from wheels import make_wheel, program

from crocodil.corpus import archives, sources
from crocodil.corpus.documents import RawFile
from crocodil.corpus.harvest import harvest, read_documents
from crocodil.corpus.recipe import Recipe
from crocodil.corpus.registry import Pin, RegistryError, lock
from crocodil.corpus.sources import Columns, Files, HubDataset, Rows, Skip, Wheels, read_wheel
from crocodil.presets.corpora import own_python


def read(source):
    return [item for unit in source.units() for item in unit.read()]


def files(items):
    return {item.path: item.data.decode() for item in items if isinstance(item, RawFile)}


def skips(items):
    return {item.name: item.reason for item in items if isinstance(item, Skip)}


# ---------------------------------------------------------------- wheels


def test_wheels_give_python_files_with_package_and_licence(registry):
    items = read(Wheels(tuple(lock(["pack00", "copyleft"])), wheels_per_unit=2))
    assert set(files(items)) == {"pack00/one.py", "pack00/two.py", "pack00/three.py", "c/c.py"}
    assert {(item.package, item.licence) for item in items} == {
        ("pack00==1.0", "MIT"),
        ("copyleft==1.0", "GPL-3.0-only"),
    }


def test_a_missing_wheel_is_skipped_and_counted_and_an_unreachable_registry_is_an_error(registry, monkeypatch):
    there, missing = lock(["pack00"]), Pin("ghost", "1.0", "0" * 64)
    items = read(Wheels((*there, missing)))
    assert skips(items) == {"ghost==1.0": "not available in the registry"}
    assert len(files(items)) == 3
    monkeypatch.setenv("PIP_FIND_LINKS", str(registry / "nowhere"))
    with pytest.raises(RegistryError, match="is the registry reachable"):
        read(Wheels(tuple(there)))


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"not a zip"])
def test_a_broken_wheel_is_skipped_and_counted(tmp_path, damage):
    wheel = make_wheel(tmp_path, "pack", files={"a.py": program("a")})
    wheel.write_bytes(damage(wheel.read_bytes()))
    assert skips(read_wheel(wheel)) == {"pack==1.0": "broken archive: BadZipFile"}


def test_a_wheel_without_metadata_is_broken(tmp_path):
    with zipfile.ZipFile(tmp_path / "pack-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("a.py", program("a"))
    assert skips(read_wheel(tmp_path / "pack-1.0-py3-none-any.whl"))


def test_names_that_point_outside_are_never_read(tmp_path):
    wheel = make_wheel(
        tmp_path, "pack", files={"../../evil.py": "x", "/abs.py": "x", "C:/win.py": "x", "good.py": program("a")}
    )
    items = list(read_wheel(wheel))
    assert set(files(items)) == {"good.py"}
    assert set(skips(items).values()) == {"unsafe path in an archive"}
    assert not (tmp_path.parent / "evil.py").exists()


def test_a_single_file_is_no_source(tmp_path):
    (tmp_path / "f.py").write_text("x = 1\n")
    with pytest.raises(ValueError, match=r"f\.py is a single file: name its folder"):
        Files(tmp_path / "f.py").units()


def test_an_archive_that_unpacks_to_an_absurd_size_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MAX_FILE_BYTES", 10_000)
    monkeypatch.setattr(archives, "MAX_ARCHIVE_BYTES", 50_000)
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(20):
            archive.writestr(f"p/{number}.py", "x" * 1_000_000)
    with pytest.raises(ValueError, match="more than the allowed size"):
        read(Files(tmp_path / "bomb.zip"))


# ---------------------------------------------------------------- folders and archives


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "code"
    for path, text in {"a/x.py": "x = 1", "a/b/y.py": "y = 2", "z.py": "z = 3", "a/notes.txt": "no"}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def test_a_folder_gives_its_files_in_order_in_any_number_of_units(folder):
    for size in (1, 2, 100):
        items = read(Files(folder, files_per_unit=size))
        assert list(files(items)) == ["a/b/y.py", "a/x.py", "z.py"]
        assert [item.package for item in items] == ["a", "a", "code"]


def test_what_cannot_be_read_is_skipped_and_counted(folder):
    (folder / "a" / "folder.py").mkdir()
    (folder / "a" / "link.py").symlink_to(folder / "z.py")
    (folder / "elsewhere").symlink_to(folder.parent)
    os.mkfifo(folder / "a" / "pipe.py")  # whoever opens it waits for ever
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "s.py"))
    items = read(Files(folder))
    assert set(skips(items)) == {"a/link.py", "a/pipe.py", "elsewhere", "s.py"}
    assert set(skips(items).values()) == {"not a regular file: link, pipe or device"}
    assert len(files(items)) == 3
    assert skips(sources.FolderUnit(folder, ("gone.py",), "").read()) == {"gone.py": "unreadable file or folder"}


def test_a_file_larger_than_any_program_is_skipped(folder, monkeypatch):
    monkeypatch.setattr(archives, "MAX_FILE_BYTES", 4)
    assert set(skips(read(Files(folder))).values()) == {"too large for a program"}


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz", "tar.xz"])
def test_an_archive_gives_what_its_folder_gives(folder, tmp_path, kind):
    archive = tmp_path / f"code.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(archive, "w") as opened:
            for file in sorted(folder.rglob("*.*")):
                opened.write(file, file.relative_to(folder))
    else:
        with tarfile.open(archive, f"w:{kind.partition('.')[2]}") as opened:
            opened.add(folder, arcname=".")
            evil = tarfile.TarInfo("../evil.py")
            evil.size = 1
            opened.addfile(evil, io.BytesIO(b"x"))
    found = read(Files(archive))
    assert {path.removeprefix("./"): text for path, text in files(found).items()} == files(read(Files(folder)))
    assert kind == "zip" or skips(found) == {"../evil.py": "unsafe path in an archive"}


def test_nothing_to_read_is_an_error(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "junk.zip").write_bytes(b"junk")
    os.mkfifo(tmp_path / "pipe")
    with zipfile.ZipFile(tmp_path / "empty.zip", "w"):
        pass
    with tarfile.open(tmp_path / "empty.tar.gz", "w:gz"):
        pass
    (tmp_path / "nothing.tar").write_bytes(b"")
    messages = {
        "nowhere": "neither a folder",
        "pipe": "neither a folder",
        "empty": "no readable file",
        "junk.zip": "junk.zip is not a readable zip",
        "empty.zip": r"empty.zip has no file that ends in .py",
        "empty.tar.gz": r"empty.tar.gz has no file that ends in .py",
        "nothing.tar": r"nothing.tar is not a readable zip or tar",
    }
    for path, message in messages.items():
        with pytest.raises(ValueError, match=message):
            read(Files(tmp_path / path))


def test_a_name_that_is_not_utf8_is_kept_as_an_escape(folder, tmp_path):
    (Path(os.fsdecode(os.fsencode(folder) + b"/caf\xe9.py"))).write_text(program("cafe", 9))
    (Path(os.fsdecode(os.fsencode(folder) + b"/\xff.py"))).symlink_to(folder / "z.py")
    (unit,) = Files(folder).units()
    harvest(unit, Recipe(source=Files(folder), permissive_only=False), tmp_path / "harvested")
    assert [one.path for one in read_documents(tmp_path / "harvested")] == [r"caf\udce9.py"]
    counts = json.loads((tmp_path / "harvested" / "counts.json").read_text())
    assert list(counts["skipped"].values()) == [[r"\udcff.py"]]


def test_a_folder_of_tables_and_of_programs_is_refused_before_one_kind_is_lost(folder):
    (folder / "a" / "rows.jsonl").write_text('{"text": "x = 1"}')
    with pytest.raises(ValueError, match=r"holds both tables \(rows.jsonl\) and text files \(x.py\)"):
        own_python(folder)


# ---------------------------------------------------------------- damage

KINDS = ["zip", "tar", "tar.gz", "tar.bz2", "tar.xz"]


def make_archive(file, names=("p/a.py", "p/b.py", "q/c.py", "q/notes.txt")):
    """An archive of small programs, of the kind that its name says."""
    kind = file.name.partition(".")[2]
    if file.suffix == ".zip":
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in names:
                archive.writestr(name, program(name[2]))
        return file
    with tarfile.open(file, f"w:{kind.partition('.')[2]}", format=tarfile.GNU_FORMAT) as archive:
        for name in names:
            data = program(name[2]).encode()
            header = tarfile.TarInfo(name)
            header.size = len(data)
            archive.addfile(header, io.BytesIO(data))
    return file


def read_or_none(file):
    """What an archive holds; None where it is refused in one line that names it."""
    try:
        return files(read(Files(file)))
    except ValueError as error:
        said = str(error)
    assert said.startswith(f"{file} is not a readable zip or tar archive: ")
    assert "\n" not in said
    return None


@pytest.mark.parametrize("kind", KINDS)
def test_no_file_of_a_truncated_archive_is_lost_without_a_word(tmp_path, kind):
    file = make_archive(tmp_path / f"x.{kind}")
    data, whole = file.read_bytes(), files(read(Files(file)))
    padding = len(data) - len(data.rstrip(b"\0")) if kind == "tar" else 0
    for length in range(1, len(data) - padding, max(1, len(data) // 100)):
        file.write_bytes(data[:length])
        assert read_or_none(file) is None, length
    file.write_bytes(data)
    assert read_or_none(file) == whole


@pytest.mark.parametrize("kind", KINDS)
def test_no_file_of_a_damaged_archive_is_lost_without_a_word(tmp_path, kind):
    """A plain tar has checksums of its headers only: what its files say cannot be checked, but none is lost."""
    file = make_archive(tmp_path / f"x.{kind}")
    data, whole = bytearray(file.read_bytes()), files(read(Files(file)))
    refused = 0
    for place in range(0, len(data), max(1, len(data) // 100)):
        data[place] ^= 0x11
        file.write_bytes(data)
        found = read_or_none(file)
        data[place] ^= 0x11
        refused += found is None
        assert found is None or (found.keys() == whole.keys() if kind == "tar" else found == whole), place
    assert refused > (5 if kind == "tar" else 60)


@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_behind_an_archive_is_not_passed_over(tmp_path, kind):
    file = make_archive(tmp_path / f"x.{kind}")
    other = make_archive(tmp_path / f"y.{kind}", ["p/d.py"])
    data = file.read_bytes()
    for more in (other.read_bytes(), b"garbage" * 100):
        file.write_bytes(data + more)
        assert read_or_none(file) is None
    if kind != "zip":
        file.write_bytes(data + bytes(2048))  # padding
        assert len(read_or_none(file)) == 3


def test_a_zip_is_known_by_its_start_and_may_have_a_script_before_it(tmp_path):
    inner = make_archive(tmp_path / "inner.zip", ["p/a.py"])
    with tarfile.open(tmp_path / "outer.tar", "w") as archive:
        archive.add(__file__, arcname="PK/x.py")  # a tar begins with its first name
        archive.add(inner, arcname="q/inner.zip")
    assert set(files(read(Files(tmp_path / "outer.tar")))) == {"PK/x.py"}
    (tmp_path / "app.pyz").write_bytes(b"#!/usr/bin/env python3\n" + inner.read_bytes())
    assert set(files(read(Files(tmp_path / "app.pyz")))) == {"p/a.py"}


def test_links_in_a_tar_are_skipped_and_counted(tmp_path):
    file = make_archive(tmp_path / "x.tar")
    with tarfile.open(file, "a") as archive:
        for name, kind in {"l.py": tarfile.SYMTYPE, "h.py": tarfile.LNKTYPE, "f.py": tarfile.FIFOTYPE}.items():
            header = tarfile.TarInfo(name)
            header.type, header.linkname = kind, "/etc/passwd"
            archive.addfile(header)
    items = read(Files(file))
    assert skips(items) == dict.fromkeys(("l.py", "h.py", "f.py"), "not a regular file")
    assert len(files(items)) == 3


def test_a_tar_header_that_is_too_large_is_refused(tmp_path):
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as archive:
        header = tarfile.TarInfo("a.py")
        header.type, header.size = tarfile.XHDTYPE, 8 << 20
        archive.addfile(header, io.BytesIO(bytes(8 << 20)))
    with pytest.raises(ValueError, match="a header is too large"):
        read(Files(tmp_path / "x.tar.gz"))


def test_a_corrupt_deflate_stream_is_an_error_in_a_zip_and_a_skip_in_a_wheel(tmp_path):
    file = make_archive(tmp_path / "pack-1.0-x.zip", ["p/a.py", "pack-1.0.dist-info/METADATA"])
    with zipfile.ZipFile(file) as archive:
        start = archive.infolist()[0].header_offset + 30 + len("p/a.py")
    data = bytearray(file.read_bytes())
    data[start : start + 20] = b"\xff" * 20
    file.write_bytes(data)
    assert read_or_none(file) is None
    assert skips(read_wheel(file)) == {"pack==1.0": "broken archive: error"}


# ---------------------------------------------------------------- tables

ROWS = [
    {"content": f"x = {i}", "max_stars_repo_name": f"me/repo{i % 2}", "max_stars_repo_path": f"src/{i}.py"}
    for i in range(10)
]


def write_parquet(file, rows=ROWS, group=4):
    parquet.write_table(pyarrow.Table.from_pylist(rows), file, row_group_size=group)


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "parquet"])
def test_tables_in_starcoders_format_give_files(tmp_path, kind):
    file = tmp_path / f"rows.{kind}"
    lines = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    if kind == "parquet":
        write_parquet(file)
    else:
        file.write_bytes(lines if kind == "jsonl" else gzip.compress(lines))
    for root in (file, tmp_path):
        items = read(Rows(root, sources.STARCODER, licence="permissive"))
        assert files(items) == {row["max_stars_repo_path"]: row["content"] for row in ROWS}
        assert {item.package for item in items} == {"me/repo0", "me/repo1"}
    assert kind != "parquet" or len(Rows(file, sources.STARCODER).units()) == 3


def test_rows_without_text_are_skipped_and_a_table_without_the_column_is_an_error(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "x = 1", "licences": ["MIT", "0BSD"]}\n{"text": null}\nnot json\n[1]\n')
    items = read(Rows(file, Columns(licence="licences")))
    assert [item.licence for item in items if isinstance(item, RawFile)] == ["MIT OR 0BSD"]
    assert list(skips(items).values()) == ["row without text", "not a JSON object", "not a JSON object"]
    with pytest.raises(ValueError, match="has no column 'body'; its columns are text, licences"):
        read(Rows(file, Columns(text="body")))
    write_parquet(tmp_path / "rows.parquet")
    with pytest.raises(ValueError, match="has no column 'text'; its columns are content"):
        read(Rows(tmp_path / "rows.parquet"))
    (tmp_path / "bad.parquet").write_bytes(b"junk")
    with pytest.raises(ValueError, match="not a readable parquet file"):
        read(Rows(tmp_path / "bad.parquet"))
    with pytest.raises(ValueError, match=r"no \.jsonl"):
        read(Rows(tmp_path / "nowhere"))


def test_a_damaged_table_is_an_error_that_names_it(tmp_path):
    lines = "".join(json.dumps({"text": f"x = {i}"}) + "\n" for i in range(500)).encode()
    packed = gzip.compress(lines)
    file = tmp_path / "rows.jsonl.gz"
    for data in (
        packed[:-100],
        packed[:-8] + bytes(8),
        packed + b"junk",
        b"junk",
        packed[:60] + bytes(9) + packed[69:],
    ):
        file.write_bytes(data)
        with pytest.raises(ValueError, match=r"rows\.jsonl\.gz is not a readable file of rows: \w"):
            read(Rows(file))
    file = tmp_path / "rows.parquet"
    table = pyarrow.table({"text": [f"value = {i}" * 9 for i in range(500)]})
    parquet.write_table(table, file, write_page_checksum=True, compression="none")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    for damaged in (data, data[:-20], data[: len(data) // 2]):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"rows\.parquet is not a readable parquet file: \w") as caught:
            read(Rows(file))
        assert "\n" not in str(caught.value)


def test_a_row_that_is_nested_too_deeply_or_too_long_is_skipped(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "MAX_ROW_BYTES", 300_000)
    file = tmp_path / "rows.jsonl"
    deep, long = "[" * 200_000, json.dumps({"text": "x" * 1_000_000})
    file.write_text("\n".join(['{"text": "x = 1"}', deep, long, '{"text": "y = 2"}', ""]))
    items = read(Rows(file))
    assert files(items) == {"rows.jsonl:1": "x = 1", "rows.jsonl:4": "y = 2"}
    assert skips(items) == {"rows.jsonl:2": "not a JSON object", "rows.jsonl:3": "too large for a program"}


def test_only_regular_files_are_tables_and_links_to_them(tmp_path):
    folder, row = tmp_path / "tables", '{"text": "x = 1"}'
    folder.mkdir()
    (tmp_path / "blob").write_text(row)
    (folder / "link.jsonl").symlink_to(tmp_path / "blob")  # as in the hub's cache
    assert list(files(read(Rows(folder))).values()) == ["x = 1"]
    os.mkfifo(folder / "pipe.jsonl")
    for source in (folder, folder / "pipe.jsonl"):
        with pytest.raises(ValueError, match=r"pipe\.jsonl"):
            read(Rows(source))


@pytest.mark.filterwarnings("ignore")
def test_a_dataset_of_the_hub_is_streamed_file_by_file(tmp_path):
    (tmp_path / "python").mkdir()
    write_parquet(tmp_path / "python" / "train-00000-of-00002.parquet", ROWS[:6])
    write_parquet(tmp_path / "python" / "train-00001-of-00002.parquet", ROWS[6:])
    dataset = HubDataset(name=str(tmp_path))
    assert len(dataset.units()) == 2
    items = read(dataset)
    assert files(items) == {row["max_stars_repo_path"]: row["content"] for row in ROWS}
    with pytest.raises(ValueError, match="has no column 'body'"):
        read(HubDataset(name=str(tmp_path), columns=Columns(text="body")))
    with pytest.raises(ValueError, match="cannot be opened"):
        read(HubDataset(name=str(tmp_path / "nowhere")))
