from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from support.fake_backend import EOS, SPECIAL_IDS, FakeBackend, copying_logits

from runtime.errors import OptionError
from runtime.options import SearchOptions
from runtime.search import search
from runtime.workers import (
    MAX_WORKERS,
    StoppableBackend,
    StoppedError,
    check_workers,
    in_parallel,
)


def ours() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("leanseq-")]


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 40])
def test_each_task_comes_back_once_with_its_result(workers: int, count: int) -> None:
    found = list(in_parallel(lambda task, *_: task * 10, iter(range(count)), workers))
    assert sorted(found) == [(task, task * 10) for task in range(count)]
    assert ours() == []


@pytest.mark.parametrize(("workers", "count"), [(1, 3), (4, 1)])
def test_one_worker_or_one_task_runs_in_the_callers_thread(workers: int, count: int) -> None:
    here = threading.current_thread()
    seen = [
        result
        for _, result in in_parallel(
            lambda _, stopped, alone: (threading.current_thread() is here, alone),
            iter(range(count)),
            workers,
        )
    ]
    assert seen == [(True, True)] * count


def test_several_run_side_by_side_and_are_told_so() -> None:
    meeting = threading.Barrier(3, timeout=30)

    def work(task: int, stopped: threading.Event, alone: bool) -> bool:
        meeting.wait()  # passes only if three are here at once
        return alone

    found = dict(in_parallel(work, iter(range(6)), 3))
    assert found == dict.fromkeys(range(6), False)


def test_no_more_than_that_many_are_taken_ahead() -> None:
    taken = 0

    def tasks() -> Iterator[int]:
        nonlocal taken
        while True:
            taken += 1
            yield taken

    results = in_parallel(lambda task, *_: task, tasks(), 3)
    for given in range(1, 51):
        next(results)
        assert taken <= given + 2 * 3
    results.close()  # type: ignore[attr-defined]
    assert ours() == []


def test_the_first_error_stops_the_others_and_is_raised() -> None:
    waiting = threading.Event()
    stopped_after: list[int] = []

    def work(task: int, stopped: threading.Event, alone: bool) -> int:
        if task == 1:
            assert waiting.wait(30)
            raise RuntimeError("task 1 failed")
        if task == 2:
            waiting.set()
            assert stopped.wait(30)
            stopped_after.append(task)
        return task

    results = in_parallel(work, iter(range(100)), 2)
    assert next(results) == (0, 0)
    with pytest.raises(RuntimeError, match="task 1 failed"):
        list(results)
    assert stopped_after == [2]
    assert ours() == []


def test_an_error_among_the_tasks_stops_the_workers() -> None:
    def tasks() -> Iterator[int]:
        yield from range(4)
        raise OSError("the pipe broke")

    with pytest.raises(OSError, match="the pipe broke"):
        list(in_parallel(lambda task, *_: task, tasks(), 2))
    assert ours() == []


def test_closing_stops_a_search_within_a_step() -> None:
    """The search is one that would take for ever; a step takes no time."""
    begun = threading.Event()

    def endless(source: tuple[int, ...], prefix: tuple[int, ...]) -> np.ndarray:
        begun.set()
        time.sleep(0.001)
        row = np.zeros(10, dtype=np.float32)
        row[5] = 50
        return row

    def work(task: int, stopped: threading.Event, alone: bool) -> int:
        if task > 0:
            backend = FakeBackend(endless, 10, max_target=None)
            options = SearchOptions(beam_size=1, max_length=1_000_000)
            search(StoppableBackend(backend, stopped), [[EOS]], options, SPECIAL_IDS)
        return task

    results = in_parallel(work, iter(range(3)), 2)
    assert next(results) == (0, 0)
    assert begun.wait(30)
    results.close()  # type: ignore[attr-defined]
    assert ours() == []


def test_a_stoppable_backend_is_the_backend_until_it_is_stopped() -> None:
    stopped = threading.Event()
    inner = FakeBackend(copying_logits(10), 10)
    backend = StoppableBackend(inner, stopped)
    assert backend.capabilities is inner.capabilities
    sources = [[5, 6, 7, EOS], [8, EOS]]
    options = SearchOptions(beam_size=2)
    found = search(backend, sources, options, SPECIAL_IDS)
    assert found == search(inner, sources, options, SPECIAL_IDS)
    backend.close()
    assert not inner.closed
    stopped.set()
    with pytest.raises(StoppedError):
        search(backend, sources, options, SPECIAL_IDS)


@pytest.mark.parametrize("workers", [0, -1, MAX_WORKERS + 1])
def test_workers_that_no_machine_can_start(workers: int) -> None:
    with pytest.raises(OptionError, match=f"workers is {workers}; expected .* at most 1024"):
        check_workers(workers)
    for usable in (None, 1, MAX_WORKERS):
        check_workers(usable)
