"""Bounds drawn from histograms, and that they do not depend on the order of the values."""

from __future__ import annotations

import numpy as np
import pytest

from calibration.errors import CalibrationError
from calibration.statistics import METHODS, TensorStatistics


def gathered(*parts: np.ndarray) -> TensorStatistics:
    statistics = TensorStatistics("t")
    for part in parts:
        statistics.add(part.astype(np.float32))
    return statistics


def test_minmax_is_the_largest_magnitude_exactly():
    values = np.array([0.1, -7.123456, 3.0], dtype=np.float32)
    assert gathered(values).bound("minmax") == abs(float(values[1]))


def test_percentile_holds_that_many_values_within_a_bin():
    values = np.random.default_rng(0).standard_normal(200_000).astype(np.float32)
    bound = gathered(values).bound("percentile", 99.9)
    exact = float(np.quantile(np.abs(values), 0.999))
    assert exact <= bound <= exact * 1.004
    assert np.mean(np.abs(values) <= bound) >= 0.999


def test_percentile_100_is_the_maximum():
    values = np.random.default_rng(1).standard_normal(1000)
    statistics = gathered(values)
    assert statistics.bound("percentile", 100.0) == statistics.bound("minmax")


def test_least_squares_clips_an_outlier_and_keeps_a_uniform_range():
    generator = np.random.default_rng(2)
    uniform = generator.uniform(-1, 1, 100_000)
    assert gathered(uniform).bound("mse") >= 0.98
    with_outlier = gathered(generator.standard_normal(1_000_000), np.array([40.0]))
    bound = with_outlier.bound("mse")
    assert bound < 20


def test_least_squares_bound_is_about_the_best_of_a_direct_search():
    values = np.random.default_rng(3).laplace(size=100_000).astype(np.float32)
    statistics = gathered(values)

    def error(bound: float) -> float:
        scale = bound / 127
        rounded = np.clip(np.rint(values / scale), -127, 127) * scale
        return float(np.mean((values - rounded) ** 2))

    best = min(error(statistics.amax * share) for share in np.linspace(0.2, 1, 81))
    assert error(statistics.bound("mse")) <= best * 1.02


@pytest.mark.parametrize("method", METHODS)
def test_order_and_batches_change_nothing(method):
    values = np.random.default_rng(4).standard_normal(10_000) * 3
    whole = gathered(values)
    shuffled = np.random.default_rng(5).permutation(values)
    parts = gathered(*np.split(shuffled, 10))
    assert whole.bound(method, 99.0) == parts.bound(method, 99.0)


@pytest.mark.parametrize("method", METHODS)
def test_nothing_or_only_zeros_gives_zero(method):
    assert gathered(np.zeros((0, 4))).bound(method) == 0
    assert gathered(np.zeros((3, 4))).bound(method) == 0


def test_tiny_values_count_as_zeros_but_keep_their_maximum():
    statistics = gathered(np.full(10, 1e-12))
    assert statistics.bound("minmax") == float(np.float32(1e-12))
    assert statistics.bound("mse") == float(np.float32(1e-12))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_refuses_values_that_are_not_finite(bad: float):
    with pytest.raises(CalibrationError, match=r"tensor 't' became (nan|inf) while decoding"):
        gathered(np.array([1.0, bad]))
