"""The kernels of runtime/native against numpy, operator by operator, and how they are found."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest

pytest.importorskip("onnx")

from onnx import TensorProto, helper

from runtime import native_kernels
from runtime.candidates import candidates_from_log_probs
from runtime.native_kernels import DOMAIN, VERSION, library_path, use_native_kernels, why_not

Array = npt.NDArray[Any]
CLOSE = {"rtol": 2e-5, "atol": 2e-5}
SIZES = [4, 16, 20, 32, 64, 80]
"""Of heads and rows: below, at, above and between whole registers."""

TYPES = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.uint8): TensorProto.UINT8,
    np.dtype(np.int8): TensorProto.INT8,
    np.dtype(np.int32): TensorProto.INT32,
    np.dtype(np.int64): TensorProto.INT64,
}
OUTPUTS = {
    "SelfAttention": [np.float32] * 3,
    "PackedSelfAttention": [np.float32] * 3,
    "CrossAttention": [np.float32],
    "EncoderAttention": [np.float32],
    "PackedEncoderAttention": [np.float32],
    "SplitHeads": [np.float32],
    "AddNorm": [np.float32] * 2,
    "Embedding": [np.float32],
    "Relu": [],
    "BestCandidates": [np.float32, np.int32, np.int32],
    "BestContinuations": [np.float32, np.int32, np.int32, np.float32],
}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    yield
    why_not.cache_clear()


needs_kernels = pytest.mark.skipif(bool(why_not()), reason=f"no kernels: {why_not()}")
needs_vnni = pytest.mark.skipif(
    bool(why_not()) or "avx512_vnni" not in Path("/proc/cpuinfo").read_text(encoding="utf-8"),
    reason="no kernels, or no AVX-512 VNNI",
)


def call(
    name: str,
    inputs: Sequence[Array | None],
    *,
    threads: int = 1,
    unnamed: int = 0,
    **attributes: float,
) -> list[Array]:
    """What the kernel of that name gives. unnamed: the first outputs, so many, have no name."""
    wanted: list[Any] = list(OUTPUTS[name.removesuffix("Quantize")])
    wanted += [np.uint8] if name.endswith("Quantize") else []
    given = {f"in.{i}": array for i, array in enumerate(inputs) if array is not None}
    results = [f"out.{i}" for i in range(len(wanted))]
    node = helper.make_node(
        name,
        [f"in.{i}" if array is not None else "" for i, array in enumerate(inputs)],
        [""] * unnamed + results[unnamed:],
        domain=DOMAIN,
        **attributes,
    )
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info(n, TYPES[a.dtype], list(a.shape)) for n, a in given.items()],
        [
            helper.make_tensor_value_info(n, TYPES[np.dtype(t)], None)
            for n, t in list(zip(results, wanted, strict=True))[unnamed:]
        ],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, VERSION)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    assert use_native_kernels(options)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    found: list[Array] = session.run(results[unnamed:], given)
    return found


def quantized(x: Array, scale: Array, zero_point: Array) -> Array:
    """QuantizeLinear to uint8 of ONNX."""
    steps = np.rint((x / scale).astype(np.float32)) + zero_point.astype(np.float32)
    return np.clip(steps, 0, 255).astype(np.uint8)


SCALE, ZERO_POINT = np.array(0.02, np.float32), np.array(128, np.uint8)


def softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    weights: Array = powers / powers.sum(-1, keepdims=True)
    return weights


def floats(*shape: int) -> Array:
    return np.zeros(shape, dtype=np.float32)


def self_attention_inputs(
    size: int, beams: int, position: int, *, sentences: int = 3, heads: int = 2, room: int = 9
) -> list[Array]:
    rng = np.random.default_rng(size)
    rows = sentences * beams
    q, k, v = (rng.normal(size=(rows, 1, heads * size)).astype(np.float32) for _ in range(3))
    keys, values = (rng.normal(size=(rows, heads, room, size)).astype(np.float32) for _ in range(2))
    indirection = np.zeros((sentences, beams, room), dtype=np.int32)
    indirection[:, :, :position] = rng.integers(0, beams, (sentences, beams, position))
    numbers = (np.array([position], dtype=np.int32), np.array([beams], dtype=np.int32))
    return [q, k, v, keys, values, *numbers, indirection]


@needs_kernels
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("position", [0, 1, 8])
def test_self_attention(size: int, beams: int, position: int) -> None:
    inputs = self_attention_inputs(size, beams, position)
    q, k, v, keys, values = (array.copy() for array in inputs[:5])
    rows, heads = keys.shape[:2]
    source = np.arange(rows)[:, None] // beams * beams + inputs[7].reshape(rows, -1)[:, :position]
    past = np.arange(position)
    all_keys, all_values = (
        np.concatenate([cache[source, :, past].transpose(0, 2, 1, 3), new], axis=2)
        for cache, new in (
            (keys, k.reshape(rows, heads, 1, size)),
            (values, v.reshape(rows, heads, 1, size)),
        )
    )
    weights = softmax(np.einsum("nhe,nhte->nht", q.reshape(rows, heads, size), all_keys))
    expected = np.einsum("nht,nhte->nhe", weights, all_values).reshape(q.shape)
    new_keys, new_values, context = call("SelfAttention", inputs)
    np.testing.assert_allclose(context, expected, **CLOSE)
    keys[:, :, position] = k.reshape(rows, heads, size)
    values[:, :, position] = v.reshape(rows, heads, size)
    np.testing.assert_array_equal(new_keys, keys)
    np.testing.assert_array_equal(new_values, values)
    in_heads = [array.reshape(rows, heads, 1, size) for array in inputs[:2]]  # as rotary ones come
    *_, same = call("SelfAttention", [*in_heads, *inputs[2:]])
    np.testing.assert_array_equal(same, context)
    packed = np.concatenate(inputs[:3], axis=-1)
    *_, same = call("PackedSelfAttention", [packed, *inputs[3:]])
    np.testing.assert_array_equal(same, context)
    *_, same, steps = call("PackedSelfAttentionQuantize", [packed, *inputs[3:], SCALE, ZERO_POINT])
    np.testing.assert_array_equal(same, context)
    np.testing.assert_array_equal(steps, quantized(context, SCALE, ZERO_POINT))
    *_, again, steps = call("SelfAttentionQuantize", [*inputs, SCALE, ZERO_POINT])
    np.testing.assert_array_equal(again, context)
    np.testing.assert_array_equal(steps, quantized(context, SCALE, ZERO_POINT))


@needs_kernels
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("length", [1, 16, 21])
def test_cross_attention(size: int, beams: int, length: int) -> None:
    rng = np.random.default_rng(size)
    sentences, heads = 3, 2
    q = rng.normal(size=(sentences * beams, 1, heads * size)).astype(np.float32)
    keys, values = (
        rng.normal(size=(sentences, heads, length, size)).astype(np.float32) for _ in range(2)
    )
    lengths = np.maximum(1, length - 3 * np.arange(sentences))
    mask = (np.arange(length) < lengths[:, None]).astype(np.int32)
    scores = np.einsum("bkhe,bhse->bkhs", q.reshape(sentences, beams, heads, size), keys)
    weights = softmax(np.where(mask[:, None, None] != 0, scores, -np.inf))
    expected = np.einsum("bkhs,bhse->bkhe", weights, values).reshape(q.shape)
    inputs: list[Array] = [q, keys, values, mask]
    (context,) = call("CrossAttention", inputs)
    np.testing.assert_allclose(context, expected, **CLOSE)
    again, steps = call("CrossAttentionQuantize", [*inputs, SCALE, ZERO_POINT])
    np.testing.assert_array_equal(again, context)
    np.testing.assert_array_equal(steps, quantized(context, SCALE, ZERO_POINT))


@needs_kernels
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("length", [1, 17])
def test_encoder_attention(size: int, length: int) -> None:
    rng = np.random.default_rng(size)
    sentences, heads = 3, 2
    shape = (sentences, length, heads * size)
    q, k, v = (rng.normal(size=shape).astype(np.float32) for _ in range(3))
    lengths = np.maximum(1, length - 3 * np.arange(sentences))
    mask = (np.arange(length) < lengths[:, None]).astype(np.int32)
    in_heads = [array.reshape(sentences, length, heads, size) for array in (q, k, v)]
    scores = np.einsum("bqhe,bshe->bqhs", *in_heads[:2])
    weights = softmax(np.where(mask[:, None, None] != 0, scores, -np.inf))
    expected = np.einsum("bqhs,bshe->bqhe", weights, in_heads[2]).reshape(shape)
    inputs: list[Array] = [q, k, v, mask]
    (context,) = call("EncoderAttention", inputs, num_heads=heads)
    np.testing.assert_allclose(context, expected, **CLOSE)
    again, steps = call("EncoderAttentionQuantize", [*inputs, SCALE, ZERO_POINT], num_heads=heads)
    np.testing.assert_array_equal(again, context)
    np.testing.assert_array_equal(steps, quantized(context, SCALE, ZERO_POINT))
    packed = np.concatenate([q, k, v], axis=-1)
    (same,) = call("PackedEncoderAttention", [packed, mask], num_heads=heads)
    np.testing.assert_array_equal(same, context)
    same, steps = call(
        "PackedEncoderAttentionQuantize", [packed, mask, SCALE, ZERO_POINT], num_heads=heads
    )
    np.testing.assert_array_equal(same, context)
    np.testing.assert_array_equal(steps, quantized(context, SCALE, ZERO_POINT))
    (split,) = call("SplitHeads", [q, np.array([0, -1, heads, size], np.int64)])
    np.testing.assert_array_equal(split, in_heads[0].transpose(0, 2, 1, 3))


@needs_kernels
@pytest.mark.parametrize("size", SIZES)
def test_add_norm(size: int) -> None:
    rng = np.random.default_rng(size)
    x, y = (rng.normal(3, 2, size=(5, 1, size)).astype(np.float32) for _ in range(2))
    gain, bias = (rng.normal(size=size).astype(np.float32) for _ in range(2))
    total = x + y
    spread = np.sqrt(total.astype(np.float64).var(-1, keepdims=True) + 0.1)
    expected = (total - total.mean(-1, keepdims=True)) / spread * gain + bias
    added, normed = call("AddNorm", [x, y, gain, bias], epsilon=0.1)
    np.testing.assert_array_equal(added, total)
    np.testing.assert_allclose(normed, expected, **CLOSE)
    inputs = [x, y, gain, bias, SCALE, ZERO_POINT]
    *_, again, steps = call("AddNormQuantize", inputs, epsilon=0.1)
    np.testing.assert_array_equal(again, normed)
    np.testing.assert_array_equal(steps, quantized(normed, SCALE, ZERO_POINT))


@needs_kernels
def test_quantization_rounds_half_to_even_and_saturates() -> None:
    scale, zero_point = np.array(0.5, np.float32), np.array(3, np.uint8)
    x = np.array([-5, 0, 0.25, 0.75, 1.25, 1.3, 126.0, 126.2, 126.3, 1e9, np.inf], np.float32)
    (steps,) = call("ReluQuantize", [x, scale, zero_point])
    np.testing.assert_array_equal(steps, quantized(np.maximum(x, 0), scale, zero_point))
    assert steps[[0, 2, 3, 9, 10]].tolist() == [3, 3, 5, 255, 255]


@needs_kernels
@pytest.mark.parametrize("size", SIZES)
def test_embedding(size: int) -> None:
    rng = np.random.default_rng(size)
    ids = rng.integers(0, 11, (3, 2)).astype(np.int32)
    table = rng.integers(-127, 128, (11, size)).astype(np.int8)
    scales = rng.random((11, 1)).astype(np.float32)
    positions = rng.normal(size=(7, size)).astype(np.float32)
    inputs = [ids, table, scales, positions, np.array([6], dtype=np.int32)]
    expected = (table[ids] * scales[ids] + positions[6]).reshape(6, 1, size)
    (vectors,) = call("Embedding", inputs)
    np.testing.assert_allclose(vectors, expected, **CLOSE)
    again, steps = call("EmbeddingQuantize", [*inputs, SCALE, ZERO_POINT])
    np.testing.assert_array_equal(again, vectors)
    np.testing.assert_array_equal(steps, quantized(vectors, SCALE, ZERO_POINT))


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


@needs_kernels
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_no_numbers_still_give_continuations(value: float) -> None:
    logits = np.full((2, 2, 128), value, dtype=np.float32)
    scores, tokens, parents = best(logits, np.zeros((2, 2), dtype=np.float32), 4)
    assert np.isnan(scores).all()
    assert ((tokens >= 0) & (tokens < 128)).all()
    assert ((parents >= 0) & (parents < 2)).all()


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
    inputs = [x, packed, SCALE, scales, ZERO_POINT, bias, sums, *counts]
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
@pytest.mark.parametrize(("place", "value"), [(3, np.nan), (5, np.nan), (5, np.inf)])
def test_a_weight_that_is_no_number_is_seen(place: int, value: float) -> None:
    """place: the entries' scales, or their biases."""
    inputs, _ = continuations_inputs(2, 2, 16, 128)
    inputs[place][77] = value
    scores, tokens, parents, _ = call("BestContinuations", inputs)
    assert np.isnan(scores).all() or (place == 3 and value == np.inf)
    assert ((tokens >= 0) & (tokens < 128)).all()
    assert ((parents >= 0) & (parents < 2)).all()


