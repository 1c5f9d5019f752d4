"""Which sentences are searched together: of like length, as many as a budget of tokens holds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from runtime.errors import OptionError
from runtime.numbers import is_whole, shown

DEFAULT_BATCH_TOKENS = 512
# Beams and their logits grow with sentences, not with source tokens: a bound for very short lines.
MAX_SENTENCES = 128


def check_batch_tokens(batch_tokens: int) -> None:
    """Raises OptionError unless batch_tokens is a whole number of at least 1."""
    if not is_whole(batch_tokens, 1):
        raise OptionError(
            f"batch_tokens is {shown(batch_tokens)}; expected a whole number of at least 1"
        )


def plan_batches(lengths: Sequence[int], batch_tokens: int, workers: int = 1) -> list[list[int]]:
    """Splits the indices of `lengths` into batches, in the order in which to run them.

    Neighbours in length share a batch, so that little is padded. A batch holds at most batch_tokens
    padded source tokens, or one sentence that is longer than that; fewer where batches, and the
    shares of several workers, would else not be equal. The batch that holds the earliest sentence
    comes first, so that results can be given out early and in order.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    count = -(-len(_cut(lengths, order, batch_tokens)) // workers) * workers
    # The smallest bound that makes no more batches than that: the most equal ones.
    budget = bisect_left(
        range(batch_tokens), True, key=lambda b: len(_cut(lengths, order, b)) <= count
    )
    batches = _cut(lengths, order, budget)
    return sorted((sorted(batch) for batch in batches), key=lambda batch: batch[0])


def _cut(lengths: Sequence[int], order: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """order: indices, longest first."""
    batches: list[list[int]] = []
    longest = 0
    for index in order:
        batch = batches[-1] if batches else None
        if (
            batch is None
            or (len(batch) + 1) * longest > batch_tokens
            or len(batch) == MAX_SENTENCES
        ):
            longest = lengths[index]
            batches.append([index])
        else:
            batch.append(index)
    return batches
