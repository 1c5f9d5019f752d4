from __future__ import annotations

from typing import Any

import pytest

from benchmarks.peers.cost import BEAMS, LENGTHS, Curve, fit_terms, measure_cost
from benchmarks.peers.subjects import SUBJECTS
from benchmarks.peers.worker import Timed
from runtime.options import SearchOptions

SIZES = (8, 16, 32, 64, 96, 128)


@pytest.mark.parametrize(
    "terms",
    [
        {0: 3.0, 1: 40.0, 2: 5.0, 3: 0.0},
        {0: 0.0, 1: 10.0, 2: 0.0, 3: 30.0},
        {0: 1.0, 1: 0.0, 2: 0.0, 3: 0.0},
    ],
)
def test_fit_finds_the_terms_that_made_the_values(terms: dict[int, float]) -> None:
    values = [sum(ms * (n / 128) ** power for power, ms in terms.items()) for n in SIZES]
    found = fit_terms(SIZES, values, tuple(terms))
    assert found == pytest.approx(terms, abs=1e-6)


def test_no_term_is_below_zero() -> None:
    values = [10 + 0.5 * n - 0.001 * n * n for n in SIZES]  # grows ever more slowly
    found = fit_terms(SIZES, values, (0, 1, 2, 3))
    assert min(found.values()) == 0
    assert sum(found.values()) == pytest.approx(values[-1], rel=0.1)


def test_curve_tells_the_share_of_what_grows_fastest() -> None:
    curve = Curve(sizes=(1, 2), ms=(1.0, 4.0), terms={0: 1.0, 1: 2.0, 2: 1.0})
    assert curve.fastest_share == 0.25
    assert curve.fitted(2) == 4.0
    assert curve.fitted(1) == 1 + 1 + 0.25
    assert curve.to_json()["terms"] == {"0": 1.0, "1": 2.0, "2": 1.0}


class CountingWorker:
    """A step costs 1 ms a beam, and 1 us for each token before it."""

    subject = SUBJECTS["leanseq-int8"]

    def translate(self, lines: Any, options: SearchOptions, setting: Any = None) -> Timed:
        steps = options.max_length
        assert steps is not None
        assert options.min_length == steps
        ms = sum(options.beam_size * 1.0 + 0.001 * position for position in range(steps))
        return Timed(seconds=ms / 1000, cpu_seconds=0.0, num_tokens=(steps,))


def test_cost_of_a_search_is_taken_apart() -> None:
    workers: Any = {"leanseq-int8": CountingWorker()}
    cost = measure_cost(workers, {}, ["a", "b"], SearchOptions(), 256, 2)
    lengths, beams = cost["lengths"]["leanseq-int8"], cost["beams"]["leanseq-int8"]
    assert tuple(lengths["sizes"]) == LENGTHS
    assert lengths["terms"]["1"] == pytest.approx(4 * 128, rel=0.01)
    assert lengths["fastest_share"] < 0.01
    assert tuple(beams["sizes"]) == BEAMS
    assert beams["terms"]["1"] == pytest.approx(16 * 24, rel=0.01)


def test_lengths_stay_within_the_model() -> None:
    workers: Any = {"leanseq-int8": CountingWorker()}
    cost = measure_cost(workers, {}, ["a"], SearchOptions(), 20, 1)
    assert cost["lengths"]["leanseq-int8"]["sizes"] == [8, 16]
    assert cost["steps_for_beams"] == 16
