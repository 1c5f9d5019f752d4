"""What training was like since the last line of its history, added up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from runtime.numbers import is_finite, is_whole


@dataclass(kw_only=True)
class Window:
    """The updates since the last line: sums over them, and the learning rate of the last."""

    updates: int = 0
    nll: float = 0.0
    tokens: int = 0
    norm: float = 0.0
    seconds: float = 0.0
    rate: float = 0.0

    def add(self, *, nll: float, tokens: int, norm: float, rate: float, seconds: float) -> None:
        """One update. nll: of a target token. rate: the last one's counts."""
        self.updates += 1
        self.nll += nll * tokens
        self.tokens += tokens
        self.norm += norm
        self.rate = rate
        self.seconds += seconds

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """What dataclasses.asdict gave. Raises ValueError or TypeError for something else."""
        found = cls(**values)
        whole = is_whole(found.updates, 0) and is_whole(found.tokens, 0)
        if not whole or not all(is_finite(value) for value in values.values()):
            raise ValueError("the window holds a number that is none")
        return found

    def means(self) -> dict[str, float]:
        """As a line of the history has them."""
        return {
            "loss": self.nll / self.tokens,
            "learning_rate": self.rate,
            "gradient_norm": self.norm / self.updates,
            "tokens_per_second": round(self.tokens / self.seconds, 1) if self.seconds else 0.0,
        }
