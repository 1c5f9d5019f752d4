"""The kernels of runtime/native for rows of activations against numpy."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")

from support.native_calls import (
    CLOSE,
    SCALE,
    SIZES,
    ZERO_POINT,
    Array,
    call,
    floats,
    needs_kernels,
    quantized,
)


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


@needs_kernels
def test_a_row_has_the_same_bits_alone_and_beside_others() -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(9, 1, 80)).astype(np.float32) for _ in range(2))
    gain, bias = (rng.normal(size=80).astype(np.float32) for _ in range(2))
    both = call("AddNorm", [x, y, gain, bias], epsilon=1e-5)[1]
    alone = call("AddNorm", [x[4:5], y[4:5], gain, bias], epsilon=1e-5)[1]
    np.testing.assert_array_equal(both[4:5], alone)


EMBEDDING = [np.zeros((11, 4), np.int8), floats(11, 1), floats(7, 4), np.array([0], np.int32)]


@needs_kernels
@pytest.mark.parametrize(
    ("name", "inputs", "text"),
    [
        ("AddNorm", [floats(2, 4), floats(2, 5), floats(4), floats(4)], "of the same shape"),
        ("AddNorm", [floats(2, 4), floats(2, 4), floats(3), floats(4)], "for each place of a row"),
        ("Embedding", [np.array([[11]], np.int32), *EMBEDDING], "ids within the vocabulary"),
        ("Embedding", [np.array([[-1]], np.int32), *EMBEDDING], "ids within the vocabulary"),
        (
            "Embedding",
            [np.array([[1]], np.int32), *EMBEDDING[:3], np.array([7], np.int32)],
            "a position that the table has",
        ),
    ],
)
def test_what_does_not_fit_is_an_error(name: str, inputs: list[Array], text: str) -> None:
    """And no read or write outside a tensor."""
    with pytest.raises(Exception, match=f"leanseq's {name} expected .*{text}"):
        call(name, inputs)
