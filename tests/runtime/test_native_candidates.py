"""The kernels of runtime/native that choose continuations, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")

from support.native_calls import (
    CLOSE,
    QUIET_NANS,
    SCALE,
    ZERO_POINT,
    Array,
    call,
    floats,
    needs_kernels,
    needs_vnni,
)

from runtime.candidates import candidates_from_log_probs


def best(logits: Array, sums: Array, wanted: int) -> tuple[Array, Array, Array]:
    count = np.array([wanted], dtype=np.int64)
    scores, tokens, parents = call("BestCandidates", [logits, sums[:, :, None], count])
    return scores, tokens, parents


@needs_kernels
@pytest.mark.parametrize("beams", [1, 2, 5, 16])
@pytest.mark.parametrize("vocabulary", [64, 128, 448])
@pytest.mark.parametrize("first", [True, False])
def test_best_candidates(beams: int, vocabulary: int, first: bool) -> None:
    """first: only one beam is there yet; what continues the others is at -inf, and equal."""
    rng = np.random.default_rng(beams)
    logits = rng.normal(0, 4, (3, beams, vocabulary)).astype(np.float32)
    logits[:, :, 7] = -1e9  # banned
    sums = rng.normal(-5, 2, (3, beams)).astype(np.float32)
    if first:
        sums[:, 1:] = -np.inf
    exact = logits.astype(np.float64)
    log_probs = exact - exact.max(-1, keepdims=True)
    log_probs -= np.log(np.exp(log_probs).sum(-1, keepdims=True))
    expected = candidates_from_log_probs(log_probs.astype(np.float32), sums)
    scores, tokens, parents = best(logits, sums, 2 * beams)
    np.testing.assert_allclose(scores, expected.scores, **CLOSE)
    np.testing.assert_array_equal(tokens, expected.token_ids)
    np.testing.assert_array_equal(parents, expected.parents)


@needs_kernels
def test_among_equal_candidates_the_earlier_beam_and_token_comes_first() -> None:
    logits = np.zeros((1, 2, 192), dtype=np.float32)
    logits[0, 0, [70, 150]] = logits[0, 1, [5, 150]] = 3
    scores, tokens, parents = best(logits, np.zeros((1, 2), dtype=np.float32), 6)
    assert list(zip(parents[0].tolist(), tokens[0].tolist(), strict=True)) == [
        (0, 70), (0, 150), (1, 5), (1, 150), (0, 0), (0, 1)
    ]  # fmt: skip
    assert len(set(scores[0, :4].tolist())) == 1


LARGE = [1e4, -1e9, -2e38, 3e38]


@needs_kernels
@pytest.mark.parametrize("size", LARGE)
def test_large_logits_are_told_apart_as_small_ones_are(size: float) -> None:
    """Those below are too far away to matter; equal ones share the probability."""
    logits = np.full((1, 1, 128), size, dtype=np.float32)
    logits[0, 0, 64:] = size - 0.01 * abs(size)
    scores, tokens, _ = best(logits, floats(1, 1), 2)
    np.testing.assert_allclose(scores, [[-np.log(64)] * 2], **CLOSE)
    assert tokens.tolist() == [[0, 1]]


@needs_vnni
@pytest.mark.parametrize("size", LARGE)
def test_so_they_are_where_they_are_made(size: float) -> None:
    inputs, _ = continuations_inputs(1, 1, 16, 128)
    inputs[0][:] = 128  # rows of zeros, so that logits are the biases
    inputs[5][:] = size
    inputs[5][64:] = size - 0.01 * abs(size)
    inputs[6][:] = 0
    scores, tokens, *_ = call("BestContinuations", inputs)
    np.testing.assert_allclose(scores, [[-np.log(64)] * 2], **CLOSE)
    assert tokens.tolist() == [[0, 1]]


@needs_kernels
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_no_numbers_still_give_continuations(value: float) -> None:
    logits = np.full((2, 2, 128), value, dtype=np.float32)
    scores, tokens, parents = best(logits, np.zeros((2, 2), dtype=np.float32), 4)
    assert np.isnan(scores).all()
    assert ((tokens >= 0) & (tokens < 128)).all()
    assert ((parents >= 0) & (parents < 2)).all()


@needs_kernels
@pytest.mark.parametrize("value", [*QUIET_NANS.view(np.float32), np.float32(np.inf)])
def test_one_logit_that_is_no_number_is_seen(value: np.float32) -> None:
    """In one beam of one sentence: all of that sentence's scores say so, the others' don't."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(3, 4, 256)).astype(np.float32)
    logits[1, 2, 77] = value
    sums = rng.normal(size=(3, 4)).astype(np.float32)
    scores, tokens, parents = best(logits, sums, 8)
    assert np.isnan(scores).all(axis=1).tolist() == [False, True, False]
    assert not np.isnan(scores[[0, 2]]).any()
    assert ((tokens >= 0) & (tokens < 256)).all()
    assert ((parents >= 0) & (parents < 4)).all()
    logits[1, 2, 77], sums[1, 2] = 0, np.nan
    assert np.isnan(best(logits, sums, 8)[0]).all(axis=1).tolist() == [False, True, False]


