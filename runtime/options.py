"""The options of one search, validated when they are made."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from runtime.errors import OptionError, nearest_hint
from runtime.numbers import is_finite, is_whole, shown

LengthPenalty = Literal["power", "gnmt"]

MAX_BEAMS = 1_000_000
MAX_LENGTH_PENALTY = 10.0
MAX_PATIENCE = 1e6
"""Far beyond use; what is above runs out of memory or of the range of floats."""
_MAX_LENGTH = 2**31 - 1
_MAX_SEED = 2**128 - 1  # what a draw is keyed by (runtime.sampling)


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How hypotheses are searched for, ranked and cut. Lengths count target tokens, EOS included.

    Semantics are CTranslate2's (docs/decisions/0003-search-semantics.md names the exceptions):

    beam_size: K, live hypotheses a sentence. 1 is greedy search.
    num_hypotheses: how many are returned, best first; at most beam_size, unless `sampling`, which
        draws that many independent samples.
    length_penalty: the exponent alpha of the normaliser; 0 ranks by the plain sum.
    length_penalty_kind: "power" divides by length**alpha; "gnmt" by ((5 + length) / 6)**alpha
        (Wu et al. 2016, arXiv 1609.08144, section 7).
    patience: a sentence stops when round(beam_size * patience) hypotheses have finished
        (Kasai et al. 2022, arXiv 2204.05424).
    min_length: EOS is banned, before the softmax, in this many first steps; so this one counts the
        tokens before EOS, as CTranslate2 does.
    max_length: None means min(the model's limit, 2 * source length + 20).
    sampling: draw from the model instead of searching, from the `top_k` likeliest tokens (0: all)
        within the smallest set whose mass reaches `top_p`, at `temperature`. The draws are keyed by
        (seed, index of the input, index of the sample): they do not depend on the batch.
    """

    beam_size: int = 4
    num_hypotheses: int = 1
    length_penalty: float = 1.0
    length_penalty_kind: LengthPenalty = "power"
    patience: float = 1.0
    min_length: int = 1
    max_length: int | None = None
    sampling: bool = False
    top_k: int = 0
    top_p: float = 1.0
    temperature: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("beam_size", "num_hypotheses"):
            self._require_int(name, 1, MAX_BEAMS)
        for name in ("min_length", "top_k"):
            self._require_int(name, 0, _MAX_LENGTH)
        self._require_int("seed", 0, _MAX_SEED)
        if self.max_length is not None:
            self._require_int("max_length", 1, _MAX_LENGTH)
            if self.min_length > self.max_length:
                raise OptionError(
                    f"min_length {self.min_length} is above max_length {self.max_length}; "
                    "lower the first or raise the second"
                )
        if self.length_penalty_kind not in ("power", "gnmt"):
            raise OptionError(
                f"length_penalty_kind is {shown(self.length_penalty_kind)}; expected 'power' or "
                "'gnmt'"
            )
        self._require_number("length_penalty", low=None)
        if abs(self.length_penalty) > MAX_LENGTH_PENALTY:
            raise OptionError(
                f"length_penalty is {shown(self.length_penalty)}; expected a number from "
                f"{-MAX_LENGTH_PENALTY:g} to {MAX_LENGTH_PENALTY:g}"
            )
        self._require_number("patience", low=0.0)
        if self.patience > MAX_PATIENCE:
            raise OptionError(
                f"patience is {shown(self.patience)}; expected a number above 0 and at most "
                f"{MAX_PATIENCE:g}"
            )
        self._require_number("temperature", low=0.0)
        self._require_number("top_p", low=0.0)
        if self.top_p > 1.0:
            raise OptionError(f"top_p is {self.top_p:g}; expected a number above 0 and at most 1")
        if self.num_hypotheses > self.beam_size and not self.sampling:
            raise OptionError(
                f"num_hypotheses {self.num_hypotheses} is above beam_size {self.beam_size}; "
                "raise beam_size, or use sampling"
            )
        if not self.sampling and (self.top_k, self.top_p, self.temperature) != (0, 1.0, 1.0):
            raise OptionError("top_k, top_p and temperature need sampling=True (--sampling)")
        if not self.sampling and self.max_finished < self.num_hypotheses:
            raise OptionError(
                f"beam_size {self.beam_size} x patience {self.patience} stops after "
                f"{self.max_finished} hypotheses, below num_hypotheses {self.num_hypotheses}; "
                "raise patience"
            )

    def _require_int(self, name: str, low: int, high: int) -> None:
        value = getattr(self, name)
        if not is_whole(value, low, high):
            bound = f"at most {high:,}" if high <= _MAX_LENGTH else f"below 2**{high.bit_length()}"
            raise OptionError(
                f"{name} is {shown(value)}; expected a whole number of at least {low} and {bound}"
            )

    def _require_number(self, name: str, *, low: float | None) -> None:
        value = getattr(self, name)
        if not is_finite(value) or (low is not None and value <= low):
            bound = "" if low is None else f" above {low:g}"
            raise OptionError(f"{name} is {shown(value)}; expected a finite number{bound}")

    @property
    def max_finished(self) -> int:
        """Hypotheses after which a sentence stops: beam_size * patience, halves rounded up."""
        return math.floor(self.beam_size * self.patience + 0.5)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Raises OptionError for a key that is not an option, with the nearest name as a hint."""
        known = [field.name for field in dataclasses.fields(cls)]
        for key in values:
            if key not in known:
                raise OptionError(f"unknown search option {key!r}; {nearest_hint(key, known)}")
        return cls(**values)
