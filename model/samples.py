"""Sentences that a checkpoint carries, so that it can be calibrated and measured where it goes.

They are taken from the training and validation text; whoever passes a checkpoint on passes them on.
Bundles carry none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from model.errors import CheckpointError
from runtime.normalizer import replace_surrogates

Item = TypeVar("Item")

CALIBRATION_LINES = 1000
VALID_PAIRS = 1000


@dataclass(frozen=True, kw_only=True)
class Samples:
    """calibration: source sentences seen in training. valid: source and target of validation."""

    calibration: tuple[str, ...]
    valid: tuple[tuple[str, str], ...]

    @classmethod
    def take(cls, train: Sequence[tuple[str, str]], valid: Sequence[tuple[str, str]]) -> Samples:
        """At most 1,000 of each, spread evenly over the text: the same for the same text."""
        return cls(
            calibration=tuple(
                replace_surrogates(source) for source, _ in spread(train, CALIBRATION_LINES)
            ),
            valid=tuple(
                (replace_surrogates(source), replace_surrogates(target))
                for source, target in spread(valid, VALID_PAIRS)
            ),
        )

    def to_json(self) -> dict[str, Any]:
        return {"calibration": list(self.calibration), "valid": [list(p) for p in self.valid]}

    @classmethod
    def from_text(cls, text: bytes) -> Samples:
        """Raises CheckpointError where the text is not what `to_json` gave."""
        try:
            values = json.loads(text)
            return cls(
                calibration=tuple(str(line) for line in values["calibration"]),
                valid=tuple((str(source), str(target)) for source, target in values["valid"]),
            )
        except (ValueError, TypeError, KeyError) as error:
            raise CheckpointError(
                f"the checkpoint's samples.json is damaged ({error!r}); copy the checkpoint again"
            ) from error


def spread(items: Sequence[Item], count: int) -> list[Item]:
    """At most `count` of them, evenly spread: the same for the same items."""
    if len(items) <= count:
        return list(items)
    return [items[i * len(items) // count] for i in range(count)]