def continuations_inputs(
    sentences: int, beams: int, width: int, vocabulary: int, *, asked: int = 0
) -> tuple[list[Array], Array]:
    """The operator's inputs, and the logits [B,K,V] that it is to make of them."""
    rng = np.random.default_rng(vocabulary + width)
    x = rng.integers(0, 256, (sentences * beams, 1, width)).astype(np.uint8)
    weight = rng.integers(-128, 128, (vocabulary, width)).astype(np.int8)
    scales = rng.uniform(0.2, 1, vocabulary).astype(np.float32) / np.float32(width**0.5 * 60)
    bias = rng.normal(size=vocabulary).astype(np.float32)
    bias[7] = -1e9  # banned
    packed = (weight.view(np.uint8) ^ 128).reshape(-1, 16, width // 4, 4).transpose(0, 2, 1, 3)
    sums = rng.normal(-5, 2, (sentences, beams, 1)).astype(np.float32)
    whole = (x[:, 0].astype(np.int64) - 128) @ weight.astype(np.int64).T
    logits = whole * scales.astype(np.float64) * float(SCALE) + bias
    counts = (np.array([2 * beams]), np.array([asked]))
    inputs = [x, packed, SCALE, scales, ZERO_POINT, bias, sums, *counts, weight]
    return inputs, logits.reshape(sentences, beams, vocabulary)


@needs_vnni
@pytest.mark.parametrize(
    ("sentences", "beams"), [(1, 1), (1, 2), (3, 1), (1, 4), (1, 5), (2, 3), (7, 4), (2, 16)]
)
@pytest.mark.parametrize(("width", "vocabulary"), [(4, 64), (20, 128), (64, 2048), (64, 4480)])
def test_best_continuations(sentences: int, beams: int, width: int, vocabulary: int) -> None:
    """Rows in all that a tile leaves over; a vocabulary of one part, less, or several."""
    asked = sentences // 2
    inputs, logits = continuations_inputs(sentences, beams, width, vocabulary, asked=asked)
    expected = logits - logits.max(-1, keepdims=True)
    expected -= np.log(np.exp(expected).sum(-1, keepdims=True))
    sums = inputs[6][:, :, 0]
    scores, tokens, parents, log_probs = call("BestContinuations", inputs)
    best_ones = candidates_from_log_probs(expected.astype(np.float32), sums)
    np.testing.assert_allclose(scores, best_ones.scores, **CLOSE)
    np.testing.assert_array_equal(tokens, best_ones.token_ids)
    np.testing.assert_array_equal(parents, best_ones.parents)
    assert log_probs.shape == (asked, beams, vocabulary)
    np.testing.assert_allclose(log_probs, expected[:asked], **CLOSE)
    # The very scores: candidates are chosen among these log-probabilities.
    for sentence in range(asked):
        picked = log_probs[sentence, parents[sentence], tokens[sentence]]
        np.testing.assert_array_equal(scores[sentence], picked + sums[sentence, parents[sentence]])


@needs_vnni
def test_continuations_depend_on_neither_batch_nor_threads() -> None:
    inputs, _ = continuations_inputs(5, 4, 128, 6400, asked=5)
    found = call("BestContinuations", inputs)
    for one, three in zip(found, call("BestContinuations", inputs, threads=3), strict=True):
        np.testing.assert_array_equal(one, three)
    alone = list(inputs)
    alone[0], alone[6], alone[8] = inputs[0][8:12], inputs[6][2:3], np.array([1])
    for one, whole in zip(call("BestContinuations", alone), found, strict=True):
        np.testing.assert_array_equal(one[0], whole[2])


@needs_vnni
@pytest.mark.parametrize(
    ("place", "value", "where"),
    [(3, np.nan, 77), (5, np.nan, 77), (5, np.inf, 77), (5, -np.inf, slice(None))],
)
def test_a_weight_that_is_no_number_is_seen(
    place: int, value: float, where: int | slice[None, None, None]
) -> None:
    """place: the entries' scales, or their biases."""
    inputs, _ = continuations_inputs(2, 2, 16, 128)
    inputs[place][where] = value
    scores, tokens, parents, _ = call("BestContinuations", inputs)
    assert np.isnan(scores).all() or (place == 3 and value == np.inf)
    assert ((tokens >= 0) & (tokens < 128)).all()
    assert ((parents >= 0) & (parents < 2)).all()


@needs_vnni
def test_no_rows_have_no_continuations() -> None:
    inputs, _ = continuations_inputs(0, 2, 16, 128)
    found = call("BestContinuations", inputs)
    assert [array.shape for array in found] == [(0, 4)] * 3 + [(0, 2, 128)]


@needs_kernels
def test_threads_change_no_bit() -> None:
    """So large that the work is shared out."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(8, 4, 6400)).astype(np.float32)
    sums = rng.normal(size=(8, 4, 1)).astype(np.float32)
    count = np.array([8], dtype=np.int64)
    found = [call("BestCandidates", [logits, sums, count], threads=n) for n in (1, 3)]
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


@needs_kernels
def test_nothing_in_gives_nothing() -> None:
    found = call("BestCandidates", [floats(0, 2, 64), floats(0, 2, 1), np.array([4])])
    assert [array.shape for array in found] == [(0, 4)] * 3


@needs_kernels
@pytest.mark.parametrize(
    ("name", "inputs", "text"),
    [
        # Empty, and of one dimension more.
        (
            "BestCandidates",
            [floats(1, 1, 64), floats(1, 1, 0), np.array([2])],
            "sum_log_probs",
        ),
        (
            "BestCandidates",
            [floats(1, 1, 65), floats(1, 1, 1), np.array([2])],
            "a multiple of 64",
        ),
        (
            "BestCandidates",
            [floats(1, 1, 64), floats(1, 1, 1), np.array([65])],
            "no more candidates than continuations",
        ),
    ],
)
def test_what_does_not_fit_is_an_error(name: str, inputs: list[Array], text: str) -> None:
    """And no read or write outside a tensor."""
    with pytest.raises(Exception, match=f"leanseq's {name} expected .*{text}"):
        call(name, inputs)


def _continuations_with(place: int, array: Array) -> list[Array]:
    inputs, _ = continuations_inputs(2, 2, 16, 128)
    inputs[place] = array
    return inputs


@needs_vnni
@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        (_continuations_with(0, np.zeros((3, 1, 16), np.uint8)), "as many rows"),
        (_continuations_with(0, np.zeros((4, 1, 20), np.uint8)), "their width"),
        (_continuations_with(1, np.zeros((8, 4, 8, 8), np.uint8)), "16 entries and 4 places"),
        (_continuations_with(1, np.zeros((0, 4, 16, 4), np.uint8)), "for each entry"),
        (_continuations_with(3, floats(127)), "for each entry"),
        (_continuations_with(4, np.array(127, np.uint8)), "zero point to be 128"),
        (_continuations_with(5, floats(1)), "for each entry"),
        (_continuations_with(6, floats(2, 2)), "sum_log_probs"),
        (_continuations_with(7, np.array([257])), "no more candidates than continuations"),
        (_continuations_with(7, np.array([0])), "no more candidates than continuations"),
        (_continuations_with(8, np.array([3])), "of no more sentences than there are"),
        (_continuations_with(8, np.array([-1])), "of no more sentences than there are"),
    ],
)
def test_continuations_that_do_not_fit_are_an_error(inputs: list[Array], text: str) -> None:
    with pytest.raises(Exception, match=f"leanseq's BestContinuations expected .*{text}"):
        call("BestContinuations", inputs)
