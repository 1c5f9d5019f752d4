"""A float graph and ranges in, the same graph with INT8 MatMuls out, as explicit Q/DQ.

    activation -> QuantizeLinear -> DequantizeLinear -> MatMul <- DequantizeLinear <- int8 weight

Symmetric, zero points 0: activations with one scale a tensor, weights with one an output column.
Every MatMul has its own pair before it: ONNX Runtime fuses nothing where two share a Quantize node.
Biases, outputs and everything between stay float. The nodes are written here, not by
onnxruntime.quantization: docs/decisions/0005-calibration.md says why.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from calibration.errors import CalibrationError
from calibration.graph_file import graph_sha256, load_graph, save_graph
from calibration.matmuls import WeightMatMul, find_weight_matmuls, role_of
from calibration.ranges import Ranges
from calibration.statistics import INT8_MAX

ZERO_POINT = "int8_zero_point"  # one scalar for all activations
LOGITS_REASON = "it makes the logits"
LARGE_LOGITS = 1 << 22
"""Weights from which on the MatMul that makes the logits is quantized, where nobody says whether.

They are read at every step, and beyond the cache they take the better part of it: at 512 x 32,000
7.7 of 13.2 ms in FP32 (docs/decisions/0005-calibration.md)."""
CHOSEN_REASON = "kept float by choice"

FloatArray = npt.NDArray[np.float32]
Int8Array = npt.NDArray[np.int8]


@dataclass(frozen=True, kw_only=True)
class QuantizeReport:
    """int8_matmuls: names, in graph order. float_matmuls: name -> why it stayed float.

    weight_bytes_int8: of the quantized weights and all scales; weight_bytes_fp32: what the same
    weights were before.
    """

    int8_matmuls: tuple[str, ...]
    float_matmuls: dict[str, str]
    weight_bytes_int8: int
    weight_bytes_fp32: int

    @property
    def size_ratio(self) -> float:
        return self.weight_bytes_int8 / self.weight_bytes_fp32

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def quantize_graph(
    fp32_path: Path,
    out_path: Path,
    ranges: Ranges,
    *,
    quantize_logits: bool | None = None,
    keep_float: Collection[str] = (),
) -> QuantizeReport:
    """Writes the INT8 graph of fp32_path to out_path; the same bytes for the same input.

    quantize_logits: None does it from LARGE_LOGITS weights on. keep_float: names of MatMuls that
    stay float. The role of the graph is read off it. Raises
    CalibrationError when the ranges belong to another graph or lack a tensor, when keep_float names
    a MatMul that is not there, or when nothing is left to quantize.
    """
    model = load_graph(fp32_path)
    role = role_of(model)
    if ranges.graphs.get(role) != graph_sha256(fp32_path):
        raise CalibrationError(
            f"the ranges were not measured on {fp32_path} but on another {role} graph; calibrate "
            "again on this one"
        )
    matmuls = find_weight_matmuls(model)
    if quantize_logits is None:
        sizes = {tensor.name: math.prod(tensor.dims) for tensor in model.graph.initializer}
        quantize_logits = any(m.is_logits and sizes[m.weight] >= LARGE_LOGITS for m in matmuls)
    chosen, kept = _choose(matmuls, quantize_logits, keep_float)
    edit = _Edit(model)
    for matmul in chosen:
        edit.quantize(matmul, ranges.bound(role, matmul.activation))
    edit.finish()
    save_graph(model, out_path)
    onnx.checker.check_model(out_path)  # by path: there protobuf's 2 GiB do not matter
    return QuantizeReport(
        int8_matmuls=tuple(matmul.name for matmul in chosen),
        float_matmuls=kept,
        weight_bytes_int8=edit.bytes_int8,
        weight_bytes_fp32=edit.bytes_fp32,
    )


def quantize_weight(weight: FloatArray) -> tuple[Int8Array, FloatArray]:
    """weight [I,O] float32 -> int8 [I,O] and scales float32 [O]: largest |w| of a column / 127.

    A column of zeros gets scale 1.
    """
    amax = np.abs(weight).max(axis=0)
    scales = np.where(amax > 0, amax / np.float32(INT8_MAX), np.float32(1)).astype(np.float32)
    scales = np.maximum(scales, np.finfo(np.float32).tiny)
    return np.clip(np.rint(weight / scales), -INT8_MAX, INT8_MAX).astype(np.int8), scales


def _choose(
    matmuls: tuple[WeightMatMul, ...], quantize_logits: bool, keep_float: Collection[str]
) -> tuple[list[WeightMatMul], dict[str, str]]:
    unknown = sorted(set(keep_float) - {matmul.name for matmul in matmuls})
    if unknown:
        raise CalibrationError(
            f"keep_float names {unknown[0]!r}, which is no MatMul with a weight; the graph has: "
            + ", ".join(matmul.name for matmul in matmuls)
        )
    kept = {matmul.name: CHOSEN_REASON for matmul in matmuls if matmul.name in keep_float}
    if not quantize_logits:
        kept.update({m.name: LOGITS_REASON for m in matmuls if m.is_logits})
    chosen = [matmul for matmul in matmuls if matmul.name not in kept]
    if not chosen:
        raise CalibrationError(
            "every MatMul of the graph is kept float, so INT8 would change nothing; keep fewer"
        )
    return chosen, kept


class _Edit:
    """Puts Q/DQ pairs before the MatMuls of a graph, in place."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._graph = model.graph
        self._nodes = {node.name: node for node in self._graph.node}
        self._floats = {tensor.name: tensor for tensor in self._graph.initializer}
        self._replaced: set[str] = set()  # float weights that have an INT8 copy
        self._added: dict[str, onnx.TensorProto] = {}
        self._before: dict[str, list[onnx.NodeProto]] = {}

    @property
    def bytes_int8(self) -> int:
        return sum(len(tensor.raw_data) for tensor in self._added.values())

    @property
    def bytes_fp32(self) -> int:
        return sum(numpy_helper.to_array(self._floats[name]).nbytes for name in self._replaced)

    def quantize(self, matmul: WeightMatMul, bound: float) -> None:
        """bound: of |activation|; 0, of a tensor that never was anything else, gives scale 1."""
        scale = np.float32(bound / INT8_MAX) if bound > 0 else np.float32(1)
        scale = max(scale, np.finfo(np.float32).tiny)
        self._add(ZERO_POINT, np.zeros((), dtype=np.int8))
        self._add(f"{matmul.activation}.scale", np.asarray(scale, dtype=np.float32))
        with_scale = [f"{matmul.activation}.scale", ZERO_POINT]
        quantized, dequantized = f"{matmul.name}.input_int8", f"{matmul.name}.input_dequantized"
        weight = f"{matmul.name}.weight_dequantized"
        self._add_weight(matmul)
        self._before[matmul.name] = [
            _node("QuantizeLinear", [matmul.activation, *with_scale], quantized),
            _node("DequantizeLinear", [quantized, *with_scale], dequantized),
            _node("DequantizeLinear", _weight_names(matmul), weight, axis=1),
        ]
        inputs = self._nodes[matmul.name].input
        inputs[0], inputs[1] = dequantized, weight

    def _add_weight(self, matmul: WeightMatMul) -> None:
        """The int8 weight is [I,O] even where the float one was [O,I]."""
        self._replaced.add(matmul.weight)
        weight: FloatArray = numpy_helper.to_array(self._floats[matmul.weight])
        quantized, scales = quantize_weight(weight.T if matmul.transposed else weight)
        int8_name, scale_name = _weight_names(matmul)
        self._add(int8_name, np.ascontiguousarray(quantized))
        self._add(scale_name, scales)

    def _add(self, name: str, values: npt.NDArray[Any]) -> None:
        self._added[name] = numpy_helper.from_array(values, name)

    def finish(self) -> None:
        """Writes nodes in order; drops the Transposes and float weights that nothing reads now."""
        nodes = [
            new for node in self._graph.node for new in [*self._before.get(node.name, []), node]
        ]
        read = {name for node in nodes for name in node.input}
        read |= {output.name for output in self._graph.output}
        nodes = [n for n in nodes if n.op_type != "Transpose" or n.output[0] in read]
        read = {name for node in nodes for name in node.input}
        tensors = [t for name, t in self._floats.items() if name in read]
        del self._graph.node[:]
        self._graph.node.extend(nodes)
        del self._graph.initializer[:]
        self._graph.initializer.extend([*tensors, *self._added.values()])


def _node(kind: str, inputs: list[str], output: str, **attributes: int) -> onnx.NodeProto:
    return helper.make_node(kind, inputs, [output], name=output, **attributes)


def _weight_names(matmul: WeightMatMul) -> list[str]:
    return [f"{matmul.weight}.int8", f"{matmul.weight}.scale"]
