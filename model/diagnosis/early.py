"""A loss that is too low too soon: the decoder is shown what it is to predict."""

from __future__ import annotations

from collections import deque

import numpy as np

from model.training.batching import EncodedCorpus

EARLY_UPDATES = 300
TOO_LOW = 0.04
"""Below this share of what guessing by frequency costs within EARLY_UPDATES updates is too low. The
embedded corpus, as regular as a corpus gets, is at 0.065 of it after 300
(docs/decisions/0013-diagnosis.md)."""
_WINDOW = 20


class EarlyLoss:
    """The losses of the first updates of a training, in nats a target token."""

    def __init__(self, guessing: float) -> None:
        self._guessing = guessing
        self._last: deque[float] = deque(maxlen=_WINDOW)

    def add(self, updates: int, nll: float) -> float | None:
        """The mean loss of the last 20 updates, at the first moment at which it is too low."""
        if updates > EARLY_UPDATES or self._guessing == 0:
            return None
        self._last.append(nll)
        mean = sum(self._last) / len(self._last)
        if len(self._last) < _WINDOW or mean > TOO_LOW * self._guessing:
            return None
        self._guessing = 0.0  # told once
        return mean


def unigram_entropy(corpus: EncodedCorpus) -> float:
    """What a target token costs, in nats, if only the frequency of each piece is known."""
    counts = np.bincount(corpus.target.ids)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())
