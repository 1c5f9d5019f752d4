"""Whether two systems' translations of one test set differ by more than its choice of lines.

Paired bootstrap resampling (Koehn 2004, section 4): both are scored on the same resamples.
"""

from __future__ import annotations

from collections.abc import Sequence

from model.errors import DataError
from model.evaluation.bootstrap import (
    RESAMPLES,
    PairedDifference,
    check_resamples,
    paired_difference,
    resampled_scores,
    score,
    sentence_counts,
)
from model.evaluation.metrics import METRIC_NAMES, References, check_aligned, listed, metrics_for
from runtime.errors import OptionError


def compare(
    translations: Sequence[str],
    baseline: Sequence[str],
    references: References,
    *,
    target_language: str = "",
    resamples: int = RESAMPLES,
    names: Sequence[str] = METRIC_NAMES,
) -> dict[str, PairedDifference]:
    """How translations [n] score less how baseline [n] does, for each metric that is named.

    references, target_language: as of model.evaluation.metrics.evaluate. Raises DataError for lists
    that differ in length, OptionError for too few resamples, and as make_metrics does.
    """
    check_aligned(translations, references)
    if len(baseline) != len(translations):
        raise DataError(
            f"{len(translations):,} lines but {len(baseline):,} of the baseline; expected its "
            "translations of the same lines"
        )
    check_paired_resamples(resamples)
    several = listed(references)
    metrics = [metrics_for(several, target_language)[METRIC_NAMES.index(name)] for name in names]
    parts = [
        (metric, sentence_counts(metric, lines, several))
        for metric in metrics
        for lines in (translations, baseline)
    ]
    resampled = resampled_scores(parts, resamples)
    totals = [score(*part) for part in parts]
    return {
        name: paired_difference(
            totals[place] - totals[place + 1], resampled[place], resampled[place + 1]
        )
        for name, place in zip(names, range(0, len(parts), 2), strict=True)
    }


def check_paired_resamples(resamples: int) -> None:
    """Raises OptionError unless there are enough of them."""
    check_resamples(resamples)
    if resamples == 0:
        raise OptionError(
            "0 bootstrap resamples can't tell two systems apart; leave --bootstrap out, or the "
            "baseline"
        )
