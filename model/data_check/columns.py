"""A few numbers of every line: enough to find duplicates, leaks, odd lengths and slips.

50 bytes a line and side, so that a million pairs take about 100 MB and no text is kept.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from array import array
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from model.data_check.texts import script_of

Ints = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]

MAX_RATIO = 3.0
"""How much longer than the corpus lets expect a side may be."""
_EASED = 10
"""Characters added to both sides, or short lines would have any ratio."""
_MAIN_SCRIPT = 0.9

_NUMBER = re.compile(r"\d+")
_WORD = re.compile(r"[^\W\d_]{4,}")
_STEM = 4
_ENDINGS = (
    ".\u3002\uff0e",
    "?\uff1f\u061f",
    "!\uff01",
    ",\uff0c\u3001;\uff1b:\uff1a",
    "\"'\u201d\u2019\u300d\u00bb)\uff09",
)
_ENDS = {char: place for place, chars in enumerate(_ENDINGS, start=1) for char in chars}


@dataclass(frozen=True, kw_only=True)
class SideColumns:
    """One side of a split as arrays, a value for each line.

    lengths: characters. keys: a hash of the text as the source normalizer leaves it, 0 for none.
    ends: the kind of punctuation at the end, 0 for none. numbers: a hash of the numbers in it, 0
    for none. stems: a set of its words' first letters, a bit each. scripts: indexes of
    script_names, whose first is "".
    """

    lengths: Ints
    keys: Keys
    ends: npt.NDArray[np.int8]
    numbers: Keys
    stems: Keys
    scripts: npt.NDArray[np.int8]
    script_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.lengths)

    def main_script(self) -> str:
        """The one of at least 90% of the lines that have letters; "" where there is none."""
        counts = np.bincount(self.scripts, minlength=len(self.script_names))[1:]
        if not counts.sum() or counts.max() < _MAIN_SCRIPT * counts.sum():
            return ""
        return self.script_names[int(counts.argmax()) + 1]

    def in_another_script(self, main: str) -> Ints:
        """Places of lines that are in a script, and not in `main`; none where main is ""."""
        if not main:
            return np.zeros(0, np.int64)
        own = self.script_names.index(main) if main in self.script_names else -1
        return np.flatnonzero((self.scripts != 0) & (self.scripts != own))


class GrowingSide:
    """Collects the columns of one side."""

    def __init__(self) -> None:
        self._lengths, self._ends, self._scripts = array("i"), array("b"), array("b")
        self._keys, self._numbers, self._stems = array("Q"), array("Q"), array("Q")
        self._names = {"": 0}

    def __len__(self) -> int:
        return len(self._lengths)

    def add(self, text: str, key_text: str) -> None:
        """text: the line; key_text: the same in the form in which equal lines are equal."""
        bare = text.strip()
        self._lengths.append(len(bare))
        self._keys.append(_key(key_text))
        self._ends.append(_ENDS.get(bare[-1:], 0))
        numbers = _NUMBER.findall(bare)
        self._numbers.append(_key(" ".join(sorted(numbers))) if numbers else 0)
        stems = 0
        for word in _WORD.findall(bare):
            stems |= 1 << (zlib.crc32(word[:_STEM].lower().encode("utf-8", "replace")) & 63)
        self._stems.append(stems)
        self._scripts.append(self._script(bare))

    def _script(self, text: str) -> int:
        name = script_of(text)
        if name not in self._names and len(self._names) > 100:
            return 0
        return self._names.setdefault(name, len(self._names))

    def finish(self) -> SideColumns:
        return SideColumns(
            lengths=np.array(self._lengths, dtype=np.int64),
            keys=np.array(self._keys, dtype=np.uint64),
            ends=np.array(self._ends, dtype=np.int8),
            numbers=np.array(self._numbers, dtype=np.uint64),
            stems=np.array(self._stems, dtype=np.uint64),
            scripts=np.array(self._scripts, dtype=np.int8),
            script_names=tuple(self._names),
        )


def _key(text: str) -> int:
    if not text:
        return 0
    digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Both sides of a split. usable: bool, of the lines up to the end of the shorter side: those
    whose text can be read and is there on both sides."""

    source: SideColumns
    target: SideColumns
    usable: npt.NDArray[np.bool_]

    def pair_keys(self) -> Keys:
        """uint64, one for each pair: equal pairs have equal ones."""
        source, target = self.source.keys[: len(self.usable)], self.target.keys[: len(self.usable)]
        return source * np.uint64(0x9E3779B97F4A7C15) ^ (target >> np.uint64(1))

    def repeated_pairs(self) -> tuple[Ints, Ints]:
        """(places of pairs that were there before, places where each of them was first)."""
        return _repeats(self.pair_keys(), np.flatnonzero(self.usable))

    def other_targets(self) -> tuple[Ints, Ints]:
        """(places of sources that were there before with another target, where they were first).

        The repeats of a pair are not among them.
        """
        again, _ = self.repeated_pairs()
        places = np.setdiff1d(np.flatnonzero(self.usable), again, assume_unique=True)
        return _repeats(self.source.keys, places)

    def shared_with(self, other: Columns, *, pairs: bool) -> tuple[Ints, Ints]:
        """(places whose pair, or source, is in the other split, the first of its places there)."""
        mine = self.pair_keys() if pairs else self.source.keys[: len(self.usable)]
        theirs = other.pair_keys() if pairs else other.source.keys[: len(other.usable)]
        their_places = np.flatnonzero(other.usable)
        values, first = np.unique(theirs[their_places], return_index=True)
        places = np.flatnonzero(self.usable & np.isin(mine, values))
        return places, their_places[first[np.searchsorted(values, mine[places])]]

    def odd_ratios(self) -> tuple[Ints, npt.NDArray[np.float64]]:
        """(places of pairs of which one side is more than MAX_RATIO times as long as the corpus
        lets expect, how many times: below 1 where the target is the short one)."""
        places = np.flatnonzero(self.usable)
        if not len(places):
            return places, np.zeros(0)
        source, target = self.source.lengths[places], self.target.lengths[places]
        usual = float(np.median(target / np.maximum(source, 1)))
        ratios = (target / max(usual, 1e-9) + _EASED) / (source + _EASED)
        odd = (ratios > MAX_RATIO) | (ratios < 1 / MAX_RATIO)
        return places[odd], ratios[odd]


def _repeats(keys: Keys, places: Ints) -> tuple[Ints, Ints]:
    """Of these places: (those whose key stood at an earlier one, the earliest of that key)."""
    _, first, inverse = np.unique(keys[places], return_index=True, return_inverse=True)
    firsts = first[inverse.reshape(-1)]
    again = np.flatnonzero(firsts != np.arange(len(places)))
    return places[again], places[firsts[again]]
