from __future__ import annotations

import logging

import numpy as np
import pytest
from support.tiny_model import tiny_config
from support.tiny_tokenizer import tiny_tokenizer

from model.errors import DataError
from model.training.batching import (
    EncodedCorpus,
    Side,
    corpus_sha256,
    encode_corpus,
    make_batch,
    side_of,
)


def corpus_of(source_lengths: list[int], target_lengths: list[int]) -> EncodedCorpus:
    def side(lengths: list[int]) -> Side:
        counts = np.array(lengths)
        return Side(
            ids=np.arange(counts.sum(), dtype=np.int32) + 4,
            starts=np.cumsum(counts) - counts,
            lengths=counts,
        )

    return EncodedCorpus(
        source=side(source_lengths),
        target=side(target_lengths),
        pair_rows=np.arange(len(source_lengths)),
    )


@pytest.fixture
def corpus() -> EncodedCorpus:
    rng = np.random.default_rng(0)
    return corpus_of(rng.integers(1, 30, 500).tolist(), rng.integers(1, 30, 500).tolist())


def test_batches_hold_every_row_once_within_the_limit(corpus: EncodedCorpus) -> None:
    batches = corpus.batches(200, seed=1, epoch=3)
    assert sorted(np.concatenate(batches).tolist()) == list(range(500))
    for rows in batches:
        for side in (corpus.source, corpus.target):
            assert len(rows) * side.lengths[rows].max() <= 200


def test_batches_follow_from_seed_and_epoch(corpus: EncodedCorpus) -> None:
    def order(seed: int | None, epoch: int) -> list[int]:
        return np.concatenate(corpus.batches(200, seed, epoch)).tolist()

    assert order(1, 2) == order(1, 2)
    assert order(1, 2) != order(1, 3)
    assert order(1, 2) != order(2, 2)
    assert order(None, 1) == order(None, 2)


def test_batches_hold_lines_of_like_length(corpus: EncodedCorpus) -> None:
    longest = np.maximum(corpus.source.lengths, corpus.target.lengths)
    assert np.mean([np.ptp(longest[rows]) for rows in corpus.batches(200, 1)]) < 1


def test_a_line_longer_than_the_limit_is_alone() -> None:
    batches = corpus_of([5, 50, 5, 5], [5, 5, 5, 5]).batches(20, seed=None)
    assert [rows.tolist() for rows in batches] == [[0, 2, 3], [1]]


def test_a_batch_shifts_the_target_by_one() -> None:
    batch = make_batch(corpus_of([2, 3], [3, 1]), np.array([0, 1]), tiny_config())
    assert batch.src_ids.tolist() == [[4, 5, 0], [6, 7, 8]]
    assert batch.src_mask.tolist() == [[True, True, False], [True, True, True]]
    assert batch.tgt_out.tolist() == [[4, 5, 6], [7, 0, 0]]
    assert batch.tgt_in.tolist() == [[2, 4, 5], [2, 7, 0]]
    assert batch.num_tokens == 4


def test_lines_too_long_are_left_out_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    pairs = [("cat " * 100, "cat"), ("the cat", "the cat"), ("cat", "cat " * 100), ("\x01", "cat")]
    with caplog.at_level(logging.WARNING):
        corpus = encode_corpus(pairs, tiny_tokenizer(), tiny_config(), "training")
    assert len(corpus) == 1
    assert corpus.pair_rows.tolist() == [1]
    assert corpus.source.line(0) == tiny_tokenizer().encode_source("the cat")
    assert corpus.source.ids[-1] == corpus.target.ids[-1] == 3
    assert (
        "3 training pairs left out: longer than 64 source or 64 target tokens, or empty"
        in caplog.text
    )


def test_sides_hold_their_lines() -> None:
    side = side_of([[4, 5, 3], [3], [6, 3]])
    assert [side.line(row) for row in range(3)] == [[4, 5, 3], [3], [6, 3]]
    assert side.ids.dtype == np.int32


def test_no_line_short_enough() -> None:
    with pytest.raises(DataError, match=r"no pair of the validation corpus can be used: all 1 are"):
        encode_corpus([("cat " * 100, "a")], tiny_tokenizer(), tiny_config(), "validation")


def test_the_hash_depends_on_text_and_order() -> None:
    pairs = [("a", "b"), ("c", "d")]
    assert corpus_sha256(pairs) == corpus_sha256(list(pairs))
    assert corpus_sha256(pairs) != corpus_sha256(pairs[::-1])
    assert corpus_sha256([("a\udc80", "b")]) != corpus_sha256([("a", "b")])
