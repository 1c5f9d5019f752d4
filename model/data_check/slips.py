"""Where the lines of two files stop belonging together: one of them lost a line, or has one more.

A pair of lines says a little about whether the one translates the other: their lengths, how they
end, their numbers, words that begin alike. How much it says is counted in the corpus itself: for
each of these the log of how often it is so in aligned pairs over how often in pairs drawn at random
(in nats; Gale and Church 1993, section 3, do it with a model of lengths). Summed over blocks of
lines for shifts of -10 to 10, the best path through the shifts is found by dynamic programming: a
change of shift has to be worth more than all chances to change by luck. The tables are counted
again along the path, so that a corpus that is mostly shifted teaches them as well as another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from model.data_check.columns import SideColumns

MAX_SHIFT = 10
LEAST_LINES = 100
"""In fewer, what is counted says nothing."""

_SHIFTS = tuple(range(-MAX_SHIFT, MAX_SHIFT + 1))
_APART = len(_SHIFTS)  # the state in which no shift fits: it scores 0, as pairs at random do
_BLOCK = 8
_ROUNDS = 3
_DAMPING = 0.8  # the clues depend on each other a little
_LIMIT = 3.0  # nats that one clue of one pair can be worth
_SPREAD = 20.0  # pairs at random that every table starts from
_UNSEEN = 0.1  # times that what no pair at random shows is taken to have been drawn
_MARGIN = 10.0  # nats, beyond the log of the number of chances
_DRAWN = 200_000
_REFINED = 64
_LEAST_RELATED = 0.02
_FIT_APART = 3.0
_TABLE = 1 << 10

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Slip:
    """Lines first..last (from 1) of the source go with lines first + shift .. of the target.

    shift: None where no shift of -MAX_SHIFT to MAX_SHIFT fits. nats: how much better the pairs fit
    so than as they stand.
    """

    first: int
    last: int
    shift: int | None
    nats: float

    def describe(self) -> str:
        """A sentence of where it is, and what probably happened."""
        where = f"lines {self.first:,} to {self.last:,}"
        if self.shift is None:
            return f"{where} of the source go with none of the target's nearby: another order?"
        side = "target" if self.shift < 0 else "source"
        other = "source" if self.shift < 0 else "target"
        count = f"{abs(self.shift)} line{'s' if abs(self.shift) > 1 else ''}"
        return (
            f"from line {self.first:,} on (to {self.last:,}), line N of the source seems to go "
            f"with line N{self.shift:+d} of the target: the {side} lacks {count} before, or the "
            f"{other} has as many too many"
        )


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """slips: where the sides don't go together as they stand. related: False where nothing ties the
    two sides to each other, so that no slip could be found."""

    slips: tuple[Slip, ...] = ()
    related: bool = True


def find_slips(source: SideColumns, target: SideColumns) -> Alignment:
    """How the lines of the two sides, which may differ in number, go together.

    Says nothing of fewer than LEAST_LINES lines. Equal input gives equal output.
    """
    if min(len(source), len(target)) < LEAST_LINES:
        return Alignment()
    clues = _Clues(source, target)
    return _Search(clues).find()


class _Clues:
    """What pairs of lines say, as small whole numbers below _TABLE."""

    def __init__(self, source: SideColumns, target: SideColumns) -> None:
        self.source, self.target = source, target
        bins = max(3, min(16, int(math.sqrt(len(source)) / 6)))
        self.source_bins, self.target_bins = (
            _quantile_bins(side.lengths, bins) for side in (source, target)
        )

    def of(self, i: Ints, j: Ints) -> list[Ints]:
        """The clues of source lines i with target lines j, each int64 [len(i)]."""
        source, target = self.source, self.target
        lengths = self.source_bins[i] * 32 + self.target_bins[j]
        ends = source.ends[i].astype(np.int64) * 8 + target.ends[j]
        x, y = source.numbers[i], target.numbers[j]
        numbers = np.where(x == y, np.where(x == 0, 0, 1), np.where((x == 0) | (y == 0), 2, 3))
        a, b = source.stems[i], target.stems[j]
        possible = np.minimum(np.minimum(_count_bits(a), _count_bits(b)), 7)
        stems = np.minimum(_count_bits(a & b), 7) * 8 + possible
        return [lengths, ends, numbers, stems]

    def lines(self, shift: int) -> Ints:
        """The source lines that have a partner at this shift."""
        return np.arange(max(0, -shift), min(len(self.source), len(self.target) - shift))


class _Search:
    def __init__(self, clues: _Clues) -> None:
        self.clues = clues
        self.n = len(clues.source)
        self.blocks = -(-self.n // _BLOCK)
        self.cost = math.log(self.blocks * len(_SHIFTS)) + _MARGIN
        rng = np.random.default_rng(0)
        drawn = min(_DRAWN, max(20_000, self.n))
        random = clues.of(rng.integers(0, self.n, drawn), rng.integers(0, len(clues.target), drawn))
        self.random = [
            (np.bincount(codes, minlength=_TABLE) + _UNSEEN) / (drawn + _UNSEEN * _TABLE)
            for codes in random
        ]

    def find(self) -> Alignment:
        """Searches, counts again along what was found, and searches again."""
        i = self.clues.lines(shift := max(_SHIFTS, key=self._correlation))
        j = i + shift
        tables = self._count(i, j)
        path = np.zeros(self.blocks, np.int64)
        for _ in range(_ROUNDS):
            path = self._best_path(self._scores(tables))
            i, j = self._pairs(path)
            if not len(i):
                return Alignment(related=False)
            tables = self._count(i, j)
        if not self._related(i, j):
            return Alignment(related=False)
        slips = [
            Slip(first=first + 1, last=end, shift=_shift(state), nats=round(gain, 1))
            for first, end, state in self._segments(path, tables)
            if _SHIFTS[MAX_SHIFT] != _shift(state)
            and (gain := self._gain(tables, first, end, state)) > 0
        ]
        return Alignment(slips=tuple(slips))

    def _correlation(self, shift: int) -> float:
        i = self.clues.lines(shift)
        a, b = self.clues.source_bins[i], self.clues.target_bins[i + shift]
        spread = float(a.std() * b.std())
        return float(((a - a.mean()) * (b - b.mean())).mean()) / spread if spread else 0.0

    def _count(self, i: Ints, j: Ints) -> list[Floats]:
        """Nats for each code of each clue."""
        tables = []
        for codes, random in zip(self.clues.of(i, j), self.random, strict=True):
            aligned = np.bincount(codes, minlength=_TABLE) + _SPREAD * random
            nats = np.log(aligned / (len(i) + _SPREAD) / random)
            tables.append(np.clip(nats, -_LIMIT, _LIMIT) * _DAMPING)
        return tables

    def _nats(self, tables: list[Floats], i: Ints, j: Ints) -> Floats:
        """float64 [len(i)]: how much each pair looks aligned."""
        codes = self.clues.of(i, j)
        nats = np.zeros(len(i))
        for table, code in zip(tables, codes, strict=True):
            nats += table[code]
        return nats

    def _line_nats(self, tables: list[Floats], first: int, end: int, state: int) -> Floats:
        """float64 [end - first]: of source lines first..end-1, in that state; 0 without partner."""
        nats = np.zeros(end - first)
        if state != _APART:
            shift = _SHIFTS[state]
            i = np.arange(max(first, -shift), min(end, len(self.clues.target) - shift))
            nats[i - first] = self._nats(tables, i, i + shift)
        return nats

    def _scores(self, tables: list[Floats]) -> Floats:
        """float64 [blocks, states]."""
        scores = np.zeros((self.blocks, _APART + 1))
        starts = np.arange(0, self.n, _BLOCK)
        for state in range(_APART):
            scores[:, state] = np.add.reduceat(self._line_nats(tables, 0, self.n, state), starts)
        return scores

    def _best_path(self, scores: Floats) -> Ints:
        """The state of each block. To start in another state than "as they stand" costs as much as
        to change, too."""
        best = scores[0] - self.cost
        best[MAX_SHIFT] += self.cost
        came_from = np.zeros(self.blocks, np.int64)
        stayed = np.ones((self.blocks, _APART + 1), np.bool_)
        for block in range(1, self.blocks):
            leader = int(best.argmax())
            changed = best[leader] - self.cost
            came_from[block], stayed[block] = leader, best >= changed
            best = np.maximum(best, changed) + scores[block]
        path = np.zeros(self.blocks, np.int64)
        path[-1] = int(best.argmax())
        for block in range(self.blocks - 1, 0, -1):
            state = path[block]
            path[block - 1] = state if stayed[block, state] else came_from[block]
        return path

    def _pairs(self, path: Ints) -> tuple[Ints, Ints]:
        """The lines that go together along a path, those in no shift left out."""
        states = np.repeat(path, _BLOCK)[: self.n]
        i = np.flatnonzero(states != _APART)
        j = i + states[i] - MAX_SHIFT
        inside = (j >= 0) & (j < len(self.clues.target))
        return i[inside], j[inside]

    def _related(self, i: Ints, j: Ints) -> bool:
        """Whether what is counted in every other hundred of lines tells of the rest."""
        held_out = i // 100 % 2 == 1
        if not held_out.any() or held_out.all():
            return True
        tables = self._count(i[~held_out], j[~held_out])
        return float(self._nats(tables, i[held_out], j[held_out]).mean()) > _LEAST_RELATED

    def _segments(self, path: Ints, tables: list[Floats]) -> list[tuple[int, int, int]]:
        """(first, end, state) of each stretch in one state, cut where the lines say, not blocks."""
        cuts = [0, *(np.flatnonzero(np.diff(path)) + 1).tolist(), self.blocks]
        ends = [min(cut * _BLOCK, self.n) for cut in cuts]
        states = [int(path[cut]) for cut in cuts[:-1]]
        for k in range(1, len(ends) - 1):
            low = max(ends[k - 1], ends[k] - _REFINED)
            high = min(ends[k + 1], ends[k] + _REFINED)
            before = self._line_nats(tables, low, high, states[k - 1])
            after = self._line_nats(tables, low, high, states[k])
            ends[k] = low + int(np.argmax(np.concatenate(([0.0], np.cumsum(before - after)))))
        return list(zip(ends[:-1], ends[1:], states, strict=True))

    def _gain(self, tables: list[Floats], first: int, end: int, state: int) -> float:
        """By how many nats that state beats "as they stand"; 0 where the stretch is no slip.

        A stretch in which no shift fits may only be of another kind than the rest: it is none if
        its pairs fit better as they stand than shuffled.
        """
        as_is = float(self._line_nats(tables, first, end, MAX_SHIFT).sum())
        if state != _APART:
            return float(self._line_nats(tables, first, end, state).sum()) - as_is
        rng = np.random.default_rng(0)
        lines = np.arange(first, min(end, len(self.clues.target)))
        shuffled = [
            float(self._nats(tables, lines, rng.permutation(lines)).sum()) for _ in range(20)
        ]
        spread = float(np.std(shuffled)) or 1.0
        return 0.0 if as_is > np.mean(shuffled) + _FIT_APART * spread else -as_is


def _shift(state: int) -> int | None:
    return None if state == _APART else _SHIFTS[state]


def _quantile_bins(values: Ints, count: int) -> Ints:
    edges = np.unique(np.quantile(values, np.linspace(0, 1, count + 1)[1:-1]))
    return np.searchsorted(edges, values, side="right").astype(np.int64)


_BITS = np.array([value.bit_count() for value in range(1 << 16)], dtype=np.uint8)


def _count_bits(values: npt.NDArray[np.uint64]) -> Ints:
    """Of each value, int64."""
    parts = np.ascontiguousarray(values).view(np.uint16).reshape(len(values), 4)
    counts: Ints = _BITS[parts].sum(axis=1, dtype=np.int64)
    return counts
