"""Pieces of the vocabulary that training never sees: rows of the embedding that nothing teaches."""

from __future__ import annotations

import re

import numpy as np

from model.training.batching import EncodedCorpus
from runtime.tokenizer import Tokenizer

UNSEEN = 0.4
"""The share of unseen pieces that is worth a word. Byte-pair encoding keeps the pieces that stand
only on the way to longer ones: 27% of the embedded corpus's vocabulary, which serves it well."""
_BYTE = re.compile("<0x[0-9A-F]{2}>")


def unseen_pieces(corpus: EncodedCorpus, tokenizer: Tokenizer) -> tuple[int, int]:
    """How many pieces are in no line of either side, and of how many; control and byte pieces,
    which are there for text that nobody foresaw, not counted."""
    counts = np.bincount(
        np.concatenate((corpus.source.ids, corpus.target.ids)), minlength=tokenizer.size
    )
    ordinary = np.array(
        [
            token_id not in tokenizer.special_ids and not _BYTE.fullmatch(piece)
            for token_id, piece in enumerate(tokenizer.pieces(range(tokenizer.size)))
        ]
    )
    return int((counts[: tokenizer.size][ordinary] == 0).sum()), int(ordinary.sum())
