import pytest
from wheels import make_wheel, program

from crocodil.corpus.registry import Pin, RegistryError, fetch, lock, read_manifest


def test_a_lock_pins_the_newest_wheel_and_leaves_out_what_has_none(registry):
    make_wheel(registry, "pack00", "2.0", files={"pack00/a.py": program("a")})
    counted = []
    pins = lock(["pack00", "no-such-package", "pack01"], found=counted.append)
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


def test_a_manifest_says_where_it_is_wrong(tmp_path):
    pin = Pin("pack", "1.0", "0" * 64)
    file = tmp_path / "manifest.txt"
    file.write_text(f"# comment\n\n{pin}  # why\n")
    assert read_manifest(file) == [pin]
    file.write_text(f"{pin}\npack==2.0\n")
    with pytest.raises(ValueError, match=r"manifest\.txt:2: not a pin"):
        read_manifest(file)
