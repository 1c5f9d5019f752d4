"""The best weights of a training so far, by validation, and how long ago they were found."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from runtime.numbers import is_finite, is_whole, shown


@dataclass(frozen=True, kw_only=True)
class Score:
    """loss: nats a target token, of all validation pairs, without smoothing or dropout. bleu,
    bleu_lc: 0 to 100, of greedy translations; bleu_lc does not count case."""

    loss: float
    bleu: float
    bleu_lc: float

    def __post_init__(self) -> None:
        for value in (self.loss, self.bleu, self.bleu_lc):
            if not is_finite(value):
                raise ValueError(f"the score holds {shown(value)}; expected numbers")

    def better_than(self, other: Score | None) -> bool:
        """By BLEU; among equals the lower loss."""
        return other is None or (self.bleu, -self.loss) > (other.bleu, -other.loss)

    def to_json(self) -> dict[str, float]:
        """Under the names that checkpoints, histories and results use."""
        return {
            "valid_loss": round(self.loss, 6),
            "valid_bleu": round(self.bleu, 4),
            "valid_bleu_lc": round(self.bleu_lc, 4),
        }

    def __str__(self) -> str:
        return f"BLEU {self.bleu:.2f}, -lc {self.bleu_lc:.2f}, loss {self.loss:.4f}"


@dataclass(frozen=True, kw_only=True)
class Best:
    """score: of the weights after `updates` updates, of which a snapshot is kept. since:
    validations after that one."""

    updates: int
    score: Score
    since: int = 0

    def __post_init__(self) -> None:
        if not all(is_whole(value, 0) for value in (self.updates, self.since)):
            raise ValueError("the best validation counts something that can't be counted")

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """What dataclasses.asdict gave."""
        return cls(**{**values, "score": Score(**values["score"])})

    def after(self, updates: int, score: Score) -> Best:
        """The best once one more score is there."""
        if score.better_than(self.score):
            return Best(updates=updates, score=score)
        return dataclasses.replace(self, since=self.since + 1)
