"""Batches with one thing wrong, made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.tiny_batches import random_batch
from support.tiny_model import tiny_config

from model.diagnosis.batches import check_batch, rows_of_batch
from model.errors import DataError, TrainingError
from model.training.batching import Batch

CONFIG = tiny_config()


@pytest.fixture
def batch() -> Batch:
    batch = random_batch(CONFIG)
    assert not batch.src_mask.all()  # some row is padded
    assert (batch.tgt_out == 0).any()
    return batch


def with_row(tensor: torch.Tensor, row: int, value: object) -> torch.Tensor:
    tensor = tensor.clone()
    tensor[row] = value
    return tensor


def test_a_batch_of_the_corpus_is_right(batch: Batch) -> None:
    check_batch(batch, CONFIG)


def test_a_source_of_padding_alone(batch: Batch) -> None:
    batch = replace(
        batch,
        src_ids=with_row(batch.src_ids, 2, 0),
        src_mask=with_row(batch.src_mask, 2, False),
    )
    with pytest.raises(
        DataError,
        match=r"no source token, only padding, in row 2 of the batch: .*"
        "Probably the corpus has empty lines",
    ):
        check_batch(batch, CONFIG)


def test_a_target_of_padding_alone(batch: Batch) -> None:
    empty = int((batch.tgt_out[4] != 0).sum())
    batch = replace(
        batch, tgt_out=with_row(batch.tgt_out, 4, 0), num_tokens=batch.num_tokens - empty
    )
    with pytest.raises(DataError, match="no target token, only padding, in row 4 of the batch"):
        check_batch(batch, CONFIG)


def test_a_source_mask_left_out(batch: Batch) -> None:
    batch = replace(batch, src_mask=torch.ones_like(batch.src_mask))
    with pytest.raises(
        TrainingError,
        match=r"calls padding a real token in rows .* source mask was "
        "left out",
    ):
        check_batch(batch, CONFIG)


def test_an_inverted_source_mask(batch: Batch) -> None:
    full = int(batch.src_mask.all(1).nonzero()[0])
    batch = replace(batch, src_mask=with_row(batch.src_mask, full, False))
    with pytest.raises(
        TrainingError, match=f"hides real tokens in row {full} of the batch: it is inv"
    ):
        check_batch(batch, CONFIG)


def test_a_shift_left_out(batch: Batch) -> None:
    batch = replace(batch, tgt_in=batch.tgt_out.int())
    with pytest.raises(
        TrainingError,
        match=r"tgt_in equals tgt_out: .* The shift is missing: put "
        r"decoder_start_id \(2\) first",
    ):
        check_batch(batch, CONFIG)


def test_another_start(batch: Batch) -> None:
    tgt_in = batch.tgt_in.clone()
    tgt_in[3, 0] = 9
    with pytest.raises(
        TrainingError, match=r"begins with token 9 in row 3 of the batch, and a trans"
    ):
        check_batch(replace(batch, tgt_in=tgt_in), CONFIG)


def test_a_shift_the_wrong_way(batch: Batch) -> None:
    tgt_in = batch.tgt_out.roll(-1, 1).int()
    tgt_in[:, 0] = 2
    with pytest.raises(
        TrainingError, match="not tgt_out shifted right by one in rows 0, 1, 2 and 3 m"
    ):
        check_batch(replace(batch, tgt_in=tgt_in), CONFIG)


def test_tokens_counted_wrong(batch: Batch) -> None:
    with pytest.raises(TrainingError, match=f"counts 7 target tokens and holds {batch.num_tokens}"):
        check_batch(replace(batch, num_tokens=7), CONFIG)


def test_rows_are_named_by_whoever_knows_them(batch: Batch) -> None:
    batch = replace(batch, src_ids=with_row(batch.src_ids, 2, 0))
    with pytest.raises(DataError, match=r"in line 102: "):
        check_batch(batch, CONFIG, lambda rows: f"line {100 + rows[0]}")
    assert rows_of_batch([3]) == "row 3 of the batch"
    assert rows_of_batch([3, 5]) == "rows 3, 5 of the batch"
    assert rows_of_batch([3, 5, 6, 8]) == "rows 3, 5, 6 and 1 more of the batch"
