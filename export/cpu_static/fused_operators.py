"""What stands between two products becomes one operator of domain `leanseq`, which is a function.

SelfAttention      caches, q, k, v -> context
CrossAttention     queries, cross_k, cross_v -> context
EncoderAttention   q, k, v of whole sources -> context
SplitHeads         x [B,S,H*E] -> [B,H,S,E]
AddNorm            x, y -> x + y, its layer normalization
Embedding          token ids -> their int8 rows, scaled, plus the position's
BestCandidates     logits, sum_log_probs -> the 2K best continuations
ReluQuantize       x -> max(x, 0) in uint8
PackedSelfAttention, PackedEncoderAttention: the same of q, k and v behind each other
1. A node of the graph calls the operator; the file says as an ONNX function what it computes,
   by the nodes that were there. Whoever has no kernel of that name runs these: ONNX Runtime
   puts them in the call's place when it loads the graph. Those of runtime/native do it in one
   go (docs/decisions/0019-native-kernels.md).
2. Where the result is quantized for the product behind it, the operator does that too and is
   called SelfAttentionQuantize and so on; its last inputs are scale and zero point, its last
   output is the uint8 tensor. The float one stays where something else reads it.
3. Small constants are part of the function, so all calls of one must agree in them: a call that
   would not stays as it is. So does attention that scales its scores, or masks them with another
   value than MASKED_SCORE.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx
import onnx_ir as ir

from export.cpu_static.candidates import LOG_SOFTMAX
from export.cpu_static.editing import (
    CONTRIB,
    UnfitError,
    array_of,
    input_named,
    made_by,
    output_index,
    remove_unused,
    set_output,
    used_by,
)
from model.attention import MASKED_SCORE
from runtime.graph_contract import CANDIDATE_IDS, PARENTS, SCORES, SUM_LOG_PROBS
from runtime.native_kernels import DOMAIN, VERSION
from runtime.static_contract import NUM_CANDIDATES

_SMALL = 16
"""Elements: a constant of at most so many is part of a function."""

_QUANTIZED = "Quantize"


def use_fused_operators(model: ir.Model, *, flat_rows: bool) -> int:
    """Rewrites all places that it knows; how many calls there are. flat_rows: a token's row is
    [N,D], not [N,1,D] or [B,S,D]."""
    graph = model.graph
    functions = _Functions(model, flat_rows)
    for node in list(graph):
        if node.graph is not graph:  # part of an operator by now
            continue
        make = _CALLS.get(str(node.name)) or _CALLS.get(node.op_type)
        if make is None:
            continue
        with contextlib.suppress(UnfitError):  # it stays as it is
            functions.call(make(node))
            remove_unused(graph)
    graph.sort()
    _drop_unread_outputs(graph)
    for function in model.functions.values():
        if any(node.domain == CONTRIB for node in function):
            function.opset_imports[CONTRIB] = 1
    if model.functions:
        model.opset_imports[DOMAIN] = VERSION
    return functions.calls


def _drop_unread_outputs(graph: ir.Graph) -> None:
    """A kernel writes what has a name."""
    for node in graph:
        for value in node.outputs if node.domain == DOMAIN else ():
            if not value.uses() and not value.is_graph_output():
                value.name = ""


@dataclass(kw_only=True)
class _Region:
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


class _Functions:
    """The functions of a model, each made of the first region of its name."""

    def __init__(self, model: ir.Model, flat_rows: bool) -> None:
        self._model, self._flat_rows = model, flat_rows
        self.calls = 0

    def call(self, region: _Region) -> None:
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

    def _type(self, region: _Region, value: ir.Value, old: ir.Value) -> None:
        """What nobody can infer of an operator of ours. ONNX Runtime makes one Gemm of a MatMul and
        its bias only where it knows that there are two dimensions."""
        producer = old.producer()
        is_bytes = producer is not None and producer.op_type == "QuantizeLinear"
        value.type = ir.TensorType(ir.DataType.UINT8 if is_bytes else ir.DataType.FLOAT)
        if self._flat_rows and region.width is not None:
            value.shape = ir.Shape(["N", region.width])


def _function_of(
    region: _Region, nodes: Sequence[ir.Node]
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


def _constant_node(region: _Region, value: ir.Value) -> ir.Node:
    tensor = value.const_value
    if tensor is None or tensor.size > _SMALL:
        raise UnfitError(f"{region.name} reads {value.name}, which is no small constant")
    return ir.node("Constant", [], {"value": ir.tensor(tensor.numpy())}, version=None)


def _text(function: ir.Function) -> bytes:
    proto: onnx.FunctionProto = ir.to_proto(function)
    text: bytes = proto.SerializeToString(deterministic=True)
    return text


def _present(*values: ir.Value | None) -> list[ir.Value]:
    """All of them. Raises UnfitError where one is absent."""
    found = [value for value in values if value is not None]
    if len(found) < len(values):
        raise UnfitError("an operator lacks an input")
    return found


def _quantized(region: _Region) -> _Region:
    """Rule 2: with the one QuantizeLinear that reads the last output, if there is one."""
    readers = [u.node for u in region.outputs[-1].uses() if u.node.op_type == "QuantizeLinear"]
    if len(readers) != 1:
        return region
    scale, zero_point = _present(*readers[0].inputs[1:])
    return dataclasses.replace(
        region,
        name=region.name + _QUANTIZED,
        inputs=[*region.inputs, scale, zero_point],
        outputs=[*region.outputs, readers[0].outputs[0]],
    )


def _width(heads: ir.Value) -> int | None:
    """H*Dh of [.,H,.,Dh]."""
    if heads.shape is None or len(heads.shape) != 4:
        return None
    count, size = heads.shape[1], heads.shape[3]
    return count * size if isinstance(count, int) and isinstance(size, int) else None


def _behind_reshape(value: ir.Value | None) -> ir.Value:
    """The value of which this one is only another shape, or itself: the kernels count rows."""
    assert value is not None
    node = value.producer()
    if node is None or node.op_type != "Reshape" or len(value.uses()) > 1:
        return value
    source = node.inputs[0]
    assert source is not None
    return source


def _before_reshape(value: ir.Value) -> ir.Value:
    try:
        return used_by(value, "Reshape").outputs[0]
    except UnfitError:
        return value


def _check_attention(node: ir.Node) -> None:
    """The kernels know of no scale, and of one value for what is masked."""
    masked = node.attributes.get("mask_filter_value")
    if node.attributes["scale"].as_float() != 1.0 or (
        masked is not None and masked.as_float() != MASKED_SCORE
    ):
        raise UnfitError(f"{node.name} scales or masks its scores otherwise")


def _self_attention(node: ir.Node) -> _Region:
    _check_attention(node)
    name, rows = _queries_keys_values("SelfAttention", node)
    rest = [value for value in node.inputs[5:] if value is not None]
    context, keys, values = node.outputs
    outputs = [keys, values, _before_reshape(context)]
    return _quantized(
        _Region(name=name, inputs=[*rows, *rest], outputs=outputs, width=_width(rest[0]))
    )


def _queries_keys_values(name: str, node: ir.Node) -> tuple[str, list[ir.Value]]:
    """The operator's name and its first inputs: q, k and v, or what is split into them."""
    makers = {value.producer() for value in node.inputs[:3] if value is not None}
    split = makers.pop()
    if not makers and split is not None and split.op_type == "Split":
        return f"Packed{name}", _present(split.inputs[0])
    return name, [_behind_reshape(value) for value in node.inputs[:3]]


