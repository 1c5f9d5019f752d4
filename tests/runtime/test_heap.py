"""Freed memory goes back to the system."""

from __future__ import annotations

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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's malloc_trim")
def test_it_is_found_here() -> None:
    heap.trim_heap()
    trim = heap._malloc_trim()
    assert trim is None or trim(0) in (0, 1)
