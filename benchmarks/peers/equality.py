"""The proof that two subjects compute the same: the same best tokens on every line, in FP32.

Without it a comparison of times says nothing. Where the best tokens differ, the eager model scores
both translations; within `export.parity.TIE` they are equally good, and it is a tie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.peers.subjects import Found
from export.parity import TIE, forced_log_probs
from runtime.backend import Backend
from runtime.errors import BackendError
from runtime.manifest import SpecialTokenIds
from runtime.options import SearchOptions
from runtime.search import normalise


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A line of which the two found other tokens, and what the eager model gives each, normalised
    by the length."""

    line: int
    our_score: float
    their_score: float

    @property
    def is_tie(self) -> bool:
        return abs(self.our_score - self.their_score) <= TIE


@dataclass(frozen=True, kw_only=True)
class Equality:
    """What a comparison of so many lines found. alone: lines that are equal when each is searched
    alone, and weren't in one call: CTranslate2 has one max_decoding_length for all lines of a call,
    where we have one for each."""

    beam_size: int
    lines: int
    differences: tuple[Difference, ...] = ()
    alone: int = 0

    @property
    def ties(self) -> int:
        return sum(difference.is_tie for difference in self.differences)

    @property
    def equal(self) -> int:
        return self.lines - len(self.differences)

    @property
    def summary(self) -> str:
        return (
            f"beam {self.beam_size}: {self.equal} of {self.lines} equal, {self.ties} ties, "
            f"{len(self.differences) - self.ties} different"
            + (f" ({self.alone} equal only when searched alone)" if self.alone else "")
        )

    def require(self) -> None:
        """Raises BackendError where lines differ that are no ties."""
        worst = [difference for difference in self.differences if not difference.is_tie]
        if worst:
            first = worst[0]
            raise BackendError(
                f"CTranslate2 and leanseq don't give the same translations in FP32 "
                f"({self.summary}); the first is line {first.line + 1}, which scores "
                f"{first.their_score:.5f} and {first.our_score:.5f}. Their speed can't be "
                "compared: check that the bundle is this checkpoint's, and report this if it is"
            )

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "equal": self.equal,
            "ties": self.ties,
            "summary": self.summary,
        }


def differing_lines(ours: Sequence[Found], theirs: Sequence[Found]) -> list[int]:
    """Places of the lines of which the two found other tokens, or only one came to an end."""
    return [
        place
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True))
        if (one.token_ids, one.finished) != (other.token_ids, other.finished)
    ]


def compare_tokens(
    ours: Sequence[Found],
    theirs: Sequence[Found],
    sources: Sequence[Sequence[int]],
    eager: Backend,
    special_ids: SpecialTokenIds,
    options: SearchOptions,
    *,
    alone: int = 0,
) -> Equality:
    """sources: token ids of each line, EOS included, as both read them. alone: see Equality."""
    differing = differing_lines(ours, theirs)
    targets = [
        [*found.token_ids, *([special_ids.eos] if found.finished else [])]
        for place in differing
        for found in (ours[place], theirs[place])
    ]
    doubled = [sources[place] for place in differing for _ in range(2)]
    scores = _scores(eager, doubled, targets, special_ids, options)
    return Equality(
        beam_size=options.beam_size,
        lines=len(ours),
        differences=tuple(
            Difference(line=place, our_score=scores[2 * n], their_score=scores[2 * n + 1])
            for n, place in enumerate(differing)
        ),
        alone=alone,
    )


def _scores(
    eager: Backend,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    special_ids: SpecialTokenIds,
    options: SearchOptions,
) -> list[float]:
    """What the model gives each target, normalised by its length."""
    if not targets:
        return []
    sums = np.zeros(len(targets), dtype=np.float64)
    for step, log_probs in enumerate(forced_log_probs(eager, sources, targets, special_ids)):
        for row, target in enumerate(targets):
            if step < len(target):
                sums[row] += log_probs[row, target[step]]
    return [normalise(s, len(t), options) for s, t in zip(sums, targets, strict=True)]
