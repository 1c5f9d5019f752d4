from __future__ import annotations

import numpy as np
import pytest

from benchmarks.timing import interleave, paired_ratio, percentiles_ms
from runtime.errors import OptionError


def test_every_run_sees_every_item_and_the_order_turns_round() -> None:
    calls: list[tuple[str, int]] = []

    def run(name: str):  # type: ignore[no-untyped-def]
        def call(item: int) -> str:
            calls.append((name, item))
            return f"{name}{item}"

        return call

    seconds, results = interleave([run("a"), run("b")], [1, 2, 3], rounds=2, warmup=1)
    assert seconds.shape == (2, 2, 3)
    assert (seconds >= 0).all()
    assert results == [["a1", "a2", "a3"], ["b1", "b2", "b3"]]
    assert calls[:2] == [("a", 1), ("b", 1)]  # warmup
    assert calls[2:8] == [("a", 1), ("b", 1), ("b", 2), ("a", 2), ("a", 3), ("b", 3)]
    assert calls[8:10] == [("b", 1), ("a", 1)]


@pytest.mark.parametrize(("items", "rounds"), [([], 1), ([1], 0)])
def test_nothing_to_time_is_an_error(items: list[int], rounds: int) -> None:
    with pytest.raises(OptionError, match="expected at least one of each"):
        interleave([str], items, rounds=rounds)


def test_percentiles_are_in_milliseconds() -> None:
    seconds = np.linspace(0.0, 0.1, 101).reshape(1, -1)
    assert percentiles_ms(seconds) == pytest.approx({"p50": 50.0, "p95": 95.0})


def test_ratio_is_taken_pair_by_pair() -> None:
    slow = np.array([[2.0, 30.0, 400.0]])
    fast = np.array([[1.0, 10.0, 100.0]])
    found = paired_ratio(slow, fast)
    assert found.median == 3.0
    assert found.p10 == pytest.approx(2.2)
    assert found.p90 == pytest.approx(3.8)
