"""What the passes have in common: finding nodes by what stands around them, and replacing them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir.passes import common as passes

from export.clean import IR_VERSION
from export.errors import ExportError

CONTRIB = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""


class UnfitError(ExportError):
    """The graph is not of the form that a pass rewrites; its text says what was found. The bundle
    does without the variant then."""


def constant(graph: ir.Graph, name: str, array: npt.NDArray[Any]) -> ir.Value:
    """The initializer of that name; made where it is not there yet."""
    if name in graph.initializers:
        return graph.initializers[name]
    value = ir.Value(name=name, const_value=ir.tensor(array, name=name))
    value.dtype, value.shape = ir.DataType.from_numpy(array.dtype), ir.Shape(array.shape)
    graph.register_initializer(value)
    return value


def sizes(graph: ir.Graph, *values: int) -> ir.Value:
    """An int64 constant [n]: the target of a Reshape, axes."""
    name = "sizes." + ".".join(str(value) for value in values)
    return constant(graph, name, np.array(values, dtype=np.int64))


def array_of(value: ir.Value | None) -> npt.NDArray[Any]:
    """The content of an initializer."""
    if value is None or value.const_value is None:
        raise UnfitError(f"{name_of(value)} is not constant")
    array: npt.NDArray[Any] = value.const_value.numpy()
    return array


def add_node(
    before: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    name: str,
    *,
    outputs: int = 1,
    domain: str = "",
    **attributes: Any,
) -> ir.Node:
    """A new node in front of another; its values are NAME:0, NAME:1, ..."""
    node = ir.node(
        op_type, inputs, attributes, domain=domain, num_outputs=outputs, name=name, version=None
    )
    for index, value in enumerate(node.outputs):
        value.name = f"{name}:{index}"
    graph = before.graph
    assert graph is not None
    graph.insert_before(before, node)
    return node


def made_by(value: ir.Value | None, op_type: str) -> ir.Node:
    """The node of that type that makes a value."""
    node = None if value is None else value.producer()
    if node is None or node.op_type != op_type:
        found = "nothing" if node is None else node.op_type
        raise UnfitError(f"{name_of(value)} is made by {found}, not by {op_type}")
    return node


def used_by(value: ir.Value, op_type: str) -> ir.Node:
    """The only node that reads a value, of that type."""
    nodes = [usage.node for usage in value.uses()]
    if len(nodes) != 1 or nodes[0].op_type != op_type:
        found = ", ".join(node.op_type for node in nodes) or "nothing"
        raise UnfitError(f"{name_of(value)} is read by {found}, not by one {op_type}")
    return nodes[0]


def input_named(graph: ir.Graph, name: str) -> ir.Value:
    """The graph's input of that name."""
    for value in graph.inputs:
        if value.name == name:
            return value
    raise UnfitError(f"there is no input {name}")


def output_index(graph: ir.Graph, name: str) -> int:
    """Where the output of that name stands."""
    for index, value in enumerate(graph.outputs):
        if value.name == name:
            return index
    raise UnfitError(f"there is no output {name}")


def set_output(graph: ir.Graph, name: str, value: ir.Value) -> None:
    """Makes a value the graph's output of that name, in the place of the one that was."""
    index = output_index(graph, name)
    old = graph.outputs[index]
    if old is not value:
        old.name = f"{name}.before"
        graph.outputs[index] = value
        value.name = name
        value.type, value.shape = old.type, old.shape


def remove_unused(graph: ir.Graph) -> None:
    """Drops what no output needs."""
    passes.RemoveUnusedNodesPass()(ir.Model(graph, ir_version=IR_VERSION))


def scope_of(node: ir.Node) -> str:
    """`decoder.layers.0.self_residual` of `decoder.layers.0.self_residual.reshape.4`."""
    parts = str(node.name).split(".")
    if parts[-1].isdecimal():
        parts.pop()
    return ".".join(parts[:-1])


def name_of(value: ir.Value | None) -> str:
    return "nothing" if value is None else str(value.name)
