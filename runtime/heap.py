"""Memory that was freed, but that the C library keeps for this process, goes back to the system."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any


def trim_heap() -> None:
    """Gives back what it can; some tenths of a millisecond. Does nothing where the C library is not
    glibc, which is the one that keeps so much."""
    trim = c_function("malloc_trim")
    if trim is not None:
        trim(0)


@cache
def c_function(name: str) -> Any:
    """That of the C library, on Linux; None where there is none."""
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None), name, None)
