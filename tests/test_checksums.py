"""A damaged file of a model is told, by the quick check and by the thorough one."""

import random
import shutil

import pytest
import tiny

from crocodil.checkpoints.checksums import SMALL_BYTES, check_quickly, verify, word_sum, write_checksums
from crocodil.checkpoints.format import load_model, save_model


@pytest.fixture
def network(tmp_path):
    save_model(tiny.demasker(), tmp_path / "network")
    return tmp_path / "network"


def flipped(file, place, bit):
    content = bytearray(file.read_bytes())
    content[place] ^= 1 << bit
    file.write_bytes(content)


def test_every_flipped_bit_of_a_network_is_told_when_it_is_loaded(network, tmp_path):
    draw = random.Random(0)
    for number in range(40):
        copy = tmp_path / str(number)
        shutil.copytree(network, copy)
        name = draw.choice(["model.safetensors", "config.json"])
        flipped(copy / name, draw.randrange((copy / name).stat().st_size), draw.randrange(8))
        with pytest.raises(
            ValueError, match=f"{name} is damaged, its checksum differs: copy or download it again"
        ):
            load_model(copy)


def test_the_sum_of_words_of_a_large_file_changes_with_every_bit(tmp_path):
    file, draw = tmp_path / "model.safetensors", random.Random(0)
    file.write_bytes(draw.randbytes(SMALL_BYTES + 5))  # its last word is not whole
    write_checksums(tmp_path)
    check_quickly(tmp_path)
    before = word_sum(file)
    for place in (0, 7, 8, SMALL_BYTES // 2, SMALL_BYTES - 1, SMALL_BYTES, SMALL_BYTES + 4):
        for bit in (0, 7):
            flipped(file, place, bit)
            assert word_sum(file) != before
            with pytest.raises(ValueError, match="is damaged"):
                check_quickly(tmp_path)
            flipped(file, place, bit)
    assert word_sum(file) == before


def test_verify_counts_the_files_of_all_folders_and_names_what_is_missing(network, tmp_path):
    assert verify(network) == 2
    (tmp_path / "crocodil.json").write_text("{}")
    write_checksums(tmp_path)
    assert verify(tmp_path) == 4  # with the checksums of the network
    (network / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="safetensors is missing: copy or download it again"):
        verify(tmp_path)


def test_a_network_that_is_missing_or_stands_in_for_another_is_told(network, tmp_path):
    save_model(tiny.encoder(), tmp_path / "other")
    (tmp_path / "crocodil.json").write_text("{}")
    write_checksums(tmp_path)
    check_quickly(tmp_path)
    network.rename(tmp_path / "aside")
    with pytest.raises(ValueError, match=r"network/checksums.json is missing: copy or download it again"):
        check_quickly(tmp_path)
    (tmp_path / "other").rename(network)
    with pytest.raises(ValueError, match=r"network/checksums.json is damaged"):
        check_quickly(tmp_path)


def test_a_folder_without_checksums_loads_and_cannot_be_verified(network):
    (network / "checksums.json").unlink()
    load_model(network)
    with pytest.raises(
        ValueError, match=r"has no checksums.json: an older version wrote it, so it cannot be checked"
    ):
        verify(network)


@pytest.mark.parametrize(
    "content", ["[]", "{", '{"sha256": {}}', '{"sha256": {"../x": "1"}, "words": {}}', "[" * 100_000]
)
def test_damaged_checksums_are_one_line(network, content):
    (network / "checksums.json").write_text(content)
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        load_model(network)
