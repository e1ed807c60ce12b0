import re
import time

import pytest

from crocodil.pipeline.batches import _Ticks
from crocodil.runtime.progress import progress


def work(worth_s, **choices):
    with progress("sampling", 3, unit="texts", worth_s=worth_s, **choices) as advance:
        ticks = _Ticks(advance, 3, num_ticks=7)
        for _ in range(5):
            time.sleep(0.01)
            ticks()
        ticks.finish()


@pytest.fixture
def screen(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")


def test_a_bar_moves_within_a_batch_and_says_how_long_still(screen, capsys):
    work(worth_s=0.02)
    shown = capsys.readouterr().err
    assert re.search(r"sampling.*[012]/3.*ETA", shown)
    assert "3/3" in shown


def test_what_is_printed_to_a_file_under_a_bar_stays_in_the_file(screen, capsys):
    with progress("sampling", 3, unit="texts") as advance:
        print("a text")
        advance()
    assert capsys.readouterr().out == "a text\n"


def test_work_that_is_expected_to_be_short_has_no_bar(screen, capsys):
    work(worth_s=1000.0)
    assert capsys.readouterr().err == ""


def test_where_there_is_no_screen_a_line_is_written_or_none(capsys):
    work(worth_s=0.02)
    assert "sampling: 3/3 texts" in capsys.readouterr().err
    work(worth_s=0.02, lines=False)
    assert capsys.readouterr().err == ""


def test_calls_that_were_not_needed_count_as_done_and_a_batch_is_never_more_than_done():
    moved = []
    ticks = _Ticks(lambda count=1, note="": moved.append(count), 3, num_ticks=4)
    for _ in range(9):
        ticks()
    assert sum(moved) < 3
    ticks.finish()
    assert sum(moved) == pytest.approx(3)


def test_what_was_done_before_does_not_count_in_the_speed(capsys):
    with progress("training", 5002, unit="steps", start=5000) as advance:
        time.sleep(0.2)
        advance(2)
    shown = capsys.readouterr().err
    assert "training: 5002/5002 steps" in shown
    (speed,) = re.findall(r"([\d.]+) steps/s", shown)
    assert float(speed) <= 10


def test_work_without_a_known_end_has_neither_a_total_nor_a_time_left(capsys, monkeypatch):
    monkeypatch.setattr("crocodil.runtime.progress.SECONDS_BETWEEN_LINES", -1.0)
    with progress("training", None, unit="steps", start=7) as advance:
        advance()
    shown = capsys.readouterr().err
    assert "training: 8 steps, " in shown
    assert "left" not in shown


def test_a_bar_without_a_known_end_moves(screen, capsys):
    with progress("training", None, unit="steps", start=7) as advance:
        advance()
    assert "8/?" in capsys.readouterr().err
