"""The learning rate: a warm-up, Noam's inverse square root, and a last stretch down to zero."""

from __future__ import annotations

import math


def learning_rate(
    update: int, progress: float, *, peak: float, warmup: int, cooldown: float
) -> float:
    """The rate of one update, counted from 1.

    peak * min(update / warmup, sqrt(warmup / update)) is the rule of Vaswani et al. 2017, section
    5.3, with its largest value named instead of implied by d_model. progress, from 0 to 1, says how
    much of the training is done; over its last `cooldown` (a share of the whole) the rate falls
    linearly to zero, as in Haegele et al. 2024, arXiv 2405.18392.
    """
    rate = peak * min(update / warmup, math.sqrt(warmup / update))
    if cooldown > 0 and progress > 1 - cooldown:
        rate *= max(0.0, (1 - progress) / cooldown)
    return rate


def early_end(updates: int, cooldown: float) -> int:
    """After how many updates a training ends whose cool-down begins now, after `updates`: the
    cool-down keeps its share of the whole, below 1, so the rate falls just as it would have."""
    return max(updates, round(updates / (1 - cooldown)))
