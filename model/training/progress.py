"""What training says as it runs, on stderr: a bar on a terminal, elsewhere now and then a line."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

from tqdm import tqdm

_log = logging.getLogger(__name__)
_LINE_SECONDS = 20.0


class Progress:
    """Shows loss, speed and time left. quiet: shows nothing (validations are still logged)."""

    def __init__(self, *, max_updates: int, done: int, quiet: bool) -> None:
        self._quiet = quiet
        self._max_updates = max_updates
        self._last_line = time.monotonic()
        self._start: tuple[float, float] | None = None
        self._tokens: list[tuple[float, int]] = []
        self._bar: Any = tqdm(
            total=max_updates,
            initial=done,
            unit="update",
            desc="training",
            file=sys.stderr,
            dynamic_ncols=True,
            leave=False,
            disable=quiet or sys.stderr is None or not sys.stderr.isatty(),
            bar_format="{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{postfix}",
        )

    def update(self, updates: int, loss: float, tokens: int, share: float) -> None:
        """After an update: the loss of one target token, the tokens of the update, and how much of
        the training is done, from 0 to 1."""
        now = time.monotonic()
        self._start = self._start or (now, share)
        self._tokens = [*self._tokens[-50:], (now, tokens)]
        text = f"loss {loss:.3f}, {self.tokens_per_second:,.0f} tokens/s, {self._left(now, share)}"
        self._bar.set_postfix_str(text, refresh=False)
        self._bar.update(updates - self._bar.n)
        if self._bar.disable and not self._quiet and now - self._last_line > _LINE_SECONDS:
            self._last_line = now
            _log.info("update %d of %d: %s", updates, self._max_updates, text)

    def end_earlier(self, max_updates: int) -> None:
        """Counts to so many updates from now on; what share of the training is done jumps."""
        self._max_updates = self._bar.total = max_updates
        self._start = None

    @property
    def tokens_per_second(self) -> float:
        """Target tokens, over the last 50 updates."""
        seconds = self._tokens[-1][0] - self._tokens[0][0] if self._tokens else 0.0
        return sum(tokens for _, tokens in self._tokens[1:]) / seconds if seconds else 0.0

    def say(self, text: str, *values: object) -> None:
        """Logs a line without tearing the bar."""
        self._last_line = time.monotonic()
        with tqdm.external_write_mode(file=sys.stderr):
            _log.info(text, *values)

    def warn(self, text: str) -> None:
        """The same for a warning."""
        with tqdm.external_write_mode(file=sys.stderr):
            _log.warning("%s", text)

    def close(self) -> None:
        self._bar.close()

    def _left(self, now: float, share: float) -> str:
        assert self._start is not None
        seconds, done = now - self._start[0], share - self._start[1]
        if done <= 0 or seconds < 2:
            return "time left unknown"
        left = round(seconds / done * (1 - share))
        return f"{left // 60}:{left % 60:02d} left"
