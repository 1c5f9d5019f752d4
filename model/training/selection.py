"""Which weights a training ends with: those with the best validation BLEU of all that it kept.

Averages of the last saves usually win where the rate fell to zero (Vaswani et al. 2017, section
6.1, average the last 5 or 20); the best validated weights win where a training got worse towards
its end. Nothing but validation pairs is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from model.training.best import Score
from model.training.state import Position


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """The mean of the snapshots that were taken after so many updates each. score: where these
    weights were validated already."""

    name: str
    updates: tuple[int, ...]
    score: Score | None = None


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A candidate's name and snapshots, and what it scored."""

    name: str
    updates: tuple[int, ...]
    score: Score

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "updates": list(self.updates), **self.score.to_json()}


def candidates(position: Position) -> list[Candidate]:
    """What a training at its end has kept. Its last save must be of its last update."""
    saves, best = position.snapshots, position.best
    found = [Candidate(name="last weights", updates=(position.updates,))]
    if len(saves) > 1:
        name = f"average of the last {len(saves)} saves"
        found.insert(0, Candidate(name=name, updates=tuple(saves)))
    if best is not None and best.updates != position.updates:
        name = f"best validated weights (update {best.updates})"
        found.append(Candidate(name=name, updates=(best.updates,), score=best.score))
    return found


def choose(scored: Sequence[Scored]) -> Scored:
    """The one of the highest BLEU; of equal ones that of the lowest loss, then the first."""
    chosen = scored[0]
    for other in scored[1:]:
        if other.score.better_than(chosen.score):
            chosen = other
    return chosen
