import zipfile

import pytest
from wheels import make_wheel, program

from crocodil.corpus.registry import Pin, RegistryError, fetch, lock, read_manifest, read_names, without_pin
from crocodil.corpus.splits import family
from crocodil.presets import corpora


def test_a_lock_pins_the_newest_wheel_and_leaves_out_what_has_none(registry):
    make_wheel(registry, "pack00", "2.0", files={"pack00/a.py": program("a")})
    counted = []
    pins = lock(["pack00", "no-such-package", "pack01"], on_names=counted.append)
    assert [(pin.name, pin.version) for pin in pins] == [("pack00", "2.0"), ("pack01", "1.0")]
    assert all(len(pin.sha256) == 64 for pin in pins)
    assert sum(counted) == 3


def test_pinned_wheels_are_fetched_and_checked(registry, tmp_path):
    pins = lock(["pack00", "pack01"])
    target = tmp_path / "wheels"
    fetch(pins, target)
    assert {file.name for file in target.iterdir()} == {f"pack0{i}-1.0-py3-none-any.whl" for i in range(2)}
    for file in target.iterdir():
        assert file.read_bytes() == (registry / file.name).read_bytes()


def test_a_wheel_that_changed_since_it_was_pinned_is_refused(registry, tmp_path):
    pins = lock(["pack00"])
    make_wheel(registry, "pack00", files={"pack00/other.py": program("other")})
    with pytest.raises(RegistryError, match=r"(?i)hash"):
        fetch(pins, tmp_path / "wheels")


def test_no_family_of_the_fresh_test_split_is_one_of_the_training_corpus():
    fresh = read_manifest(corpora.FRESH_TEST)
    families = [family(pin.name) for pin in fresh]
    assert len(set(families)) == len(families) >= 280
    assert not set(families) & {family(pin.name) for pin in read_manifest(corpora.MANIFEST)}
    assert len({pin.sha256 for pin in fresh}) == len(fresh)
    assert corpora.fresh_test().only_test


def test_a_manifest_says_where_it_is_wrong(tmp_path):
    pin = Pin("pack", "1.0", "0" * 64)
    file = tmp_path / "manifest.txt"
    file.write_text(f"# comment\n\n{pin}  # why\n")
    assert read_manifest(file) == [pin]
    file.write_text(f"{pin}\npack==2.0\n")
    with pytest.raises(ValueError, match=r"manifest\.txt:2: expected name==version --hash"):
        read_manifest(file)


NO_NAMES = [
    "--log=log", "-rnames.txt", "--", "-", ".", "..", "./project", "/tmp/project", "project/", "a\\b", "~x",
    "git+https://host/x", "https://host/x.whl", "x@file:///tmp/x", "x[extra]", "x>=1", "x==1;python_version>'3'",
    "x==1,<2", "x==../y", "x==-1", "x==", "==1", "x==1==2", "x=1", "${HOME}", "n\u00e4me", "x.", "_x", "x\n-r y",
]  # fmt: skip


@pytest.mark.parametrize("name", NO_NAMES)
def test_only_names_and_versions_reach_pip(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="neither a package name"):
        lock(["pack00", name])
    with pytest.raises(ValueError, match="is not a valid package name, version or sha256"):
        Pin(name, "1.0", "0" * 64)
    (tmp_path / "manifest.txt").write_text(f"{name}==1.0 --hash=sha256:{'0' * 64}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"manifest\.txt:1: expected name==version --hash"):
        read_manifest(tmp_path / "manifest.txt")
    assert [file.name for file in tmp_path.iterdir()] == ["manifest.txt"]


BACKEND = """
def _run(*arguments, **named):
    open({marker!r}, "w").close()
    raise SystemExit
build_wheel = get_requires_for_build_wheel = prepare_metadata_for_build_wheel = _run
"""


def test_a_name_is_never_taken_for_a_file_of_that_name(registry, tmp_path, monkeypatch):
    marker = tmp_path / "the backend ran"
    with zipfile.ZipFile(tmp_path / "project.zip", "w") as archive:
        settings = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        archive.writestr("project/pyproject.toml", settings)
        archive.writestr("project/backend.py", BACKEND.format(marker=str(marker)))
    monkeypatch.chdir(tmp_path)
    assert lock(["project.zip"]) == []
    assert not marker.exists()


def test_a_file_of_names_says_where_it_is_wrong(tmp_path):
    file = tmp_path / "names.txt"
    file.write_text("# mine\nnumpy torch==2.9.0\n zope.interface # why\n")
    assert read_names(file) == ["numpy", "torch==2.9.0", "zope.interface"]
    pins = [Pin("Zope.Interface", "1.0", "0" * 64), Pin("torch", "2.9.0", "0" * 64)]
    assert without_pin(read_names(file), pins) == ["numpy"]
    for content, message in (
        (b"numpy\n--log=x\n", r"names\.txt: '--log=x' is neither a package name"),
        (b"\xff\xfe\0", r"names\.txt is not a text file"),
        (b"# nothing\n", r"names\.txt lists no package"),
    ):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            read_names(file)
    with pytest.raises(ValueError, match="is not a readable file"):
        read_names(tmp_path)
    (tmp_path / "manifest.txt").write_bytes(b"\xff\0")
    with pytest.raises(ValueError, match=r"manifest\.txt is not a text file"):
        read_manifest(tmp_path / "manifest.txt")
