"""Ctrl-C while a training runs: the first asks it to end after its update, the second ends it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

TOGETHER_SECONDS = 0.5
"""Within so many the same Ctrl-C may come twice: from the terminal, and passed on by what started
this process."""

_TOLD = "\nstopping after this update, to save it; Ctrl-C again stops at once\n"


class Interrupt:
    """asked: whether Ctrl-C was pressed."""

    def __init__(self, *, quiet: bool) -> None:
        self.asked, self._since = False, 0.0
        self._quiet = quiet

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            if time.monotonic() - self._since > TOGETHER_SECONDS:
                raise KeyboardInterrupt
            return
        self.asked, self._since = True, time.monotonic()
        if not self._quiet:
            with contextlib.suppress(OSError, ValueError, AttributeError):
                # Not through sys.stderr: it may have been interrupted in the middle of a write.
                os.write(sys.stderr.fileno(), _TOLD.encode())


@contextmanager
def catch_interrupt(*, quiet: bool) -> Iterator[Interrupt]:
    """Inside the block the first Ctrl-C does nothing but set `asked`. quiet: and says nothing.

    Where Ctrl-C does something else than to raise KeyboardInterrupt (a shell's `&` ignores it), or
    this is not the main thread, it goes on doing so.
    """
    found = Interrupt(quiet=quiet)
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield found
        return
    signal.signal(signal.SIGINT, found._ask)
    try:
        yield found
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
