"""Weights move to huge pages, so that the processor finds them without looking long.

A step reads all of its weights, and these lie on thousands of pages of 4 KB, more than the
processor remembers the places of. Linux (6.1 and later) can put what lies on many pages onto one of
2 MB, where it is asked to (madvise(2), MADV_COLLAPSE).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from runtime.heap import c_function

_MADV_COLLAPSE = 25
_SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")
_MAPS = Path("/proc/self/maps")
_PAGEMAP = Path("/proc/self/pagemap")
_PRESENT = np.uint64(1 << 63)  # of an entry of the page map
_PIECE = 512  # huge pages that are looked at in one go
_TRIES = 2
FULL = 0.9
"""Share of a huge page that must be in use: what is not takes memory from then on."""

Ranges = list[tuple[int, int]]


@dataclass(frozen=True)
class Memory:
    """Of this process, at one time. ranges: addresses of writable memory that belongs to no file.
    full: huge pages of the heap of which nearly all was in use, by their addresses."""

    ranges: Ranges
    full: frozenset[int]


def look_at_memory() -> Memory | None:
    """What is there before something is loaded. None where the system has no huge pages, its
    administrator wants none, or it can't be asked."""
    try:
        size = _huge_page_size()
        if size is None:
            return None
        ranges, heap = _own_ranges()
        return Memory(ranges=ranges + heap, full=frozenset(_full_pages(heap, size)))
    except (OSError, ValueError, MemoryError):  # no /proc, or another form of it
        return None


def use_huge_pages(before: Memory | None) -> int:
    """Moves what has come since: memory that was not there, and of the heap what was not in use.

    Returns how many bytes of it lie on huge pages for certain.
    """
    try:
        size = _huge_page_size()
        if size is None or before is None:
            return 0
        ranges, heap = _own_ranges()
        pages = {*_full_pages(_without(ranges, before.ranges), size), *_full_pages(heap, size)}
        advise, moved = c_function("madvise"), 0
        for begin in sorted(pages - before.full):
            where = ctypes.c_void_p(begin), ctypes.c_size_t(size)
            # Not 0: this kernel can't, has no memory for it, or some of it was just being used.
            if any(advise(*where, _MADV_COLLAPSE) == 0 for _ in range(_TRIES)):
                moved += size
        return moved
    except (OSError, ValueError, MemoryError):
        return 0


def _huge_page_size() -> int | None:
    """Bytes; None where there are none, or they are switched off."""
    try:
        if "[never]" in (_SETTINGS / "enabled").read_text(encoding="ascii"):
            return None
        return int((_SETTINGS / "hpage_pmd_size").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _own_ranges() -> tuple[Ranges, Ranges]:
    """Addresses of writable memory that belongs to no file, and those of the heap."""
    ranges: Ranges = []
    heap: Ranges = []
    for line in _MAPS.read_text(encoding="utf-8", errors="replace").splitlines():
        addresses, permissions, _, _, inode, *name = line.split()
        if not permissions.startswith("rw-p") or inode != "0" or name not in ([], ["[heap]"]):
            continue
        start, end = (int(address, 16) for address in addresses.split("-"))
        (heap if name else ranges).append((start, end))
    return ranges, heap


def _without(ranges: Ranges, others: Ranges) -> Ranges:
    """What of some ranges lies in none of the others."""
    found = []
    for start, end in ranges:
        for low, high in sorted(others):
            if high <= start or low >= end:
                continue
            if low > start:
                found.append((start, low))
            start = high
        if start < end:
            found.append((start, end))
    return found


def _full_pages(ranges: Ranges, size: int) -> Iterator[int]:
    """Addresses of the huge pages of some ranges of which nearly all is in use."""
    page = os.sysconf("SC_PAGE_SIZE")
    piece = _PIECE * size
    with _PAGEMAP.open("rb", buffering=0) as file:
        for low, high in ranges:
            low, high = -(-low // size) * size, high // size * size
            for start in range(low, high, piece):
                end = min(start + piece, high)
                file.seek(start // page * 8)
                entries = np.frombuffer(file.read((end - start) // page * 8), dtype=np.uint64)
                present = ((entries & _PRESENT) != 0).reshape(-1, size // page)
                yield from (start + size * np.flatnonzero(present.mean(axis=1) >= FULL)).tolist()
