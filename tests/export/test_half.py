"""FP16 copies: their types, their values, and what can't become one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

pytest.importorskip("torch")

from support.bundles import ROLES, Graphs

from export.errors import ExportError
from export.half import convert_to_fp16
from export.parity import check_parity
from runtime.manifest import Precision, Role
from runtime.options import SearchOptions


def typed(path: Path) -> tuple[onnx.ModelProto, dict[str, int]]:
    """A model and the type of every value in it, as ONNX infers them in strict mode."""
    model = onnx.shape_inference.infer_shapes(onnx.load(path), strict_mode=True, check_type=True)
    graph = model.graph
    values = [*graph.input, *graph.output, *graph.value_info]
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    return model, types | {tensor.name: tensor.data_type for tensor in graph.initializer}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("precision", ["fp16", "int8_fp16"])
def test_what_stays_in_fp32(random_graphs: Graphs, role: Role, precision: Precision) -> None:
    """Norms, softmaxes and the path to the candidates; every MatMul and its weight is float16."""
    model, types = typed(random_graphs.path(role, precision))
    kept = {"LayerNormalization", "Softmax", "LogSoftmax", "TopK"}
    for node in model.graph.node:
        kinds = {types[name] for name in node.input}
        if node.op_type in kept:
            assert TensorProto.FLOAT in kinds
            assert TensorProto.FLOAT16 not in kinds
        elif node.op_type == "MatMul":
            assert kinds == {TensorProto.FLOAT16}
        elif node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            assert kinds <= {TensorProto.FLOAT16, TensorProto.INT8}
    large = [t for t in model.graph.initializer if np.prod(t.dims) > 1000]
    assert large
    assert all(t.data_type in (TensorProto.FLOAT16, TensorProto.INT8) for t in large)


def test_int8_weights_stay_as_they_are(random_graphs: Graphs) -> None:
    def quantized(precision: Precision) -> dict[str, Any]:
        model = onnx.load(random_graphs.path("decoder_step", precision))
        tensors = [t for t in model.graph.initializer if t.data_type == TensorProto.INT8]
        return {tensor.name: numpy_helper.to_array(tensor).tobytes() for tensor in tensors}

    assert quantized("int8_fp16") == quantized("int8") != {}


def test_fp16_is_half_the_size(random_graphs: Graphs) -> None:
    for role in ROLES:
        sizes = [random_graphs.path(role, p).stat().st_size for p in ("fp16", "fp32")]
        assert sizes[0] < 0.62 * sizes[1]


def test_two_conversions_give_the_same_bytes(random_graphs: Graphs, tmp_path: Path) -> None:
    for half, full in (("fp16", "fp32"), ("int8_fp16", "int8")):
        convert_to_fp16(random_graphs.path("decoder_step", full), tmp_path / "again.onnx")
        again = (tmp_path / "again.onnx").read_bytes()
        assert again == random_graphs.path("decoder_step", half).read_bytes()


def test_fp16_computes_what_fp32_computes(random_graphs: Graphs) -> None:
    """On a CPU, where ONNX Runtime computes it in float32 between float16 tensors. FP16 with Q/DQ
    is not run there."""
    generator = np.random.default_rng(0)
    sources = [[*generator.integers(4, 300, n).tolist(), 3] for n in (1, 5, 9, 3, 14)]
    report = check_parity(
        random_graphs.backend("fp32"),
        random_graphs.backend("fp16"),
        sources,
        random_graphs.special_ids,
        SearchOptions(max_length=8),
    )
    assert 1e-5 < report.log_prob_max < 0.05
    assert report.log_prob_mean < 0.01


def edited(random_graphs: Graphs, path: Path, name: str, value: float) -> Path:
    """The INT8 decoder step with one number of one initializer changed."""
    model = onnx.load(random_graphs.path("decoder_step", "int8"))
    for tensor in model.graph.initializer:
        if tensor.name == name:
            numbers = numpy_helper.to_array(tensor).copy()
            numbers.flat[0] = value
            tensor.CopyFrom(numpy_helper.from_array(numbers, name))
            onnx.save(model, path)
            return path
    raise AssertionError(name)


def test_a_weight_beyond_fp16_is_refused(random_graphs: Graphs, tmp_path: Path) -> None:
    for value in (7e4, np.inf, np.nan):
        path = edited(random_graphs, tmp_path / "a.onnx", "decoder.embedding.tokens.weight", value)
        with pytest.raises(
            ExportError,
            match=r"weight decoder.embedding.tokens.weight has values up to .*, beyond float16's",
        ):
            convert_to_fp16(path, tmp_path / "half.onnx")
        assert not (tmp_path / "half.onnx").exists()


def test_a_scale_never_becomes_zero(random_graphs: Graphs, tmp_path: Path) -> None:
    model = onnx.load(random_graphs.path("decoder_step", "int8"))
    scale = next(node.input[1] for node in model.graph.node if node.op_type == "DequantizeLinear")
    path = edited(random_graphs, tmp_path / "a.onnx", scale, 1e-12)
    convert_to_fp16(path, tmp_path / "half.onnx")
    tensors = onnx.load(tmp_path / "half.onnx").graph.initializer
    found = next(numpy_helper.to_array(t) for t in tensors if t.name == scale)
    assert found.dtype == np.float16
    assert (found > 0).all()


def test_an_untyped_graph_is_refused(random_graphs: Graphs, tmp_path: Path) -> None:
    model = onnx.load(random_graphs.path("decoder_step"))
    model.graph.node[12].op_type = "NoSuchOperator"
    onnx.save(model, tmp_path / "a.onnx")
    with pytest.raises(ExportError, match=r"a.onnx: the types of .* can't be inferred"):
        convert_to_fp16(tmp_path / "a.onnx", tmp_path / "half.onnx")
