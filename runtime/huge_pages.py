"""Weights move to huge pages, so that the processor finds them without looking long.

A step reads all of its weights, and these lie on thousands of pages of 4 KB, more than the
processor remembers the places of. Linux (6.1 and later) can put what lies on many pages onto one of
2 MB, where it is asked to (madvise(2), MADV_COLLAPSE).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from runtime.heap import c_function

_MADV_COLLAPSE = 25
_SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")
_MAPS = Path("/proc/self/maps")
_PAGEMAP = Path("/proc/self/pagemap")
_PRESENT = np.uint64(1 << 63)  # of an entry of the page map
_TRIES = 2
FULL = 0.9
"""Share of a huge page that must be in use: what is not takes memory from then on."""


def use_huge_pages() -> int:
    """Moves the memory of this process of which nearly all is in use: heap and anonymous maps.

    Returns how many bytes lie on huge pages for certain. 0, and nothing is done, where the system
    has none, its administrator wants none, or it can't be asked.
    """
    try:
        size = _huge_page_size()
        if size is None:
            return 0
        advise, moved = c_function("madvise"), 0
        for start, end in list(_own_ranges(size)):
            for begin, stop in _full_runs(start, end, size):
                where = ctypes.c_void_p(begin), ctypes.c_size_t(stop - begin)
                # Not 0: this kernel can't, has no memory for it, or some pages were being used.
                if any(advise(*where, _MADV_COLLAPSE) == 0 for _ in range(_TRIES)):
                    moved += stop - begin
        return moved
    except (OSError, ValueError):  # no /proc, or another form of it
        return 0


def _huge_page_size() -> int | None:
    """Bytes; None where there are none, or they are switched off."""
    try:
        if "[never]" in (_SETTINGS / "enabled").read_text(encoding="ascii"):
            return None
        return int((_SETTINGS / "hpage_pmd_size").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _own_ranges(size: int) -> Iterator[tuple[int, int]]:
    """Addresses of writable memory that belongs to no file, cut to whole huge pages."""
    for line in _MAPS.read_text(encoding="utf-8", errors="replace").splitlines():
        addresses, permissions, _, _, inode, *name = line.split()
        if not permissions.startswith("rw-p") or inode != "0" or name not in ([], ["[heap]"]):
            continue
        start, end = (int(address, 16) for address in addresses.split("-"))
        start, end = -(-start // size) * size, end // size * size
        if start < end:
            yield start, end


def _full_runs(start: int, end: int, size: int) -> Iterator[tuple[int, int]]:
    """The longest runs of huge pages of a range of which each is in use."""
    page = os.sysconf("SC_PAGE_SIZE")
    with _PAGEMAP.open("rb", buffering=0) as file:
        file.seek(start // page * 8)
        entries = np.frombuffer(file.read((end - start) // page * 8), dtype=np.uint64)
    full = ((entries & _PRESENT) != 0).reshape(-1, size // page).mean(axis=1) >= FULL
    edges = np.flatnonzero(np.diff(full.astype(np.int8), prepend=0, append=0))
    for first, last in edges.reshape(-1, 2).tolist():
        yield start + first * size, start + last * size
