"""Batches that a backend can't take together are searched apart, with the same results."""

from __future__ import annotations

import numpy as np
import pytest
from support.fake_backend import SPECIAL_IDS, FakeBackend, FakeState, random_logits

from runtime.backend import BoolArray, IntArray
from runtime.errors import BackendError, SplitBatchError
from runtime.options import SearchOptions
from runtime.search import search

SOURCES = [[5, 3], [7, 8, 3], [9, 3], [4, 4, 4, 3], [6, 3]]


class Picky(FakeBackend):
    """Takes so many sentences at once, and none of different lengths."""

    def __init__(self, most: int) -> None:
        super().__init__(random_logits(12), 12)
        self.most = most

    def begin(
        self, src_ids: IntArray, src_mask: BoolArray, beam_size: int, max_length: int
    ) -> FakeState:
        lengths = src_mask.sum(axis=1)
        if len(set(lengths.tolist())) > 1:
            groups = [np.flatnonzero(lengths == n).tolist() for n in sorted(set(lengths.tolist()))]
            raise SplitBatchError(groups, "lengths differ")
        if len(src_ids) > self.most:
            groups = [list(range(self.most)), list(range(self.most, len(src_ids)))]
            raise SplitBatchError(groups, f"{len(src_ids)} sentences")
        return super().begin(src_ids, src_mask, beam_size, max_length)


@pytest.mark.parametrize(
    "options",
    [
        SearchOptions(beam_size=3, num_hypotheses=3, max_length=8),
        SearchOptions(sampling=True, num_hypotheses=4, seed=3, max_length=8),
    ],
    ids=["beam", "sampling"],
)
@pytest.mark.parametrize("keys", [None, [70, 10, 30, 11, 5]])
def test_groups_are_searched_apart(options: SearchOptions, keys: list[int] | None) -> None:
    """Sampling draws by the input, not by its place in a group."""
    whole = FakeBackend(random_logits(12), 12)
    expected = search(whole, SOURCES, options, SPECIAL_IDS, input_indices=keys)
    backend = Picky(2)
    assert search(backend, SOURCES, options, SPECIAL_IDS, input_indices=keys) == expected
    assert sorted(backend.begun) == [(1, 2), (1, 3), (1, 4), (2, 2)]
    ended = search(whole, SOURCES, options, SPECIAL_IDS, input_indices=keys, all_ended=True)
    assert ended == search(
        backend, SOURCES, options, SPECIAL_IDS, input_indices=keys, all_ended=True
    )


def test_the_error_says_how_many_fit() -> None:
    with pytest.raises(BackendError, match="3 sentences; begin with 2 of them or fewer"):
        Picky(2).begin(np.full((3, 1), 3, np.int32), np.ones((3, 1), np.bool_), 1, 4)
