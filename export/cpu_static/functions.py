"""Nodes of a graph become the calls of a function that holds them.

A region is what stands between some inputs and some outputs. The first region of a name makes the
function; each later one has to be the same, node by node, but for its inputs and attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx
import onnx_ir as ir

from export.cpu_static.editing import CONTRIB, UnfitError, set_output
from runtime.native_kernels import DOMAIN, VERSION

_SMALL = 16
"""Elements: a constant of at most so many is part of a function."""


@dataclass(kw_only=True)
class Region:
    """The nodes between inputs and outputs, which are to be one call.

    attributes: by a node's operator the one of its attributes that is the call's. shape: one more
    input, the last, which only the nodes need. width: D, where float outputs are rows of D.
    """

    name: str
    inputs: list[ir.Value]
    outputs: list[ir.Value]
    attributes: dict[str, str] = field(default_factory=dict)
    shape: ir.Value | None = None
    width: int | None = None

    @property
    def operands(self) -> list[ir.Value]:
        return [*self.inputs, *([] if self.shape is None else [self.shape])]

    def nodes(self) -> list[ir.Node]:
        """In the graph's order. Raises UnfitError where an input does not bound them."""
        found: set[ir.Node] = set()
        waiting = list(self.outputs)
        while waiting:
            value = waiting.pop()
            node = value.producer()
            if value in self.operands or node in found:
                continue
            if node is None:
                if not value.is_initializer():
                    raise UnfitError(f"{self.name}: {value.name} comes from elsewhere")
                continue
            found.add(node)
            waiting.extend(operand for operand in node.inputs if operand is not None)
        graph = self.outputs[0].graph
        assert graph is not None
        return [node for node in graph if node in found]


class Functions:
    """The functions of a model, each made of the first region of its name."""

    def __init__(self, model: ir.Model, flat_rows: bool) -> None:
        self._model, self._flat_rows = model, flat_rows
        self.calls = 0

    def call(self, region: Region) -> None:
        """Puts a call in the place of the region's outputs. Raises UnfitError where it computes
        something else than the function of its name does."""
        nodes = region.nodes()
        function, attributes = _function_of(region, nodes)
        known = self._model.functions.setdefault(function.identifier(), function)
        if _text(known) != _text(function):
            raise UnfitError(f"{region.name}: {nodes[-1].name} computes something else")
        graph = self._model.graph
        call = ir.node(
            region.name,
            region.operands,
            attributes,
            domain=DOMAIN,
            num_outputs=len(region.outputs),
            name=f"{nodes[-1].name}.fused",
            version=None,
        )
        graph.append(call)
        for old, new in zip(region.outputs, call.outputs, strict=True):
            name = str(old.name)
            if old.is_graph_output():
                set_output(graph, name, new)
            else:
                new.name = f"{name}.fused"
                self._type(region, new, old)
            inside = [usage for usage in old.uses() if usage.node in nodes]
            for usage in [usage for usage in old.uses() if usage not in inside]:
                usage.node.replace_input_with(usage.idx, new)
        self.calls += 1

    def finish(self) -> None:
        """Puts the nodes in order, and says what the model and its functions need."""
        graph = self._model.graph
        graph.sort()
        _drop_unread_outputs(graph)
        for function in self._model.functions.values():
            for domain, version in ((CONTRIB, 1), (DOMAIN, VERSION)):
                if any(node.domain == domain for node in function):
                    function.opset_imports[domain] = version
        if self._model.functions:
            self._model.opset_imports[DOMAIN] = VERSION

    def _type(self, region: Region, value: ir.Value, old: ir.Value) -> None:
        """What nobody can infer of an operator of ours. ONNX Runtime makes one Gemm of a MatMul and
        its bias only where it knows that there are two dimensions."""
        producer = old.producer()
        is_bytes = producer is not None and producer.op_type == "QuantizeLinear"
        value.type = ir.TensorType(ir.DataType.UINT8 if is_bytes else ir.DataType.FLOAT)
        if self._flat_rows and region.width is not None:
            value.shape = ir.Shape(["N", region.width])


def _function_of(
    region: Region, nodes: Sequence[ir.Node]
) -> tuple[ir.Function, dict[str, ir.Attr]]:
    """The function, and the attributes of this call."""
    values: dict[ir.Value, ir.Value] = {}
    for index, value in enumerate(region.operands):
        values[value] = ir.Value(name=f"in.{index}")
    body: list[ir.Node] = []
    given: dict[str, ir.Attr] = {}
    for node in nodes:
        operands: list[ir.Value | None] = []
        for operand in node.inputs:
            if operand is not None and operand not in values:
                body.append(_constant_node(region, operand))
                values[operand] = body[-1].outputs[0]
                values[operand].name = f"constant.{len(body)}"
            operands.append(None if operand is None else values[operand])
        attributes = dict(node.attributes)
        chosen = region.attributes.get(node.op_type)
        if chosen is not None:
            given[chosen] = attributes[chosen]
            attributes[chosen] = ir.RefAttr(chosen, chosen, attributes[chosen].type)
        copy = ir.Node(
            node.domain,
            node.op_type,
            operands,
            attributes.values(),
            num_outputs=len(node.outputs),
            name=f"{node.op_type}.{len(body)}",
        )
        for index, (old, new) in enumerate(zip(node.outputs, copy.outputs, strict=True)):
            new.name = f"{copy.name}.{index}"
            values[old] = new
        body.append(copy)
    graph = ir.Graph(
        [values[value] for value in region.operands],
        [values[value] for value in region.outputs],
        nodes=body,
        opset_imports={"": nodes[0].graph.opset_imports[""]},
        name=region.name,
    )
    parameters = [ir.Attr(name, attribute.type, None) for name, attribute in given.items()]
    return ir.Function(DOMAIN, region.name, graph=graph, attributes=parameters), given


def _constant_node(region: Region, value: ir.Value) -> ir.Node:
    tensor = value.const_value
    if tensor is None or tensor.size > _SMALL:
        raise UnfitError(f"{region.name} reads {value.name}, which is no small constant")
    return ir.node("Constant", [], {"value": ir.tensor(tensor.numpy())}, version=None)


def _text(function: ir.Function) -> bytes:
    proto: onnx.FunctionProto = ir.to_proto(function)
    text: bytes = proto.SerializeToString(deterministic=True)
    return text


def _drop_unread_outputs(graph: ir.Graph) -> None:
    """A kernel writes what has a name."""
    for node in graph:
        for value in node.outputs if node.domain == DOMAIN else ():
            if not value.uses() and not value.is_graph_output():
                value.name = ""
