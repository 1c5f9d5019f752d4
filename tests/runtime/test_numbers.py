"""Numbers that are none, or too large: JSON and callers may give an int of any length."""

from __future__ import annotations

import math

import pytest

from runtime.numbers import is_finite, is_whole, shown


@pytest.mark.parametrize("value", [0, -3, 2.5, 1e308, 10**308, -(10**308)])
def test_finite(value: float) -> None:
    assert is_finite(value)


@pytest.mark.parametrize(
    "value", [10**309, -(10**400), math.inf, -math.inf, math.nan, True, None, "1", [1]]
)
def test_not_finite(value: object) -> None:
    assert not is_finite(value)


def test_not_finite_nor_to_be_printed() -> None:
    assert not is_finite(-(10**5000))


def test_whole() -> None:
    assert is_whole(3, 3)
    assert is_whole(2**63 - 1, 0)
    assert is_whole(5, 0, 5)
    assert not any(is_whole(value, 0) for value in (-1, 2**63, 10**5000, 1.0, True, None, "1"))
    assert not is_whole(6, 0, 5)


def test_shown() -> None:
    assert [shown(value) for value in (12, -1.5, "x", None)] == ["12", "-1.5", "'x'", "None"]
    assert shown(10**400) == "a whole number of about 400 digits"
    assert shown(-(10**5000)) == "a whole number of about 5000 digits"
