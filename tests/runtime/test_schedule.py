"""Which threads and workers are chosen for which machine and model."""

from __future__ import annotations

import pytest

from runtime.errors import OptionError
from runtime.schedule import LARGE_STEP_BYTES, MAX_ALONE_THREADS, Schedule, choose_schedule

SMALL, LARGE = LARGE_STEP_BYTES - 1, LARGE_STEP_BYTES


@pytest.mark.parametrize(
    ("available", "step_bytes", "expected"),
    [
        (1, SMALL, (1, 1, 1)),
        (1, LARGE, (1, 1, 1)),
        (2, SMALL, (2, 1, 1)),
        (2, None, (2, 1, 1)),
        (2, LARGE, (2, 1, 2)),
        (64, SMALL, (64, 1, 1)),
        (64, LARGE, (64, 1, MAX_ALONE_THREADS)),
    ],
)
def test_a_worker_a_core_and_more_threads_for_a_large_step_alone(
    available: int, step_bytes: int | None, expected: tuple[int, int, int]
) -> None:
    found = choose_schedule(step_bytes, available=available)
    assert (found.workers, found.threads, found.alone_threads) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"threads": 3}, (1, 3, 3)),
        ({"threads": 1}, (1, 1, 1)),
        ({"workers": 2}, (2, 4, 4)),
        ({"workers": 3}, (3, 2, 2)),
        ({"workers": 100}, (100, 1, 1)),
        ({"threads": 2, "workers": 5}, (5, 2, 2)),
    ],
)
def test_what_is_asked_for_is_kept(given: dict[str, int], expected: tuple[int, int, int]) -> None:
    found = choose_schedule(LARGE, available=8, **given)
    assert (found.workers, found.threads, found.alone_threads) == expected


def test_numbers_that_no_machine_can_start() -> None:
    with pytest.raises(OptionError, match="threads is 0"):
        choose_schedule(threads=0)
    with pytest.raises(OptionError, match="workers is 0"):
        choose_schedule(workers=0)


def test_the_cores_here_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.cores.physical_cores", lambda: 6)
    assert choose_schedule().workers == 6


def test_render() -> None:
    assert choose_schedule(SMALL, available=2).render() == (
        "2 workers of 1 thread each, batches of up to 512 tokens; a batch alone: 1 thread "
        "(2 cores; more from 16 MB of weights a step on)"
    )
    assert (
        choose_schedule(20_000_000, available=2)
        .render()
        .endswith("a batch alone: 2 threads (2 cores; a step reads 20 MB of weights)")
    )
    assert Schedule().render() == (
        "1 worker of threads as the backend chooses each, batches of up to 512 tokens; a batch "
        "alone: threads as the backend chooses (one search at a time)"
    )
