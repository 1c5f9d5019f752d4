"""A corpus of random ids, and batches of it, for models of support.tiny_model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from model.config import ModelConfig
from model.training.batching import Batch, EncodedCorpus, Side, make_batch

EOS_ID = 3


def random_corpus(lines: int = 12, seed: int = 0, longest: int = 9) -> EncodedCorpus:
    """Lines of 2 to `longest` ids from 4 to 299, EOS last; the sides are independent."""
    rng = np.random.default_rng(seed)
    source, target = (_side(rng, lines, longest) for _ in range(2))
    return EncodedCorpus(source=source, target=target, pair_rows=np.arange(lines))


def random_batch(config: ModelConfig, rows: Sequence[int] = range(6), seed: int = 0) -> Batch:
    return make_batch(random_corpus(seed=seed), np.array(rows), config)


def _side(rng: np.random.Generator, lines: int, longest: int) -> Side:
    lengths = rng.integers(2, longest + 1, lines)
    ids = rng.integers(4, 300, lengths.sum(), dtype=np.int32)
    ids[np.cumsum(lengths) - 1] = EOS_ID
    return Side(ids=ids, starts=np.cumsum(lengths) - lengths, lengths=lengths)
