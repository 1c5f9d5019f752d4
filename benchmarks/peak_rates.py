"""The best rates at which one thread of this machine multiplies, and reads memory."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import onnxruntime

from benchmarks.timing import timed
from export.cpu_static.editing import CONTRIB
from runtime.manifest import Precision
from runtime.ort_session import session_options

PEAK_ROWS = 128
PEAK_SIZES = ((256, 1024), (1024, 256), (512, 2048), (2048, 512))
"""Weights [I,O] whose products are timed; the best rate counts."""
_REPEATS = 40


def products_per_second(precision: Precision) -> float:
    """Multiply-adds a second of one thread, at the best of PEAK_SIZES."""
    rates = []
    for inner, outer in PEAK_SIZES:
        session = _product_session(precision, inner, outer)
        x = np.random.default_rng(0).standard_normal((PEAK_ROWS, inner)).astype(np.float32)
        feeds = {"x": x if precision == "fp32" else (x * 20 + 128).clip(0, 255).astype(np.uint8)}
        run = partial(session.run, None, feeds)
        seconds = min(timed(run) for _ in range(_REPEATS))
        rates.append(PEAK_ROWS * inner * outer / seconds)
    return max(rates)


def bytes_per_second(size: int) -> float:
    """How quickly one thread reads so many bytes, again and again, as steps read their weights."""
    numbers = np.ones(max(size // 4, 1), dtype=np.float32)
    seconds = min(timed(lambda: np.dot(numbers, numbers)) for _ in range(_REPEATS))
    return float(numbers.nbytes / seconds)


def _product_session(precision: Precision, inner: int, outer: int) -> Any:
    """x [N,I] times one weight [I,O], as the graphs do it."""
    from onnx import TensorProto, helper, numpy_helper

    generator = np.random.default_rng(0)
    weight = generator.integers(-127, 127, (inner, outer)).astype(np.int8)
    arrays: dict[str, Any] = {"weight": weight}
    kind = TensorProto.UINT8
    if precision == "fp32":
        kind, arrays = TensorProto.FLOAT, {"weight": weight.astype(np.float32)}
        node = helper.make_node("MatMul", ["x", "weight"], ["y"])
    else:
        arrays |= {
            "x_scale": np.float32(0.02),
            "scales": np.full(outer, 0.01, dtype=np.float32),
            "x_zero": np.uint8(128),
        }
        names = ["x", "weight", "x_scale", "scales", "x_zero"]
        node = helper.make_node("MatMulIntegerToFloat", names, ["y"], domain=CONTRIB)
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("x", kind, ["N", inner])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", outer])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in arrays.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(CONTRIB, 1)]
    return onnxruntime.InferenceSession(
        helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString(),
        session_options(1),
        providers=["CPUExecutionProvider"],
    )
