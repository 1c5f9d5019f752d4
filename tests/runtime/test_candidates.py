from __future__ import annotations

import numpy as np
import pytest

from runtime.backend import Candidates
from runtime.candidates import (
    Beams,
    candidates_from_log_probs,
    choose,
    replace_ended,
    sort_candidates,
    top_indices,
)

EOS = 3


@pytest.mark.parametrize("levels", [2, 5, 1000])
def test_top_indices_is_a_stable_sort(levels: int) -> None:
    generator = np.random.default_rng(levels)
    for size in (1, 2, 7, 100, 1000):
        values = generator.integers(0, levels, size).astype(np.float32)  # many ties
        values[generator.random(size) < 0.1] = -np.inf
        for count in (1, 2, 8, size, size + 5):
            expected = sorted(range(size), key=lambda i: (-values[i], i))[:count]
            assert top_indices(values, count).tolist() == expected


def test_top_indices_puts_nan_first() -> None:
    values = np.array([1, np.nan, 3, np.nan, 2], dtype=np.float32)
    assert top_indices(values, 1).tolist() == [1]
    assert top_indices(values, 3).tolist() == [1, 3, 2]
    assert top_indices(values, 9).tolist() == [1, 3, 2, 4, 0]


def test_candidates_from_log_probs() -> None:
    log_probs = np.array([[[-1, -2, -3, -1], [-9, -0.5, -1, -1e9]]], dtype=np.float32)
    sums = np.array([[-1.0, -1.5]], dtype=np.float32)
    found = candidates_from_log_probs(log_probs, sums)
    # -2.0 three times: beam 0 token 0, beam 0 token 3, beam 1 token 1
    assert found.scores.tolist() == [[-2.0, -2.0, -2.0, -2.5]]
    assert found.token_ids.tolist() == [[0, 3, 1, 2]]
    assert found.parents.tolist() == [[0, 0, 1, 1]]
    assert found.scores.dtype == np.float32
    assert found.token_ids.dtype == found.parents.dtype == np.int32
    assert found.log_probs is log_probs


def test_candidates_from_log_probs_of_the_first_step_come_from_beam_0() -> None:
    log_probs = np.log(np.full((1, 3, 10), 0.1, dtype=np.float32))
    sums = np.array([[0, -np.inf, -np.inf]], dtype=np.float32)
    found = candidates_from_log_probs(log_probs, sums)
    assert found.parents.tolist() == [[0] * 6]
    assert found.token_ids.tolist() == [[0, 1, 2, 3, 4, 5]]


def test_sort_candidates_orders_ties_by_parent_then_token() -> None:
    shuffled = Candidates(
        scores=np.array([[-1, -1, -2, -1, -2, -1]], dtype=np.float32),
        token_ids=np.array([[9, 4, 1, 7, 0, 2]], dtype=np.int32),
        parents=np.array([[1, 0, 2, 0, 2, 2]], dtype=np.int32),
    )
    ranked = sort_candidates(shuffled)
    assert ranked.token_ids.tolist() == [[4, 7, 9, 2, 0, 1]]
    assert ranked.parents.tolist() == [[0, 0, 1, 2, 2, 2]]
    assert ranked.scores.tolist() == [[-1, -1, -1, -1, -2, -2]]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([5, 6, 7, 8, 9, 10], [0, 1, 2]),  # nothing ends
        ([5, EOS, 7, 8, 9, 10], [0, 3, 2]),  # its slot takes rank K
        ([EOS, 6, EOS, 8, EOS, 10], [3, 1, 5]),  # spare EOS are passed over, slots stay in place
        ([EOS, EOS, EOS, 8, 9, 10], [3, 4, 5]),
        ([5, 6, 7, EOS, EOS, EOS], [0, 1, 2]),  # EOS behind rank K neither ends nor goes on
    ],
)
def test_replace_ended(tokens: list[int], expected: list[int]) -> None:
    ranked = Beams(
        np.array([tokens, [5, 6, 7, 8, 9, 10]], dtype=np.int32),
        np.arange(12, dtype=np.int32).reshape(2, 6),
        -np.arange(12, dtype=np.float32).reshape(2, 6),
    )
    going = replace_ended(ranked, EOS)
    assert going.token_ids.tolist() == [[tokens[i] for i in expected], [5, 6, 7]]
    assert going.parents.tolist() == [expected, [6, 7, 8]]
    assert going.scores.tolist() == [[-i for i in expected], [-6, -7, -8]]


def test_what_goes_on_is_a_copy() -> None:
    ranked = Beams(
        np.array([[5, 6]], dtype=np.int32),
        np.array([[0, 0]], dtype=np.int32),
        np.array([[0, -1]], dtype=np.float32),
    )
    for array in replace_ended(ranked, EOS):
        assert not any(np.shares_memory(array, other) for other in ranked)


@pytest.mark.parametrize(
    ("tokens", "scores", "plain"),
    [
        ([5, 6, 7, 8], [-1.0, -2.0, -3.0, -4.0], True),
        ([5, 6, EOS, 8], [-1.0, -2.0, -3.0, -4.0], True),  # EOS behind rank K
        ([5, EOS, 7, 8], [-1.0, -2.0, -3.0, -4.0], False),
        ([5, 6, 7, 8], [-1.0, -2.0, -2.0, -4.0], True),  # a tie, to be put in order
        ([5, 6, 7, 8], [-1.0, -1e9, -2e9, -np.inf], False),  # nothing for the second beam
        ([5, 6, 7, 8], [-1.0, np.nan, np.nan, np.nan], False),
        ([5, 6, 7, 8], [-1.0, -2.0, -3.0, np.nan], True),  # behind rank K
    ],
)
def test_a_plain_step_is_chosen_as_any_other(
    tokens: list[int], scores: list[float], plain: bool
) -> None:
    """The short way where nothing ends gives what the long one gives."""
    candidates = Candidates(
        scores=np.array([scores, [-1, -2, -3, -4]], dtype=np.float32),
        token_ids=np.array([tokens, [9, 8, 7, 6]], dtype=np.int32),
        parents=np.array([[1, 0, 1, 0], [0, 0, 1, 1]], dtype=np.int32),
    )
    choice = choose(candidates, EOS)
    ranked = sort_candidates(candidates)
    assert choice.plain is plain
    for found, expected in (
        (choice.reached, ranked.first(2)),
        (choice.going, replace_ended(ranked, EOS)),
    ):
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
            assert not any(np.shares_memory(ours, other) for other in ranked)
