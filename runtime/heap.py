"""Memory that was freed, but that the C library keeps for this process, goes back to the system."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache


def trim_heap() -> None:
    """Gives back what it can; some tenths of a millisecond. Does nothing where the C library is not
    glibc, which is the one that keeps so much."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    found: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return found
