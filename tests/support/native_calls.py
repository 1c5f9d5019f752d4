"""Calls of single kernels of runtime/native, and what they are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
from onnx import TensorProto, helper

from runtime.native_kernels import DOMAIN, VERSION, use_native_kernels, why_not

Array = npt.NDArray[Any]
CLOSE = {"rtol": 2e-5, "atol": 2e-5}
SIZES = [4, 16, 20, 32, 64, 80]
"""Of heads and rows: below, at, above and between whole registers."""
SCALE, ZERO_POINT = np.array(0.02, np.float32), np.array(128, np.uint8)
QUIET_NANS = np.array([0x7FC00000, 0xFFC00000, 0x7FC00001, 0x7FFFFFFF], np.uint32)

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


def floats(*shape: int) -> Array:
    return np.zeros(shape, dtype=np.float32)