def _attention_to_source(node: ir.Node) -> _Region:
    _check_attention(node)
    query, keys, values, mask = _present(*node.inputs[:3], node.inputs[4])
    if keys.producer() is not None:  # the encoder's own; a step gets its keys in heads
        name, rows = _queries_keys_values("EncoderAttention", node)
        return _quantized(
            _Region(
                name=name,
                inputs=[*rows, mask],
                outputs=[node.outputs[0]],
                attributes={"MultiHeadAttention": "num_heads"},
            )
        )
    width = _width(keys)
    source = _behind_reshape(query)
    return _quantized(
        _Region(
            name="CrossAttention",
            inputs=[source, keys, values, mask],
            outputs=[_before_reshape(node.outputs[0])],
            shape=None if source is query else made_by(query, "Reshape").inputs[1],
            width=width,
        )
    )


def _split_heads(node: ir.Node) -> _Region:
    """node: the Transpose."""
    x, shape = _present(*made_by(node.inputs[0], "Reshape").inputs)
    if node.attributes["perm"].as_ints() != (0, 2, 1, 3) or array_of(shape).size != 4:
        raise UnfitError(f"{node.name} does not split heads")
    return _Region(name="SplitHeads", inputs=[x, shape], outputs=[node.outputs[0]])


def _add_norm(node: ir.Node) -> _Region:
    """A residual connection: of x and what a product gave, which has x's shape. (Positions are
    added to embeddings of another.)"""
    if len(node.inputs) != 3:
        raise UnfitError(f"{node.name} lacks a gain or a bias")
    total, gain, bias = _present(*node.inputs)
    x, y = _present(*made_by(total, "Add").inputs)
    added = [value for value in (x, y) if not value.is_initializer()]
    if len(added) < 2 or not any(map(_is_product, added)):
        raise UnfitError(f"{node.name} normalizes no residual connection")
    return _quantized(
        _Region(
            name="AddNorm",
            inputs=[x, y, gain, bias],
            outputs=[total, node.outputs[0]],
            attributes={"LayerNormalization": "epsilon"},
            width=array_of(gain).size,
        )
    )


