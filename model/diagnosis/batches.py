"""What a batch must hold: real tokens in every row, masks that say which, targets shifted by one.

`Batch` is model.batching's. A wrong one trains a model that nobody wanted, without an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from model.config import ModelConfig
from model.errors import DataError, TrainingError
from model.training.batching import Batch

NameRows = Callable[[Sequence[int]], str]
"""Some rows of a batch, from 0 -> words for them."""


def rows_of_batch(rows: Sequence[int]) -> str:
    """[3] -> "row 3 of the batch"."""
    more = f" and {len(rows) - 3} more" if len(rows) > 3 else ""
    return f"row{'s' if len(rows) > 1 else ''} {', '.join(map(str, rows[:3]))}{more} of the batch"


def check_batch(batch: Batch, config: ModelConfig, name: NameRows = rows_of_batch) -> None:
    """Raises DataError for a row without a real token, TrainingError for the rest. Takes some
    0.1 ms."""

    def rows(which: Tensor) -> str:  # bool [B] or [B,T]
        return name((which if which.dim() == 1 else which.any(1)).nonzero().flatten().tolist())

    pad_id = config.special_ids.pad_id
    real, present = batch.tgt_out != pad_id, batch.src_ids != pad_id  # [B,T], [B,S]
    for side, empty in (("source", ~present.any(1)), ("target", ~real.any(1))):
        if bool(empty.any()):
            raise DataError(
                f"there is no {side} token, only padding, in {rows(empty)}: attention would see "
                "nothing there, or the loss learn nothing. Probably the corpus has empty lines: "
                "drop them, as model.training.batching.encode_corpus does"
            )
    if not torch.equal(batch.src_mask, present):
        if bool((batch.src_mask & ~present).any()):
            raise TrainingError(
                f"src_mask calls padding a real token in {rows(batch.src_mask & ~present)}: the "
                "source mask was left out, or is that of other lines, and a sentence would depend "
                "on what it is batched with. Make it True where src_ids is a token, False where it "
                "is pad_id"
            )
        raise TrainingError(
            f"src_mask hides real tokens in {rows(~batch.src_mask & present)}: it is inverted, or "
            "that of other lines. Make it True where src_ids is a token, False where it is pad_id"
        )
    _check_shift(batch, real, config.special_ids.decoder_start_id, rows)
    if int(real.sum()) != batch.num_tokens:
        raise TrainingError(
            f"a batch counts {batch.num_tokens} target tokens and holds {int(real.sum())}: the "
            "mean loss of a token would be wrong. Count those that are not pad_id"
        )


def _check_shift(batch: Batch, real: Tensor, start: int, rows: Callable[[Tensor], str]) -> None:
    first = batch.tgt_in[:, 0] != start
    behind = (batch.tgt_in[:, 1:] != batch.tgt_out[:, :-1]) & real[:, 1:]
    if not bool(first.any()) and not bool(behind.any()):
        return
    if torch.equal(batch.tgt_in[real], batch.tgt_out[real].to(batch.tgt_in.dtype)):
        raise TrainingError(
            "tgt_in equals tgt_out: the decoder is shown the very token that it is to predict, "
            "would learn to copy it, and the loss fall to almost nothing at once. The shift is "
            f"missing: put decoder_start_id ({start}) first in tgt_in and tgt_out behind it, "
            "without its last"
        )
    if bool(first.any()):
        raise TrainingError(
            f"tgt_in begins with token {int(batch.tgt_in[first][0, 0])} in {rows(first)}, and a "
            f"translation with decoder_start_id ({start}): shift tgt_out right by one and put the "
            "start id first"
        )
    raise TrainingError(
        f"tgt_in is not tgt_out shifted right by one in {rows(behind)}: the decoder would be shown "
        "other words than those before the one that it is to predict, if not that one itself. Put "
        "the start id first and tgt_out behind it"
    )
