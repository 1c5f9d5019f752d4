from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from runtime.options import SearchOptions
from runtime.sampling import draw, uniform

LOG_PROBS = np.log(np.array([0.1, 0.4, 1, 0.3, 0.2], dtype=np.float32))
LOG_PROBS[2] = -1e9


def _frequencies(options: SearchOptions, count: int = 4000) -> list[float]:
    drawn = [draw(LOG_PROBS, options, (i + 0.5) / count) for i in range(count)]
    return [round(drawn.count(token) / count, 3) for token in range(5)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0.1, 0.4, 0, 0.3, 0.2]),
        ({"top_k": 1}, [0, 1, 0, 0, 0]),
        ({"top_k": 2}, [0, 0.571, 0, 0.429, 0]),
        ({"top_k": 100}, [0.1, 0.4, 0, 0.3, 0.2]),
        ({"top_p": 0.4}, [0, 1, 0, 0, 0]),
        ({"top_p": 0.41}, [0, 0.571, 0, 0.429, 0]),
        ({"top_p": 0.85}, [0, 0.444, 0, 0.333, 0.222]),
        ({"top_p": 1e-9}, [0, 1, 0, 0, 0]),
        # of the two that top_k leaves, the first has 4/7: within top_p
        ({"top_k": 2, "top_p": 0.5}, [0, 1, 0, 0, 0]),
        # squares: 1, 16, 9, 4 of 30
        ({"temperature": 0.5}, [0.033, 0.533, 0, 0.3, 0.133]),
        ({"temperature": 0.5, "top_p": 0.8}, [0, 0.64, 0, 0.36, 0]),
        ({"temperature": 1e-6}, [0, 1, 0, 0, 0]),
    ],
)
def test_draw_shares(settings: dict[str, float], expected: list[float]) -> None:
    frequencies = _frequencies(SearchOptions(sampling=True, **settings))  # type: ignore[arg-type]
    assert frequencies == pytest.approx(expected, abs=0.002)


@given(
    row=arrays(np.float32, st.integers(2, 600), elements=st.floats(-20, 0, width=32)),
    number=st.floats(0, 1, exclude_max=True),
    top_p=st.floats(0.01, 1),
    top_k=st.integers(0, 700),
)
def test_draw_stays_in_the_nucleus(
    row: np.ndarray, number: float, top_p: float, top_k: int
) -> None:
    """Against the definition, by a full sort; vocabularies on both sides of the first look."""
    options = SearchOptions(sampling=True, top_p=top_p, top_k=top_k)
    token = draw(row, options, number)
    order = sorted(range(row.size), key=lambda i: (-row[i], i))[: top_k or row.size]
    shares = np.exp(row[order].astype(np.float64))
    before = (np.cumsum(shares) - shares)[order.index(token)] / shares.sum()
    assert before < top_p + 1e-9


@pytest.mark.parametrize("number", [0.0, 1 - 2.0**-53])
def test_draw_at_the_ends(number: float) -> None:
    for settings in ({}, {"top_p": 0.9999999}, {"top_k": 5}):
        assert draw(LOG_PROBS, SearchOptions(sampling=True, **settings), number) != 2


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-20])
@pytest.mark.parametrize("settings", [{}, {"top_k": 3}, {"top_p": 1e-300}])
def test_a_temperature_near_zero_takes_the_likeliest(
    temperature: float, settings: dict[str, float]
) -> None:
    options = SearchOptions(sampling=True, temperature=temperature, **settings)  # type: ignore[arg-type]
    drawn = {draw(LOG_PROBS, options, number) for number in (0.0, 0.5, 0.999)}
    assert drawn == {int(LOG_PROBS.argmax())}


def test_draw_takes_the_lower_of_equal_tokens() -> None:
    row = np.zeros(8, dtype=np.float32)
    drawn = {draw(row, SearchOptions(sampling=True, top_k=3), i / 100) for i in range(100)}
    assert drawn == {0, 1, 2}


def test_uniform_is_keyed_and_fixed() -> None:
    """Literal values: a seed must give the same translations in every version."""
    assert uniform(0, 0, 0, 0) == uniform(0, 0, 0, 0)
    keys = [(s, i, n, t) for s in (0, 1, 2**64) for i in (0, 1) for n in (0, 1) for t in (0, 1)]
    numbers = [uniform(*key) for key in keys]
    assert len(set(numbers)) == len(keys)
    assert [round(number, 12) for number in numbers[:3]] == EXPECTED
    many = [uniform(7, i, 0, t) for i in range(100) for t in range(20)]
    assert np.mean(many) == pytest.approx(0.5, abs=0.02)
    assert 0 <= min(many) < max(many) < 1


EXPECTED = [0.011546754286, 0.211859544033, 0.643636733222]