QUIET_NANS = np.array([0x7FC00000, 0xFFC00000, 0x7FC00001, 0x7FFFFFFF], np.uint32)


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


@needs_kernels
@pytest.mark.parametrize("value", QUIET_NANS.view(np.float32))
@pytest.mark.parametrize("size", [16, 20, 32])
def test_nan_goes_through_attention(value: np.float32, size: int) -> None:
    """Or a damaged model would translate as if nothing were wrong."""
    inputs = self_attention_inputs(size, 2, 8)
    for index, where in ((0, (3, 0, 1)), (1, (3, 0, 1)), (2, (3, 0, 1)), (3, (2, 0, 4, 1))):
        spoilt_inputs = [array.copy() for array in inputs]
        spoilt_inputs[7][:] = 0  # all of row 3's past lies in row 2
        spoilt_inputs[index][where] = value
        context = call("SelfAttention", spoilt_inputs)[2]
        assert np.isnan(context[3]).any()
        assert not np.isnan(context[:2]).any()
    q, keys = floats(2, 5, 2 * size), floats(2, 2, 5, size)
    mask = np.ones((2, 5), dtype=np.int32)
    q[1, 2, 0] = value
    queries = np.ascontiguousarray(q[:, 2:3])
    (context,) = call("CrossAttention", [queries, keys, keys, mask])
    assert np.isnan(context).any(axis=(1, 2)).tolist() == [False, True]
    (context,) = call("EncoderAttention", [q, q * 0, floats(*q.shape), mask], num_heads=2)
    assert np.isnan(context).any(axis=(1, 2)).tolist() == [False, True]


