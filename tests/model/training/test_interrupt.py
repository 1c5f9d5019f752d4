from __future__ import annotations

import signal
import threading

import pytest

from model.training import interrupt
from model.training.interrupt import catch_interrupt


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(interrupt.time, "monotonic", lambda: now[0])
    return now


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def test_the_first_asks_and_the_second_ends(
    clock: list[float], capfd: pytest.CaptureFixture[str]
) -> None:
    with catch_interrupt(quiet=False) as found:
        assert not found.asked
        press()
        press()  # the same one, passed on
        assert found.asked
        clock[0] += 1.0
        with pytest.raises(KeyboardInterrupt):
            press()
    assert capfd.readouterr().err.count("stopping after this update, to save it; Ctrl-C ag") == 1
    with pytest.raises(KeyboardInterrupt):
        press()


def test_quiet_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with catch_interrupt(quiet=True) as found:
        press()
    assert found.asked
    assert capfd.readouterr().err == ""


def test_where_it_is_ignored_it_stays_so() -> None:
    """A shell's `&` does that."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with catch_interrupt(quiet=True) as found:
            press()
        assert not found.asked
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_in_another_thread_nothing_is_caught() -> None:
    found = []

    def work() -> None:
        with catch_interrupt(quiet=True) as one:
            found.append(one.asked)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
