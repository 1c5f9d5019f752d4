"""Bootstrap resampling: how far a score, or the difference of two, moves with a test set's lines.

A metric such as BLEU is computed from sums over the sentences of a few counts (matched n-grams,
lengths). So the counts are taken once, and a resample is a draw of sentences whose counts are added
up. The draws are those of sacrebleu with its default seed, so intervals equal sacrebleu's own.

Koehn 2004, "Statistical significance tests for machine translation evaluation", sections 3 and 4.
Letters: n sentences, k counts of a metric, R resamples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.errors import OptionError

FloatArray = npt.NDArray[np.float64]

SEED = 12345
"""sacrebleu's, which its signature names."""
RESAMPLES = 1000
MIN_RESAMPLES = 40
"""With fewer the outer 2.5% on either side hold not one resample."""

_DRAWS_AT_ONCE = 2_000_000


@dataclass(frozen=True, kw_only=True)
class Interval:
    """95% of the resampled scores lie from low to high. mean: of the resampled scores."""

    mean: float
    low: float
    high: float
    resamples: int


@dataclass(frozen=True, kw_only=True)
class PairedDifference:
    """How two systems differ on one test set: the score of ours less that of the baseline.

    low, high: 95% of the differences on resamples lie between. p_value: two-sided; twice the share
    of resamples in which the difference is 0 or has the other sign. 1 for systems that say the
    same.
    """

    difference: float
    low: float
    high: float
    p_value: float
    resamples: int
    seed: int = SEED

    @property
    def text(self) -> str:
        """Such as "+0.52 (95%: +0.10 to +0.95, p 0.014)"."""
        difference, low, high = (_signed(v) for v in (self.difference, self.low, self.high))
        digits = 3 if self.p_value < 0.1 else 2
        return f"{difference} (95%: {low} to {high}, p {self.p_value:.{digits}f})"


def check_resamples(resamples: int) -> None:
    """Raises OptionError unless there are none or enough of them."""
    if resamples != 0 and resamples < MIN_RESAMPLES:
        raise OptionError(
            f"{resamples} bootstrap resamples asked for; expected at least {MIN_RESAMPLES}, or 0 "
            f"for none ({RESAMPLES} are usual)"
        )


def sentence_counts(
    metric: Any, translations: Sequence[str], references: Sequence[Sequence[str]]
) -> FloatArray:
    """What sacrebleu's metric counts in each sentence: [n, k], whole numbers.

    references [n]: at least one of each sentence. metric: a sacrebleu metric, whose signature knows
    the number of references from then on.
    """
    most = max(len(several) for several in references)
    streams = [
        [several[place] if place < len(several) else None for several in references]
        for place in range(most)
    ]
    counts = metric._extract_corpus_statistics(list(translations), streams)
    return np.array(counts, dtype=np.float64)


def score(metric: Any, counts: FloatArray) -> float:
    """counts [n, k] -> the metric of all sentences, 0 to 100."""
    return float(metric._compute_score_from_stats(counts.sum(axis=0).tolist()).score)


def resampled_scores(
    parts: Sequence[tuple[Any, FloatArray]], resamples: int = RESAMPLES
) -> list[FloatArray]:
    """(metric, counts [n, k]) of each part -> its scores on the resamples: [R] for each.

    The r-th resample draws the same sentences for every part, so systems can be compared pairwise.
    resamples: what check_resamples accepts, and not 0.
    """
    sums = _resample(np.concatenate([counts for _, counts in parts], axis=1), resamples)
    ends = np.cumsum([counts.shape[1] for _, counts in parts])
    return [
        np.array([metric._compute_score_from_stats(row).score for row in columns.tolist()])
        for (metric, _), columns in zip(parts, np.split(sums, ends[:-1], axis=1), strict=True)
    ]


def _resample(counts: FloatArray, resamples: int) -> FloatArray:
    """counts [n, k] -> their sums over n sentences drawn with replacement, R times: [R, k]."""
    random = np.random.default_rng(SEED)
    size = len(counts)
    step = max(1, _DRAWS_AT_ONCE // size)
    sums = []
    for start in range(0, resamples, step):
        drawn = random.choice(size, size=(min(step, resamples - start), size), replace=True)
        times = np.stack([np.bincount(row, minlength=size) for row in drawn])  # [step, n]
        sums.append(times.astype(np.float64) @ counts)
    return np.concatenate(sums)


def interval(resampled: FloatArray) -> Interval:
    """Of resampled scores [R]."""
    low, high = _middle(resampled)
    return Interval(mean=float(resampled.mean()), low=low, high=high, resamples=len(resampled))


def paired_difference(
    difference: float, ours: FloatArray, baseline: FloatArray
) -> PairedDifference:
    """difference: on the whole test set. ours, baseline [R]: the scores on the same resamples."""
    differences = ours - baseline
    low, high = _middle(differences)
    fewer = min(int((differences <= 0).sum()), int((differences >= 0).sum()))
    # The test set itself counts as one more resample, so that no p-value is 0.
    p_value = min(1.0, 2 * (fewer + 1) / (len(differences) + 1))
    return PairedDifference(
        difference=difference, low=low, high=high, p_value=p_value, resamples=len(differences)
    )


def _middle(values: FloatArray) -> tuple[float, float]:
    """What bounds the middle 95%, by sacrebleu's rule: R // 40 values are left out on each side."""
    ordered = np.sort(values)
    outside = len(ordered) // 40
    return float(ordered[outside]), float(ordered[len(ordered) - outside - 1])


def _signed(value: float) -> str:
    return f"{round(value, 2) + 0.0:+.2f}"  # the sum makes -0.0 a plain 0
