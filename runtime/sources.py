"""What ONNX Runtime's backends check and change of a batch of sources before they encode it."""

from __future__ import annotations

import numpy as np

from runtime.backend import BoolArray, IntArray
from runtime.errors import BackendError
from runtime.manifest import ModelSpec

SOURCE_MULTIPLE = 4
"""ONNX Runtime multiplies one row by a matrix four rows of it at a time, and the rest one by one: a
sum over S keeps its order under padding only if S is a multiple of that (seen with beam_size 1)."""


def check_lengths(model: ModelSpec, source_length: int, max_length: int) -> None:
    """Raises BackendError beyond the positions that the model has."""
    for name, found, limit in (
        ("source tokens", source_length, model.max_source),
        ("target tokens (max_length)", max_length, model.max_target),
    ):
        if limit is not None and found > limit:
            raise BackendError(
                f"{found} {name} asked for; the model has positions for {limit}: shorten the "
                "input or lower max_length"
            )


def pad_to_multiple(
    src_ids: IntArray,
    src_mask: BoolArray,
    pad_id: int,
    limit: int | None,
    multiple: int = SOURCE_MULTIPLE,
) -> tuple[IntArray, BoolArray]:
    """Rounds S up to a multiple, within the model's limit; copies src_ids, src_mask [B,S].

    So a row's result doesn't depend on what its batch is padded to.
    """
    length = src_ids.shape[1]
    padding = -length % multiple
    if limit is not None:
        padding = min(padding, limit - length)
    shape = (len(src_ids), length + padding)
    ids, mask = np.full(shape, pad_id, dtype=np.int32), np.zeros(shape, dtype=np.bool_)
    ids[:, :length], mask[:, :length] = src_ids, src_mask
    return ids, mask
