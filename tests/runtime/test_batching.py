from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.batching import MAX_SENTENCES, check_batch_tokens, plan_batches
from runtime.errors import OptionError


def test_plan_batches_groups_like_lengths_and_starts_with_the_first() -> None:
    assert plan_batches([3, 20, 4, 19, 3], 40) == [[0, 2, 4], [1, 3]]
    assert plan_batches([20, 3, 19, 4, 3], 40) == [[0, 2], [1, 3, 4]]
    assert plan_batches([], 10) == []


def test_plan_batches_lets_a_long_sentence_stand_alone() -> None:
    assert plan_batches([100, 2, 2], 10) == [[0], [1, 2]]


def test_plan_batches_gives_every_worker_an_equal_share() -> None:
    assert plan_batches([18], 1000, 2) == [[0]]
    assert plan_batches([18, 18], 1000, 2) == [[0], [1]]
    assert plan_batches([10, 10, 10, 10, 10], 1000, 2) == [[0, 1, 2], [3, 4]]
    assert [len(batch) for batch in plan_batches([10] * 100, 400, 2)] == [25] * 4
    assert [len(batch) for batch in plan_batches([20] * 32, 512, 2)] == [16, 16]


def test_plan_batches_leaves_no_small_rest() -> None:
    assert [len(batch) for batch in plan_batches([20] * 32, 512)] == [16, 16]
    assert [len(batch) for batch in plan_batches([10] * 7, 30)] == [3, 3, 1]  # 2 would make 4


@given(st.lists(st.integers(1, 60), max_size=400), st.integers(1, 2000), st.integers(1, 9))
def test_plan_batches_keeps_its_bounds(lengths: list[int], batch_tokens: int, workers: int) -> None:
    batches = plan_batches(lengths, batch_tokens, workers)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        padded = len(batch) * max(lengths[i] for i in batch)
        assert len(batch) == 1 or padded <= batch_tokens
        assert len(batch) <= MAX_SENTENCES
        assert batch == sorted(batch)
    assert batches == sorted(batches)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "8"])
def test_check_batch_tokens(value: object) -> None:
    with pytest.raises(
        OptionError, match=r"batch_tokens is .*expected a whole number of at least 1"
    ):
        check_batch_tokens(value)  # type: ignore[arg-type]
