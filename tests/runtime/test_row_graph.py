"""Picking rows in ONNX Runtime: the file that we write ourselves is valid, and does it."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from runtime.manifest import TensorSpec
from runtime.row_graph import row_graph, row_graph_inputs, row_graph_outputs

TENSORS = [
    TensorSpec(name="src_mask", dtype="bool", dims=("B", "S")),
    TensorSpec(name="cross_k.0", dtype="float16", dims=("B", 2, "S", 300)),
    TensorSpec(name="cross_v.0", dtype="float32", dims=("B", 2, "S", 300)),
]


def test_the_file_is_valid_onnx() -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.load_model_from_string(row_graph(TENSORS))
    onnx.checker.check_model(model, full_check=True)
    inputs = {value.name: value.type.tensor_type for value in model.graph.input}
    outputs = {value.name: value.type.tensor_type for value in model.graph.output}
    assert list(inputs) == row_graph_inputs(TENSORS)
    assert list(outputs) == row_graph_outputs(TENSORS)
    for spec in TENSORS:
        for rows, found in (("B", inputs[spec.name]), ("R", outputs[f"kept.{spec.name}"])):
            dims = tuple(dim.dim_param or dim.dim_value for dim in found.shape.dim)
            assert dims == (rows, *spec.dims[1:])
            assert onnx.helper.tensor_dtype_to_np_dtype(found.elem_type) == np.dtype(spec.dtype)


@pytest.mark.parametrize("rows", [[0], [2, 0], [1, 2], [0, 1, 2]])
def test_rows_are_picked(rows: list[int]) -> None:
    random = np.random.default_rng(1)
    arrays = {
        spec.name: random.standard_normal((3, *[5] * (len(spec.dims) - 1))).astype(spec.dtype)
        for spec in TENSORS[:1]
    }
    for spec in TENSORS[1:]:
        arrays[spec.name] = random.standard_normal((3, 2, 5, 300)).astype(spec.dtype)
    session = onnxruntime.InferenceSession(row_graph(TENSORS), providers=["CPUExecutionProvider"])
    found = session.run(None, {"rows": np.array(rows, dtype=np.int32), **arrays})
    for array, kept in zip(arrays.values(), found, strict=True):
        assert np.array_equal(kept, array[rows])
        assert kept.dtype == array.dtype