@needs_kernels
def test_nothing_in_gives_nothing() -> None:
    assert call("CrossAttention", [floats(0, 1, 8), *[floats(0, 2, 5, 4)] * 2,
                                   np.ones((0, 5), np.int32)])[0].shape == (0, 1, 8)  # fmt: skip
    caches = [floats(0, 2, 9, 4)] * 2
    numbers = [np.array([3], np.int32), np.array([2], np.int32), np.zeros((0, 2, 9), np.int32)]
    assert call("SelfAttention", [*[floats(0, 1, 8)] * 3, *caches, *numbers])[2].shape == (0, 1, 8)
    found = call("BestCandidates", [floats(0, 2, 64), floats(0, 2, 1), np.array([4])])
    assert [array.shape for array in found] == [(0, 4)] * 3


@needs_vnni
def test_no_rows_have_no_continuations() -> None:
    inputs, _ = continuations_inputs(0, 2, 16, 128)
    found = call("BestContinuations", inputs)
    assert [array.shape for array in found] == [(0, 4)] * 3 + [(0, 2, 128)]


@needs_kernels
def test_threads_change_no_bit() -> None:
    """So large that the work is shared out."""
    inputs = self_attention_inputs(64, 4, 60, sentences=16, heads=4, room=64)
    one, three = (call("SelfAttention", inputs, threads=n)[2] for n in (1, 3))
    np.testing.assert_array_equal(one, three)
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(8, 4, 6400)).astype(np.float32)
    sums = rng.normal(size=(8, 4, 1)).astype(np.float32)
    count = np.array([8], dtype=np.int64)
    found = [call("BestCandidates", [logits, sums, count], threads=n) for n in (1, 3)]
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


