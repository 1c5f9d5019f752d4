"""Quantized graphs in which TensorRT drops INT8 for one MatMul, or three, without a word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper


class Graph:
    """A small editor of an ONNX file."""

    def __init__(self, path: Path) -> None:
        self.model = onnx.load(path)
        self.graph = self.model.graph

    def node(self, name: str) -> onnx.NodeProto:
        (found,) = [node for node in self.graph.node if node.name == name]
        return found

    def values(self, name: str) -> Any:
        (found,) = [tensor for tensor in self.graph.initializer if tensor.name == name]
        return numpy_helper.to_array(found)

    def add(self, name: str, values: Any) -> str:
        self.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def replace(self, old: str, new: str) -> None:
        """Whoever read the value `old` reads `new`."""
        for node in self.graph.node:
            for place, name in enumerate(node.input):
                if name == old:
                    node.input[place] = new

    def remove(self, *names: str) -> None:
        for name in names:
            self.graph.node.remove(self.node(name))

    def save(self, path: Path) -> Path:
        onnx.checker.check_model(self.model)
        onnx.save(self.model, path)
        return path


def scale_on_wrong_axis(source: Path, out: Path, matmul: str) -> Path:
    """The weight, a square one, is scaled along its rows, not its columns."""
    graph = Graph(source)
    (axis,) = graph.node(f"{matmul}.weight_dequantized").attribute
    axis.i = 0
    return graph.save(out)


def activation_only(source: Path, out: Path, matmul: str) -> Path:
    """The weight is float; the activation keeps its Q/DQ."""
    graph = Graph(source)
    dequantize = graph.node(f"{matmul}.weight_dequantized")
    weight, scale = (graph.values(name) for name in dequantize.input[:2])
    name = graph.add(f"{matmul}.weight_float", (weight * scale).astype(scale.dtype))
    graph.replace(dequantize.output[0], name)
    graph.remove(dequantize.name)
    return graph.save(out)


def weight_only(source: Path, out: Path, matmul: str) -> Path:
    """The activation is float; the weight keeps its DQ."""
    graph = Graph(source)
    quantize = graph.node(f"{matmul}.input_int8")
    graph.replace(graph.node(f"{matmul}.input_dequantized").output[0], quantize.input[0])
    graph.remove(f"{matmul}.input_int8", f"{matmul}.input_dequantized")
    return graph.save(out)


def fused_qkv(source: Path, out: Path, attention: str, layout: str) -> Path:
    """q, k and v of an attention as one MatMul, cut apart again behind it.

    layout: of the int8 weight. `columns` [D,3D] keeps INT8. `reshaped` [D,3,D], one scale for the
    three, made [D,3D] behind its DequantizeLinear, loses it. `batched` [3,D,D] is multiplied as
    three matrices, which a large batch copies at run time.
    """
    graph = Graph(source)
    parts = [f"{attention}.{part}_proj" for part in ("q", "k", "v")]
    quantized = [graph.node(f"{part}.weight_dequantized").input[:2] for part in parts]
    weights, scales = zip(*([graph.values(n) for n in names] for names in quantized), strict=True)
    activation = graph.node(f"{parts[0]}.input_dequantized")
    outputs = [graph.node(part).output[0] for part in parts]
    new = {"columns": _columns, "reshaped": _reshaped, "batched": _batched}[layout](
        graph, activation.output[0], outputs, weights, scales
    )
    for part in parts:
        graph.remove(part, f"{part}.weight_dequantized")
    for part in parts[1:]:
        graph.remove(f"{part}.input_int8", f"{part}.input_dequantized")
    place = list(graph.graph.node).index(activation)
    for offset, node in enumerate(new):
        graph.graph.node.insert(place + 1 + offset, node)
    return graph.save(out)


def _columns(graph: Graph, x: str, outputs: list[str], weights: Any, scales: Any) -> list[Any]:
    graph.add("qkv.int8", np.concatenate(weights, axis=1))
    graph.add("qkv.scale", np.concatenate(scales))
    return [
        _node("DequantizeLinear", ["qkv.int8", "qkv.scale"], "qkv.weight", axis=1),
        _node("MatMul", [x, "qkv.weight"], "qkv"),
        helper.make_node("Split", ["qkv"], outputs, name="qkv.split", axis=-1, num_outputs=3),
    ]


def _reshaped(graph: Graph, x: str, outputs: list[str], weights: Any, scales: Any) -> list[Any]:
    graph.add("qkv.int8", np.stack(weights, axis=1))
    graph.add("qkv.scale", scales[0])
    graph.add("qkv.shape", np.array([0, -1], dtype=np.int64))
    return [
        _node("DequantizeLinear", ["qkv.int8", "qkv.scale"], "qkv.3d", axis=2),
        _node("Reshape", ["qkv.3d", "qkv.shape"], "qkv.weight"),
        _node("MatMul", [x, "qkv.weight"], "qkv"),
        helper.make_node("Split", ["qkv"], outputs, name="qkv.split", axis=-1, num_outputs=3),
    ]


def _batched(graph: Graph, x: str, outputs: list[str], weights: Any, scales: Any) -> list[Any]:
    graph.add("qkv.int8", np.stack(weights))
    graph.add("qkv.scale", scales[0])
    graph.add("qkv.axis", np.array([1], dtype=np.int64))
    nodes = [
        _node("DequantizeLinear", ["qkv.int8", "qkv.scale"], "qkv.weight", axis=2),
        _node("Unsqueeze", [x, "qkv.axis"], "qkv.input"),
        _node("MatMul", ["qkv.input", "qkv.weight"], "qkv"),
    ]
    for place, output in enumerate(outputs):
        graph.add(f"qkv.{place}", np.array(place, dtype=np.int64))
        names = ["qkv", f"qkv.{place}"]
        nodes.append(
            helper.make_node("Gather", names, [output], name=f"qkv.picked.{place}", axis=1)
        )
    return nodes


def _node(kind: str, inputs: list[str], output: str, **attributes: int) -> Any:
    return helper.make_node(kind, inputs, [output], name=output, **attributes)
