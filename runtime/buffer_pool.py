"""Blocks of memory that are used again, so that a batch finds pages that are there already."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

Block = npt.NDArray[np.float32]

KEPT = 2
"""Most blocks that wait for the next batch: as many as take part at a time, usually."""


class BufferPool:
    """Gives blocks of float32 and takes them back. Usable from several threads at once."""

    def __init__(self) -> None:
        self._free: list[Block] = []  # smallest first
        self._lock = threading.Lock()
        self._closed = False

    def take(self, size: int) -> Block:
        """A block [>= size], its content whatever it was: the smallest that is large enough, or a
        new one."""
        with self._lock:
            for index, block in enumerate(self._free):
                if len(block) >= size:
                    return self._free.pop(index)
        return np.empty(size, dtype=np.float32)

    def give(self, block: Block) -> None:
        """Takes back what nobody uses any more; lets the smallest go when there are too many."""
        with self._lock:
            if self._closed:
                return
            self._free.append(block)
            self._free.sort(key=len)
            del self._free[:-KEPT]

    def close(self) -> None:
        """Lets all blocks go, those that come back later too."""
        with self._lock:
            self._closed = True
            self._free.clear()
