from __future__ import annotations

import pytest

from model.training.schedule import early_end, learning_rate

PEAK = {"peak": 2.0, "warmup": 100, "cooldown": 0.25}


@pytest.mark.parametrize(
    ("update", "progress", "expected"),
    [
        (1, 0.0, 0.02),
        (50, 0.05, 1.0),
        (100, 0.1, 2.0),
        (400, 0.4, 1.0),
        (400, 0.75, 1.0),
        (400, 0.875, 0.5),
        (400, 1.0, 0.0),
        (400, 1.2, 0.0),
        (50, 0.875, 0.5),
    ],
)
def test_literal_rates(update: int, progress: float, expected: float) -> None:
    assert learning_rate(update, progress, **PEAK) == pytest.approx(expected)


def test_no_cooldown_keeps_noam() -> None:
    rate = learning_rate(400, 1.0, peak=2.0, warmup=100, cooldown=0.0)
    assert rate == pytest.approx(1.0)


def test_the_peak_is_noams_for_its_own_factor() -> None:
    """d_model**-0.5 * min(step**-0.5, step * warmup**-1.5), section 5.3 of the paper."""
    d_model, warmup = 512, 4000
    peak = (d_model * warmup) ** -0.5
    for step in (1, 1000, 4000, 9000):
        noam = d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert learning_rate(step, 0, peak=peak, warmup=warmup, cooldown=0) == pytest.approx(noam)


@pytest.mark.parametrize(
    ("updates", "cooldown", "end"),
    [(600, 0.0, 600), (600, 0.25, 800), (500, 0.5, 1000), (1, 0.9, 10)],
)
def test_an_early_end_keeps_the_cool_downs_share(updates: int, cooldown: float, end: int) -> None:
    assert early_end(updates, cooldown) == end
    at_its_begin = learning_rate(updates, updates / end, peak=1.0, warmup=1, cooldown=cooldown)
    assert at_its_begin == pytest.approx(updates**-0.5)
