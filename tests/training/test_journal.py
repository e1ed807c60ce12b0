"""What a run writes down of its steps."""

import torch

from crocodil.training import journal
from crocodil.training.journal import Journal, StepResult
from crocodil.training.work import Work


def test_the_bar_shows_the_mean_speed_of_the_last_steps_and_the_log_that_of_each(monkeypatch):
    seconds = iter([0.0, 1.0, 4.0])
    monkeypatch.setattr(journal.time, "perf_counter", lambda: next(seconds))
    rows, shown = [], []
    book = Journal("base", Work(6, 1.0), 1, 1.0, rows.append, lambda _, text: shown.append(text))
    for step in range(2):
        book.add(step, StepResult(torch.ones(1), torch.ones(()), 0.1))
    assert [row["tokens_per_s"] for row in rows] == [6, 2]
    assert ["6 tokens/s, MFU 100%" in shown[0], "3 tokens/s, MFU 50%" in shown[1]] == [True, True]
