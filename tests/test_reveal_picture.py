"""The animated picture of README: what examples/reveal.py draws."""

import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest

from crocodil.pipeline.settings import model_folder
from crocodil.text.tokenizer import Tokenizer

ROOT = Path(__file__).parent.parent
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(ROOT / "examples" / "reveal.py"))


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.load(model_folder("builtin") / "tokenizer.json")


@pytest.fixture(scope="module")
def frames(script, tokenizer):
    """Three calls: a name appears, is hidden again and reappears; registers are drawn again in call 2."""
    special, frame = tokenizer.special, script["Frame"]
    keyword, name, after = (tokenizer.encode(text)[0] for text in ("def", " value", "\n    "))
    mask, eos = special.mask, special.eos
    return [
        frame([special.bos, mask, name, mask, mask], 4),
        frame([special.bos, keyword, mask, mask, mask], 8),
        frame([special.bos, keyword, name, after, eos], 8),
    ]


def test_a_position_is_hidden_new_kept_or_hidden_again(script):
    state_of, mask = script["state_of"], 0
    assert state_of(mask, mask, mask) == "hidden"
    assert state_of(mask, 7, mask) == "new"
    assert state_of(7, 7, mask) == "kept"
    assert state_of(7, 8, mask) == "new"
    assert state_of(7, mask, mask) == "again"


def test_there_is_one_group_per_call_and_one_before_the_first(script, frames, tokenizer):
    svg = ElementTree.fromstring(script["draw"](frames, tokenizer, title="a < b"))
    groups = svg.findall(f"{SVG}g")
    assert [group.get("id") for group in groups] == ["call-0", "call-1", "call-2", "call-3"]
    hidden_again = [len(group.findall(f"{SVG}rect[@fill='{script['COLOURS']['again']}']")) for group in groups]
    assert hidden_again == [0, 0, 1, 0]
    notes = [group.findtext(f"{SVG}text[@class='note']") for group in groups]
    assert notes[2] == "call 2 of 3: registers drawn again from the text"
    assert ["drawn again" in note for note in notes] == [False, False, True, False]
    assert [text.text for text in groups[3].findall(f"{SVG}text")][1:] == ["def", "value", "↵"]


def test_the_committed_picture_is_small_and_plays_without_a_script():
    picture = (ROOT / "docs" / "assets" / "reveal.svg").read_text()
    assert len(picture) < 300_000
    assert "<script" not in picture
    assert picture.count('<g class="frame"') == 17  # before the first call, and after each of 16
    assert picture.count("registers drawn again") == 1
    assert 'src="docs/assets/reveal.svg"' in (ROOT / "README.md").read_text()
