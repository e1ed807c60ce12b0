"""Configs check their values; JSON is read into them."""

import dataclasses
import pickle

import pytest

from crocodil.runtime.config import Length, Share, Temperature, Width, config, read_as


@config
class Inner:
    width: Width
    heads: Width = 4

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} does not split into {self.heads} heads")


@config
class Outer:
    inner: Inner
    lengths: tuple[Length, ...] = ()
    share: Share = 0.5
    temperature: Temperature = 0.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"width": 7}, "width 7 does not split into 4 heads"),
        ({"width": 0}, "Inner: width should be greater than or equal to 1, not 0"),
        ({"width": 10**9}, "Inner: width should be less than or equal to 1048576, not 1000000000"),
        ({"width": "8"}, "Inner: width should be a valid integer, not '8'"),
        ({"width": True}, "Inner: width should be a valid integer, not True"),
        ({"width": None, "heads": []}, r"Inner: width should be a valid integer, not None \(and 1 more\)"),
        ({}, "Inner: width is missing"),
        ({"width": 8, "depth": 3}, "Inner: depth is not a known field"),
    ],
)
def test_a_wrong_value_is_one_line_that_names_the_field(values, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        Inner(**values)


@pytest.mark.parametrize("temperature", [float("nan"), float("inf"), -1.0, 1e-45, 1e308])
def test_a_temperature_that_no_logits_survive_is_refused(temperature):
    with pytest.raises(ValueError, match=r"^Outer: temperature should be"):
        dataclasses.replace(Outer(inner=Inner(width=8)), temperature=temperature)


def test_a_config_is_frozen_and_hashable_and_can_be_sent_to_another_process():
    made = Outer(inner=Inner(width=8), lengths=(1, 2), temperature=1)
    assert pickle.loads(pickle.dumps(made)) == made == dataclasses.replace(made)
    assert hash(made) == hash(dataclasses.replace(made))
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.share = 0.1


def test_json_becomes_the_config_it_was_written_from():
    made = Outer(inner=Inner(width=8), lengths=(1, 2))
    assert read_as(Outer, {"inner": {"width": 8}, "lengths": [1, 2]}, "x.json") == made


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"inner": {"width": 7}}, "x.json: inner width 7 does not split into 4 heads"),
        ({"inner": {"width": None}}, "x.json: inner.width should be a valid integer, not None"),
        ({"inner": {"width": 8}, "lengths": [1, "2"]}, "x.json: lengths.1 should be a valid integer, not '2'"),
        ({"inner": []}, r"x.json: inner should be an object, not \[\]"),
        (3, "x.json: should be an object, not 3"),
    ],
)
def test_what_json_may_not_say_is_one_line_that_names_file_and_field(values, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        read_as(Outer, values, "x.json")
