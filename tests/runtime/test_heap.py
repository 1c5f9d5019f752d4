"""Freed memory goes back to the system."""

from __future__ import annotations

import platform
import sys

import pytest

from runtime import heap


def test_trim_gives_back_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []
    monkeypatch.setattr(heap, "_malloc_trim", lambda: called.append)
    heap.trim_heap()
    assert called == [0]


def test_without_glibc_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    heap._malloc_trim.cache_clear()
    monkeypatch.setattr(sys, "platform", "darwin")
    heap.trim_heap()
    assert heap._malloc_trim() is None
    heap._malloc_trim.cache_clear()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="this C library is not glibc")
def test_glibc_has_it() -> None:
    trim = heap._malloc_trim()
    assert trim is not None
    assert trim(0) in (0, 1)  # whether anything could be given back
