"""Timing several ways of doing one thing, so that a noisy machine disturbs all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from runtime.errors import OptionError

Item = TypeVar("Item")
Result = TypeVar("Result")
Times = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The middle of many numbers, and where the central 80% of them lie."""

    median: float
    p10: float
    p90: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def interleave(
    runs: Sequence[Callable[[Item], Result]],
    items: Sequence[Item],
    *,
    rounds: int = 1,
    warmup: int = 3,
) -> tuple[Times, list[list[Result]]]:
    """Gives every item to every run in turn; the order of the runs turns round at each item.

    warmup: how many of the items are run once before, untimed. Returns seconds [runs, rounds,
    items] and, for each run, its results of the last round. Raises OptionError without items or
    rounds.
    """
    if not items or rounds < 1:
        raise OptionError(
            f"found {len(items)} items and {rounds} rounds to time; expected at least one of each"
        )
    for item in items[:warmup]:
        for run in runs:
            run(item)
    seconds = np.zeros((len(runs), rounds, len(items)))
    results: list[list[Result]] = []
    order = list(range(len(runs)))
    for round_index in range(rounds):
        results = [[] for _ in runs]
        for item_index, item in enumerate(items):
            for run_index in order:
                start = time.perf_counter()
                result = runs[run_index](item)
                seconds[run_index, round_index, item_index] = time.perf_counter() - start
                results[run_index].append(result)
            order.reverse()
    return seconds, results


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def percentiles_ms(seconds: Times, percents: Sequence[int] = (50, 95)) -> dict[str, float]:
    """{"p50": ..., "p95": ...} in milliseconds, over all rounds and items of one run."""
    return {f"p{p}": float(np.percentile(seconds, p)) * 1000 for p in percents}


def paired_ratio(slow: Times, fast: Times) -> Spread:
    """How many times faster the second run is, from pairs timed moments apart on the same item.

    slow, fast: seconds [rounds, items]. Above 1: `fast` took less time.
    """
    ratios = slow / fast
    p10, median, p90 = (float(value) for value in np.percentile(ratios, (10, 50, 90)))
    return Spread(median=median, p10=p10, p90=p90)
