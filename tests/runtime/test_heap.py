"""Freed memory goes back to the system."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator

import pytest

from runtime import heap


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """What one test finds, no other is to find."""
    heap.c_function.cache_clear()
    yield
    heap.c_function.cache_clear()


def test_trim_gives_back_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []
    monkeypatch.setattr(heap, "c_function", {"malloc_trim": called.append}.get)
    heap.trim_heap()
    assert called == [0]


def test_elsewhere_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    heap.trim_heap()
    assert heap.c_function("malloc_trim") is None


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="this C library is not glibc")
def test_glibc_has_it() -> None:
    assert heap.c_function("malloc_trim")(0) in (0, 1)  # whether anything could be given back
    assert heap.c_function("no_such_function") is None