def _is_product(value: ir.Value) -> bool:
    """Of rows with a weight, with or without its bias."""
    node = value.producer()
    if node is not None and node.op_type == "Add":
        node = next((v.producer() for v in node.inputs if v and v.producer()), None)
    return node is not None and node.op_type.startswith("MatMul")


def _relu_quantize(node: ir.Node) -> _Region:
    source = node.inputs[0]
    assert source is not None
    region = _quantized(_Region(name="Relu", inputs=[source], outputs=[node.outputs[0]]))
    if not region.name.endswith(_QUANTIZED) or len(node.outputs[0].uses()) > 1:
        raise UnfitError(f"{node.name} is not quantized, or read by something else too")
    return dataclasses.replace(region, outputs=region.outputs[-1:])


def _embedding(node: ir.Node) -> _Region:
    """node: the Mul of rows and their scales."""
    cast, factors = (made_by(node.inputs[0], "Cast"), made_by(node.inputs[1], "Gather"))
    rows = made_by(cast.inputs[0], "Gather")
    add = used_by(node.outputs[0], "Add")
    positions = made_by(add.inputs[1 - node.outputs[0].uses()[0].idx], "Gather")
    shaped = used_by(add.outputs[0], "Reshape")
    inputs = _present(rows.inputs[1], rows.inputs[0], factors.inputs[0], *positions.inputs)
    return _quantized(_Region(name="Embedding", inputs=inputs, outputs=[shaped.outputs[0]]))


def _best_candidates(node: ir.Node) -> _Region:
    """node: the LogSoftmax that candidates are chosen by."""
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    outputs = [
        graph.outputs[output_index(graph, name)] for name in (SCORES, CANDIDATE_IDS, PARENTS)
    ]
    sums, count = input_named(graph, SUM_LOG_PROBS), input_named(graph, NUM_CANDIDATES)
    [logits] = _present(node.inputs[0])
    shapes = [node.outputs[0] for node in graph if node.name == "beam_shape"]
    return _Region(
        name="BestCandidates",
        inputs=[logits, sums, count],
        outputs=outputs,
        shape=shapes[0] if shapes else None,
    )


_CALLS = {
    "DecoderMaskedMultiHeadAttention": _self_attention,
    "MultiHeadAttention": _attention_to_source,
    "Transpose": _split_heads,
    "LayerNormalization": _add_norm,
    "Relu": _relu_quantize,
    "Mul": _embedding,
    LOG_SOFTMAX: _best_candidates,
}
"""What makes a region of a node, by its operator or its name."""
