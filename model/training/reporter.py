"""What a training tells while it runs: on stderr (model.training.progress) and in its history."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Sequence

from model.training.best import Best, Score
from model.training.history import History
from model.training.progress import Progress
from model.training.selection import Scored
from model.training.state import Position
from model.training.validation import Validation
from model.training.window import Window

_log = logging.getLogger(__name__)


class Reporter:
    """Of one process of a training. history: None in those that only compute. window: the updates
    that the history has not told."""

    def __init__(self, progress: Progress, history: History | None, window: Window) -> None:
        self._progress, self._history, self.window = progress, history, window

    def updated(self, *, nll: float, tokens: int, norm: float, rate: float, seconds: float) -> None:
        """One update: loss of a target token, target tokens, gradient norm, learning rate, time."""
        self.window.add(nll=nll, tokens=tokens, norm=norm, rate=rate, seconds=seconds)

    def record(self, position: Position, seconds: float, epoch: float) -> None:
        """A line of the history, of the updates since the last one."""
        if self.window.updates and self._history is not None:
            values = {"epoch": round(epoch, 4), **self.window.means()}
            self._history.add("training", position.updates, seconds, **values)
        self.window = Window()

    def scoring(self, name: str, number: int, count: int) -> None:
        """One of the candidates at the end is about to be validated."""
        self._progress.say("scoring candidate %d of %d: %s ...", number, count, name)

    def validated(self, position: Position, seconds: float, found: Validation) -> None:
        """position.best: that of the validations before."""
        score = found.score
        self._progress.say(
            "update %d, epoch %d: validation loss %.4f (perplexity %.2f), BLEU %.2f, -lc %.2f (%s)",
            position.updates,
            position.epoch + 1,
            score.loss,
            math.exp(min(score.loss, 50.0)),
            score.bleu,
            score.bleu_lc,
            _compared(score, position.best),
        )
        for sample in found.samples:
            right = sample.translation in sample.references
            expected = "" if right else f"   (expected: {' | '.join(sample.references)})"
            self._progress.say("  %s => %s%s", sample.source, sample.translation, expected)
        if self._history is not None:
            samples = [dataclasses.asdict(sample) for sample in found.samples]
            values = {**score.to_json(), "samples": samples}
            self._history.add("validation", position.updates, seconds, **values)
            self._history.flush()

    def ends_early(self, since: int, max_updates: int) -> None:
        """since: validations without a better BLEU. max_updates: of the whole training."""
        self._progress.end_earlier(max_updates)
        self._progress.say(
            "no better BLEU in %d validations: the cool-down begins, and the training ends after "
            "update %d",
            since,
            max_updates,
        )

    def ended(
        self,
        position: Position,
        seconds: float,
        scored: Sequence[Scored],
        best: Scored,
        *,
        num_lines: int,
        warmup: int,
    ) -> None:
        """scored: all candidates; best: the one that was written. num_lines: of the validation."""
        if self._history is not None:
            last = next(one for one in scored if one.updates == (position.updates,))
            values = {"chosen": best.name, "candidates": [one.to_json() for one in scored]}
            self._history.add("end", position.updates, seconds, **last.score.to_json(), **values)
        self._progress.say(
            "training done: %d updates, %d epochs, %.1f minutes; %d validation lines, greedily:",
            position.updates,
            position.epoch,
            seconds / 60,
            num_lines,
        )
        for one in scored:
            written = "   <- written" if one is best else ""
            self._progress.say("  %s: %s%s", one.name, one.score, written)
        if position.updates < warmup:
            _log.warning(
                "the training ended in its warm-up, after %d of %d updates, so it learned little; "
                "give it more time, or a smaller --warmup and --batch-tokens",
                position.updates,
                warmup,
            )

    def flush(self) -> None:
        """Before a state is saved, so that what came before it is on disk."""
        if self._history is not None:
            self._history.flush()

    def close(self) -> None:
        self._progress.close()
        if self._history is not None:
            self._history.close()


def _compared(score: Score, best: Best | None) -> str:
    if best is None or score.better_than(best.score):
        return "the best so far"
    return f"best: {best.score.bleu:.2f} after update {best.updates}"
