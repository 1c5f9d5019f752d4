"""How much of the files is read, on stderr: a bar on a terminal, elsewhere now and then a line."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any, Self

from tqdm import tqdm

_log = logging.getLogger(__name__)
_LINE_SECONDS = 20.0


class ReadingProgress:
    """total: bytes of all files, as they lie on the disk. quiet: shows nothing."""

    def __init__(self, total: int, *, quiet: bool) -> None:
        self._quiet = quiet
        self._total = total
        self._last_line = time.monotonic()
        self._bar: Any = tqdm(
            total=total,
            unit="B",
            unit_scale=True,
            file=sys.stderr,
            dynamic_ncols=True,
            leave=False,
            disable=quiet or sys.stderr is None or not sys.stderr.isatty(),
        )
        self._read = 0
        self._name = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def name(self, name: str) -> None:
        """What is being read from now on."""
        self._name = name
        self._bar.set_description(f"checking {name}")

    def advance(self, count: int) -> None:
        """So many more bytes are read."""
        self._read += count
        self._bar.update(count)
        now = time.monotonic()
        if self._bar.disable and not self._quiet and now - self._last_line > _LINE_SECONDS:
            self._last_line = now
            share = 100 * self._read / max(1, self._total)
            _log.info("checking %s: %.0f%% of the files read", self._name, share)
