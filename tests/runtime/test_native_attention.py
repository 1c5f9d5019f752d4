"""The attention kernels of runtime/native against numpy."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")

from support.native_calls import (
    CLOSE,
    QUIET_NANS,
    SCALE,
    SIZES,
    ZERO_POINT,
    Array,
    call,
    floats,
    needs_kernels,
    quantized,
)


def softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    weights: Array = powers / powers.sum(-1, keepdims=True)
    return weights


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
@pytest.mark.parametrize("beams", [1, 3, 9])
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


def spoilt(index: int, array: Array) -> list[Array]:
    inputs = self_attention_inputs(16, 2, 3)
    inputs[index] = array
    return inputs


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
        (  # as many numbers, two rows in one
            "PackedSelfAttention",
            [floats(3, 1, 192), *self_attention_inputs(16, 2, 3)[3:]],
            "of the caches' rows",
        ),
        ("SplitHeads", [floats(1, 2, 6), np.array([0, 0, 4, 2])], "heads that make up a row"),
        ("SplitHeads", [floats(1, 2, 4), np.array([0, 0, 2**62 + 1, 4])], "that make up a row"),
    ],
)
def test_what_does_not_fit_is_an_error(name: str, inputs: list[Array], text: str) -> None:
    """And no read or write outside a tensor."""
    with pytest.raises(Exception, match=f"leanseq's {name} expected .*{text}"):
        call(name, inputs)


@needs_kernels
def test_caches_that_nobody_takes_are_an_error() -> None:
    with pytest.raises(Exception, match="leanseq's SelfAttention expected both caches as outputs"):
        call("SelfAttention", self_attention_inputs(16, 2, 3), unnamed=2)


@needs_kernels
def test_nothing_in_gives_nothing() -> None:
    assert call("CrossAttention", [floats(0, 1, 8), *[floats(0, 2, 5, 4)] * 2,
                                   np.ones((0, 5), np.int32)])[0].shape == (0, 1, 8)  # fmt: skip
    caches = [floats(0, 2, 9, 4)] * 2
    numbers = [np.array([3], np.int32), np.array([2], np.int32), np.zeros((0, 2, 9), np.int32)]
    assert call("SelfAttention", [*[floats(0, 1, 8)] * 3, *caches, *numbers])[2].shape == (0, 1, 8)


@needs_kernels
def test_threads_change_no_bit() -> None:
    """So large that the work is shared out."""
    inputs = self_attention_inputs(64, 4, 60, sentences=16, heads=4, room=64)
    one, three = (call("SelfAttention", inputs, threads=n)[2] for n in (1, 3))
    np.testing.assert_array_equal(one, three)