@needs_kernels
def test_a_row_has_the_same_bits_alone_and_beside_others() -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(9, 1, 80)).astype(np.float32) for _ in range(2))
    gain, bias = (rng.normal(size=80).astype(np.float32) for _ in range(2))
    both = call("AddNorm", [x, y, gain, bias], epsilon=1e-5)[1]
    alone = call("AddNorm", [x[4:5], y[4:5], gain, bias], epsilon=1e-5)[1]
    np.testing.assert_array_equal(both[4:5], alone)


def spoilt(index: int, array: Array) -> list[Array]:
    inputs = self_attention_inputs(16, 2, 3)
    inputs[index] = array
    return inputs


EMBEDDING = [np.zeros((11, 4), np.int8), floats(11, 1), floats(7, 4), np.array([0], np.int32)]


@needs_kernels
@pytest.mark.parametrize(
    ("name", "inputs", "text"),
    [
        ("SelfAttention", spoilt(5, np.array([9], np.int32)), "room for one more token"),
        ("SelfAttention", spoilt(5, np.array([-1], np.int32)), "room for one more token"),
        ("SelfAttention", spoilt(7, np.full((3, 2, 9), 2, np.int32)), "within the beams"),
        ("SelfAttention", spoilt(7, np.zeros((3, 2, 8), np.int32)), "rows and room"),
        ("SelfAttention", spoilt(1, floats(5, 1, 32)), "as many queries, keys and values"),
        ("SelfAttention", spoilt(3, floats(5, 2, 9, 16)), "caches of four dimensions"),
        (
            "CrossAttention",
            [floats(3, 1, 8), floats(2, 2, 5, 4), floats(2, 2, 5, 4), np.ones((2, 5), np.int32)],
            "as many rows for each sentence",
        ),
        (
            "CrossAttention",
            [floats(2, 1, 8), floats(2, 2, 5, 4), floats(2, 2, 5, 4), np.ones((2, 4), np.int32)],
            "a mask of the keys' sentences",
        ),
        (
            "CrossAttention",
            [floats(2, 1, 8), *[floats(2, 2, 0, 4)] * 2, np.ones((2, 0), np.int32)],
            "sources of at least one token",
        ),
        # Empty, and of one dimension more.
        ("SelfAttention", spoilt(4, floats(6, 2, 9, 16, 0)), "caches of four dimensions"),
        (
            "CrossAttention",
            [floats(2, 1, 8), floats(2, 2, 5, 4), floats(2, 2, 5, 4, 0), np.ones((2, 5), np.int32)],
            "keys and values of four dimensions",
        ),
        (
            "EncoderAttention",
            [floats(2, 5, 8), floats(2, 5, 8), floats(2, 5, 8, 0), np.ones((2, 5), np.int32)],
            "q, k and v of one shape",
        ),
        ("AddNorm", [floats(2, 4), floats(2, 5), floats(4), floats(4)], "of the same shape"),
        ("AddNorm", [floats(2, 4), floats(2, 4), floats(3), floats(4)], "for each place of a row"),
        ("Embedding", [np.array([[11]], np.int32), *EMBEDDING], "ids within the vocabulary"),
        ("Embedding", [np.array([[-1]], np.int32), *EMBEDDING], "ids within the vocabulary"),
        (
            "Embedding",
            [np.array([[1]], np.int32), *EMBEDDING[:3], np.array([7], np.int32)],
            "a position that the table has",
        ),
        (
            "PackedSelfAttention",
            [floats(6, 1, 95), *self_attention_inputs(16, 2, 3)[3:]],
            "q, k and v behind each other",
        ),
        (
            "PackedSelfAttention",
            [floats(6, 1, 90), *self_attention_inputs(16, 2, 3)[3:]],
            "of the caches' rows",
        ),
        ("SplitHeads", [floats(1, 2, 6), np.array([0, 0, 4, 2])], "heads that make up a row"),
        ("SplitHeads", [floats(1, 2, 4), np.array([0, 0, 2**62 + 1, 4])], "that make up a row"),
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


@needs_kernels
def test_caches_that_nobody_takes_are_an_error() -> None:
    with pytest.raises(Exception, match="leanseq's SelfAttention expected both caches as outputs"):
        call("SelfAttention", self_attention_inputs(16, 2, 3), unnamed=2)


def test_where_there_is_a_compiler_there_are_kernels() -> None:
    if not (shutil.which("c++") or shutil.which("g++")):
        pytest.skip("no C++ compiler here")
    assert library_path() is not None, "install leanseq again: its kernels were not compiled"


@pytest.mark.parametrize("value", ["0", "false", " Off ", "no"])
def test_the_switch_leaves_them_out(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    why_not.cache_clear()
    monkeypatch.setenv("LEANSEQ_NATIVE_KERNELS", value)
    assert why_not() == f"LEANSEQ_NATIVE_KERNELS is {value.strip().lower()}"
    assert not use_native_kernels(onnxruntime.SessionOptions())


def test_without_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    why_not.cache_clear()
    monkeypatch.setattr(native_kernels, "library_path", lambda: None)
    assert "install a C++ compiler" in why_not()
    assert not use_native_kernels(onnxruntime.SessionOptions())


def test_a_library_that_is_none_is_told_once_and_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    why_not.cache_clear()
    broken = tmp_path / "_kernels.so"
    broken.write_bytes(b"\x7fELF, cut off")
    monkeypatch.setattr(native_kernels, "library_path", lambda: broken)
    with caplog.at_level(logging.WARNING):
        assert not use_native_kernels(onnxruntime.SessionOptions())
        assert not use_native_kernels(onnxruntime.SessionOptions())
    assert why_not().startswith("_kernels.so can't be loaded")
    assert len(caplog.records) == 1
