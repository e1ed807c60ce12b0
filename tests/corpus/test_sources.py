import gzip
import io
import json
import tarfile
import zipfile

import pytest
from wheels import make_wheel, program

from crocodil.corpus import sources
from crocodil.corpus.documents import RawFile
from crocodil.corpus.registry import Pin, RegistryError, lock
from crocodil.corpus.sources import Columns, Files, HubDataset, Rows, Skip, Wheels, read_wheel


def read(source):
    return [item for unit in source.units() for item in unit.read()]


def files(items):
    return {item.path: item.data.decode() for item in items if isinstance(item, RawFile)}


def skips(items):
    return {item.what: item.reason for item in items if isinstance(item, Skip)}


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
    assert skips(items) == {"ghost==1.0": "not to be had from the registry"}
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


def test_an_archive_that_unpacks_to_an_absurd_size_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "MAX_FILE_BYTES", 10_000)
    monkeypatch.setattr(sources, "MAX_ARCHIVE_BYTES", 50_000)
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(20):
            archive.writestr(f"p/{number}.py", "x" * 1_000_000)
    with pytest.raises(ValueError, match="absurd size"):
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
    (folder / "a" / "link.py").symlink_to(folder / "gone.py")
    items = read(Files(folder))
    assert skips(items) == {"a/folder.py": "unreadable file"}
    assert len(files(items)) == 3


def test_a_file_larger_than_any_program_is_skipped(folder, monkeypatch):
    monkeypatch.setattr(sources, "MAX_FILE_BYTES", 4)
    assert set(skips(read(Files(folder))).values()) == {"larger than any program"}


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
    messages = {"nowhere": "neither a folder", "empty": "no readable file", "junk.zip": "readable zip"}
    for path, message in messages.items():
        with pytest.raises(ValueError, match=message):
            read(Files(tmp_path / path))


# ---------------------------------------------------------------- tables

ROWS = [
    {"content": f"x = {i}", "max_stars_repo_name": f"me/repo{i % 2}", "max_stars_repo_path": f"src/{i}.py"}
    for i in range(10)
]


def write_parquet(file, rows=ROWS, group=4):
    import pyarrow
    from pyarrow import parquet

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
    assert list(skips(items).values()) == ["row without a text", "not a JSON object", "not a JSON object"]
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
