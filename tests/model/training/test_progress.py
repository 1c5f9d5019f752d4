from __future__ import annotations

import logging

import pytest

import model.training.progress
from model.training.progress import Progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(model.training.progress.time, "monotonic", lambda: now[0])
    return now


def test_without_a_terminal_there_is_a_line_now_and_then(clock, caplog) -> None:
    progress = Progress(max_updates=100, done=0, quiet=False)
    with caplog.at_level(logging.INFO):
        for update in range(1, 31):
            progress.update(update, 2.5, 1000, update / 100)
            clock[0] += 1.0
    progress.close()
    assert [record.getMessage() for record in caplog.records] == [
        "update 22 of 100: loss 2.500, 1,000 tokens/s, 1:18 left"
    ]


def test_quiet_shows_no_lines_but_what_is_said(clock, caplog) -> None:
    progress = Progress(max_updates=100, done=0, quiet=True)
    with caplog.at_level(logging.INFO):
        for update in range(1, 40):
            progress.update(update, 2.5, 1000, update / 100)
            clock[0] += 1.0
        progress.say("100%% of %d", 3)
    progress.close()
    assert [record.getMessage() for record in caplog.records] == ["100% of 3"]


def test_a_bar_on_a_terminal(clock, monkeypatch, capsys) -> None:
    import sys

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    progress = Progress(max_updates=10, done=5, quiet=False)
    progress.update(6, 2.5, 1000, 0.6)
    clock[0] += 4.0
    progress.update(7, 2.25, 1000, 0.7)
    progress.close()
    assert "training:  50%" in (shown := capsys.readouterr().err)
    assert "5/10" in shown


def test_stderr_may_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model.training.progress.sys, "stderr", None)
    progress = Progress(max_updates=10, done=0, quiet=False)
    progress.update(1, 2.5, 1000, 0.1)
    progress.say("nobody hears this")
    progress.close()
