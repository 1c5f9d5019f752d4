"""FP16 copies of a graph: of the plain one, and of the one with Q/DQ.

All is computed in float16, save what needs the range or the sum: LayerNormalization, Softmax,
LogSoftmax and TopK, and the whole path from the logits to the candidates. Keys and values, in and
out, become float16; `sum_log_probs`, `eos_bias`, `scores` and `log_probs` stay float32. Scales of
Q/DQ become float16, as a strongly typed TensorRT wants them; INT8 weights stay as they are.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common as passes

from export.clean import write_model
from export.errors import ExportError

_KEPT_IN_FP32 = frozenset({"LayerNormalization", "Softmax", "LogSoftmax", "TopK", "Cast"})
_WIDE_SOURCES = frozenset({"sum_log_probs", "eos_bias"})
_MAX = float(np.finfo(np.float16).max)
_SMALLEST = np.float16(np.finfo(np.float16).smallest_subnormal)


def convert_to_fp16(source_path: Path, out_path: Path) -> None:
    """Writes the float16 copy of an FP32 or an INT8 (Q/DQ) graph of the contract.

    Raises ExportError when a weight lies outside float16's range.
    """
    model = ir.load(source_path)
    _Converter(model.graph).convert(source_path.name)
    passes.RemoveUnusedNodesPass()(model)
    for node in model.graph:
        for value in node.outputs:
            if not value.is_graph_output():
                value.type = value.shape = None
    write_model(model, out_path)


class _Converter:
    """Gives each node a type to compute in, and casts where the types of two nodes differ."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._copies: dict[tuple[int, ir.DataType], ir.Value] = {}
        self._wide: set[int] = set()  # values of the path from the logits to the candidates

    def convert(self, file_name: str) -> None:
        floats = self._float_values(file_name)
        for value in self._graph.inputs:
            if value.name in _WIDE_SOURCES:
                self._wide.add(id(value))
            elif id(value) in floats:
                value.dtype = ir.DataType.FLOAT16
        for node in list(self._graph):
            wide = any(id(value) in self._wide for value in node.inputs)
            full = wide or node.op_type in _KEPT_IN_FP32
            dtype = ir.DataType.FLOAT if full else ir.DataType.FLOAT16
            for index, value in enumerate(node.inputs):
                if value is not None and id(value) in floats:
                    node.replace_input_with(index, self._as_type(value, dtype, node))
            for value in node.outputs:
                if id(value) in floats:
                    value.dtype = dtype
                    if wide or node.op_type == "LogSoftmax":
                        self._wide.add(id(value))
        self._take_names()

    def _float_values(self, file_name: str) -> set[int]:
        """Every value that is float32 in the source graph; types are inferred on a copy."""
        inferred = passes.ShapeInferencePass()(ir.Model(self._graph, ir_version=10)).model.graph
        values = [*inferred.inputs, *inferred.initializers.values()]
        values += [value for node in inferred for value in node.outputs]
        untyped = [value.name for value in values if value.dtype is None and value.uses()]
        if untyped:
            raise ExportError(
                f"{file_name}: the types of {', '.join(map(str, untyped[:3]))} can't be inferred; "
                "export the graph again with this version of leanseq"
            )
        return {id(value) for value in values if value.dtype == ir.DataType.FLOAT}

    def _as_type(self, value: ir.Value, dtype: ir.DataType, before: ir.Node) -> ir.Value:
        if value.dtype == dtype and not value.is_initializer():
            return value
        key = (id(value), dtype)
        if key not in self._copies:
            if value.is_initializer():
                self._copies[key] = self._copy_initializer(value, dtype)
            else:
                self._copies[key] = self._cast(value, dtype, before)
        return self._copies[key]

    def _cast(self, value: ir.Value, dtype: ir.DataType, before: ir.Node) -> ir.Value:
        name = f"{value.name}.{'fp32' if dtype == ir.DataType.FLOAT else 'fp16'}"
        node = ir.node("Cast", [value], {"to": dtype.value}, name=name)
        node.outputs[0].name, node.outputs[0].dtype = f"{name}:0", dtype
        self._graph.insert_before(before, node)
        return node.outputs[0]

    def _copy_initializer(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        if dtype == ir.DataType.FLOAT:
            return value
        assert value.const_value is not None
        numbers = value.const_value.numpy()
        largest = float(np.abs(numbers).max(initial=0.0))
        if not largest <= _MAX:
            raise ExportError(
                f"weight {value.name} has values up to {largest:.3g}, beyond float16's {_MAX:.0f}; "
                "use FP32 or INT8 for this model"
            )
        half = numbers.astype(np.float16)
        if any(_is_scale(node, index) for node, index in value.uses()):
            half = np.maximum(half, _SMALLEST)  # a scale of zero is not allowed
        name = f"{value.name}.fp16"
        copy = ir.Value(name=name, const_value=ir.tensor(half, name=name))
        copy.dtype, copy.shape = dtype, value.shape
        self._graph.register_initializer(copy)
        return copy

    def _take_names(self) -> None:
        """A copy takes the name of an original that nothing uses any more."""
        for value in list(self._graph.initializers.values()):
            copy = self._copies.get((id(value), ir.DataType.FLOAT16))
            if copy is None or value.uses():
                continue
            name = value.name
            assert name is not None
            assert copy.name is not None
            del self._graph.initializers[name]
            del self._graph.initializers[copy.name]
            copy.name = name
            assert copy.const_value is not None
            copy.const_value.name = name
            self._graph.register_initializer(copy)


def _is_scale(node: ir.Node, index: int) -> bool:
    return node.op_type in ("QuantizeLinear", "DequantizeLinear") and index == 1
