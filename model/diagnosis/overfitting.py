"""A validation loss that rises while that of training falls: the model learns lines by heart."""

from __future__ import annotations

RISES = 3
"""So many validations in a row without a new best, the training loss falling, are worth a word."""
_MARGIN = 1.01


class LossHistory:
    """Validation and training losses since this process began, in nats a target token."""

    def __init__(self) -> None:
        self._best: tuple[int, float, float] | None = None  # updates, validation, training
        self._since = 0
        self._told = False

    def add(self, updates: int, valid: float, train: float) -> str | None:
        """After a validation; train: the mean since the one before. What to say, once."""
        if self._best is None or valid < self._best[1]:
            self._best, self._since, self._told = (updates, valid, train), 0, False
            return None
        self._since += 1
        at, best, then = self._best
        if self._told or self._since < RISES or valid < _MARGIN * best or train >= then:
            return None
        self._told = True
        return (
            f"the validation loss has not fallen since update {at} ({best:.3f} then, {valid:.3f} "
            f"now), while the training loss fell from {then:.3f} to {train:.3f}: the model learns "
            "its lines by heart. If BLEU does not rise either: raise --dropout, try --bpe-dropout "
            "0.1, --r-drop 1, more lines or a smaller preset, and --patience to end in time"
        )
