"""How the time of a search grows with the number of steps, and with the number of beams.

One line at a time, one thread; the number of steps is forced. What was measured is taken apart into
terms that grow with the 0th, 1st, 2nd and 3rd power, none below 0: a step costs the same whatever
came before it (1st power of the length), attends to all tokens so far (2nd), and nothing should
grow faster; beams should cost in proportion (1st power).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.peers.settings import Setting
from benchmarks.peers.worker import Worker
from runtime.options import SearchOptions

LENGTHS = (8, 16, 32, 64, 96, 128)
BEAMS = (1, 2, 4, 8, 16)
STEPS_FOR_BEAMS = 24
BEAM_FOR_LENGTHS = 4
LENGTH_POWERS = (0, 1, 2, 3)
BEAM_POWERS = (0, 1, 2)


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Median milliseconds of a line at each size, and the fitted terms: power -> milliseconds that
    it takes at the largest size."""

    sizes: tuple[int, ...]
    ms: tuple[float, ...]
    terms: dict[int, float]

    @property
    def fastest_share(self) -> float:
        """Of the time at the largest size: what the highest power that was tried takes."""
        return self.terms[max(self.terms)] / max(sum(self.terms.values()), 1e-12)

    def fitted(self, size: float) -> float:
        """Milliseconds by the terms."""
        return sum(ms * (size / self.sizes[-1]) ** power for power, ms in self.terms.items())

    def to_json(self) -> dict[str, Any]:
        return {
            "sizes": list(self.sizes),
            "ms": list(self.ms),
            "terms": {str(power): ms for power, ms in self.terms.items()},
            "fastest_share": self.fastest_share,
        }


def measure_cost(
    workers: Mapping[str, Worker],
    settings: Mapping[str, Setting],
    lines: Sequence[str],
    defaults: SearchOptions,
    max_target: int | None,
    rounds: int,
) -> dict[str, Any]:
    """{"lengths": {subject: Curve}, "beams": {subject: Curve}}, as JSON; all in turns."""
    lengths = [n for n in LENGTHS if max_target is None or n <= max_target]
    by_length = [(n, _options(defaults, BEAM_FOR_LENGTHS, n)) for n in lengths]
    steps = min(STEPS_FOR_BEAMS, lengths[-1])
    by_beam = [(beams, _options(defaults, beams, steps)) for beams in BEAMS]
    return {
        "lengths": _curves(workers, settings, lines, by_length, rounds, LENGTH_POWERS),
        "beams": _curves(workers, settings, lines, by_beam, rounds, BEAM_POWERS),
        "beam_for_lengths": BEAM_FOR_LENGTHS,
        "steps_for_beams": steps,
    }


def fit_terms(
    sizes: Sequence[float], values: Sequence[float], powers: Sequence[int]
) -> dict[int, float]:
    """Least squares of the relative errors, with no term below 0; power -> the term at the largest
    size. Of all sets of powers the best whose terms come out positive."""
    x = np.asarray(sizes, dtype=np.float64) / max(sizes)
    y = np.asarray(values, dtype=np.float64)
    best: tuple[float, dict[int, float]] = (np.inf, dict.fromkeys(powers, 0.0))
    for count in range(1, len(powers) + 1):
        for chosen in itertools.combinations(powers, count):
            columns = np.stack([x**power for power in chosen], axis=1) / y[:, None]
            terms, *_ = np.linalg.lstsq(columns, np.ones(len(y)), rcond=None)
            error = float(np.square(columns @ terms - 1).sum())
            if (terms >= 0).all() and error < best[0]:
                found = dict.fromkeys(powers, 0.0)
                found |= dict(zip(chosen, map(float, terms), strict=True))
                best = error, found
    return best[1]


def _options(defaults: SearchOptions, beam_size: int, steps: int) -> SearchOptions:
    changes = {
        "beam_size": beam_size,
        "num_hypotheses": 1,
        "min_length": steps,
        "max_length": steps,
    }
    return SearchOptions.from_json({**defaults.to_json(), **changes})


def _curves(
    workers: Mapping[str, Worker],
    settings: Mapping[str, Setting],
    lines: Sequence[str],
    points: Sequence[tuple[int, SearchOptions]],
    rounds: int,
    powers: Sequence[int],
) -> dict[str, Any]:
    seconds: npt.NDArray[np.float64] = np.zeros((len(workers), len(points), rounds, len(lines)))
    order = list(enumerate(workers.items()))
    for round_index in range(-1, rounds):  # the first is a warm-up
        for place, (_, options) in enumerate(points):
            for number, line in enumerate(lines):
                for index, (name, worker) in order:
                    timed = worker.translate([line], options, settings.get(name))
                    if round_index >= 0:
                        seconds[index, place, round_index, number] = timed.seconds
                order.reverse()
    sizes = [size for size, _ in points]
    curves = {}
    for index, name in enumerate(workers):
        # Of each line its quickest round: a pause of the machine would pass for a term.
        ms = (1000 * np.median(seconds[index].min(axis=1), axis=1)).tolist()
        curve = Curve(sizes=tuple(sizes), ms=tuple(ms), terms=fit_terms(sizes, ms, powers))
        curves[name] = curve.to_json()
    return curves
