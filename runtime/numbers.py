"""Numbers from files and callers, where an int may have any number of digits."""

from __future__ import annotations

import sys
from typing import Any

_LONG_BITS = 128


def is_finite(value: Any) -> bool:
    """Whether it is a number, and one that a float can hold: math.isfinite raises OverflowError for
    a larger int."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and abs(value) <= sys.float_info.max


def is_whole(value: Any, low: int, high: int = 2**63 - 1) -> bool:
    """Whether it is an int from `low` to `high`; the latter is what libraries hold."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def shown(value: object) -> str:
    """repr, but for an int of many digits, of which it shows how many: Python refuses to print
    the largest."""
    if isinstance(value, int) and value.bit_length() > _LONG_BITS:
        return f"a whole number of about {round(value.bit_length() * 0.30103)} digits"
    return repr(value)
