"""What stands between two products becomes one operator of domain `leanseq`, which is a function.

SelfAttention      caches, q, k, v -> context
CrossAttention     queries, cross_k, cross_v -> context
EncoderAttention   q, k, v of whole sources -> context
SplitHeads         x [B,S,H*E] -> [B,H,S,E]
AddNorm            x, y -> x + y, its layer normalization
Embedding          token ids -> their int8 rows, scaled, plus the position's
BestCandidates     logits, sum_log_probs -> the 2K best continuations
BestContinuations  rows in uint8, the weight that makes the logits, ... -> the same, log_probs
ReluQuantize       x -> max(x, 0) in uint8
PackedSelfAttention, PackedEncoderAttention: the same of q, k and v behind each other
1. A node of the graph calls the operator; the file says as an ONNX function what it computes,
   by the nodes that were there. Whoever has no kernel of that name runs these: ONNX Runtime
   puts them in the call's place when it loads the graph. Those of runtime/native do it in one
   go (docs/decisions/0019-native-kernels.md).
2. Where the result is quantized for the product behind it, the operator does that too and is
   called SelfAttentionQuantize and so on; its last inputs are scale and zero point, its last
   output is the uint8 tensor. The float one stays where something else reads it.
3. BestContinuations holds a BestCandidates in its turn: for processors that its kernel does not
   know, ONNX Runtime makes the logits, and the kernel of the other chooses among them.
4. Small constants are part of the function, so all calls of one must agree in them: a call that
   would not stays as it is. So does attention that scales its scores, or masks them with another
   value than MASKED_SCORE.
"""

from __future__ import annotations

import contextlib
import dataclasses

import onnx_ir as ir

from export.cpu_static.candidates import LOG_SOFTMAX
from export.cpu_static.editing import (
    UnfitError,
    array_of,
    input_named,
    made_by,
    output_index,
    remove_unused,
    used_by,
)
from export.cpu_static.functions import Functions, Region
from export.cpu_static.packed_weight import pack_weight, stored_weight
from model.attention import MASKED_SCORE
from runtime.graph_contract import CANDIDATE_IDS, LOG_PROBS, PARENTS, SCORES, SUM_LOG_PROBS
from runtime.static_contract import LOG_PROB_SENTENCES, NUM_CANDIDATES

_QUANTIZED = "Quantize"
_BEST = "BestCandidates"


def use_fused_operators(model: ir.Model, *, flat_rows: bool) -> int:
    """Rewrites all places that it knows; how many calls there are. flat_rows: a token's row is
    [N,D], not [N,1,D] or [B,S,D]."""
    graph = model.graph
    functions = Functions(model, flat_rows)
    for node in list(graph):
        if node.graph is not graph:  # part of an operator by now
            continue
        make = _CALLS.get(str(node.name)) or _CALLS.get(node.op_type)
        if make is None:
            continue
        with contextlib.suppress(UnfitError):  # it stays as it is
            functions.call(make(node))
            remove_unused(graph)
    for node in [node for node in graph if node.op_type == _BEST]:
        with contextlib.suppress(UnfitError):
            functions.call(_best_continuations(graph, node))
        remove_unused(graph)
    functions.finish()
    return functions.calls


def _present(*values: ir.Value | None) -> list[ir.Value]:
    """All of them. Raises UnfitError where one is absent."""
    found = [value for value in values if value is not None]
    if len(found) < len(values):
        raise UnfitError("an operator lacks an input")
    return found


def _quantized(region: Region) -> Region:
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


def _behind_reshape(value: ir.Value) -> ir.Value:
    """The value of which this one is only another shape, or itself: the kernels count rows."""
    node = value.producer()
    if node is None or node.op_type != "Reshape" or len(value.uses()) > 1:
        return value
    return _present(node.inputs[0])[0]


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


def _self_attention(node: ir.Node) -> Region:
    _check_attention(node)
    name, rows = _queries_keys_values("SelfAttention", node)
    rest = [value for value in node.inputs[5:] if value is not None]
    context, keys, values = node.outputs
    outputs = [keys, values, _before_reshape(context)]
    return _quantized(
        Region(name=name, inputs=[*rows, *rest], outputs=outputs, width=_width(rest[0]))
    )


def _queries_keys_values(name: str, node: ir.Node) -> tuple[str, list[ir.Value]]:
    """The operator's name and its first inputs: q, k and v, or what is split into them."""
    values = _present(*node.inputs[:3])
    makers = {value.producer() for value in values}
    split = makers.pop()
    if not makers and split is not None and split.op_type == "Split":
        return f"Packed{name}", _present(split.inputs[0])
    return name, [_behind_reshape(value) for value in values]


def _attention_to_source(node: ir.Node) -> Region:
    _check_attention(node)
    query, keys, values, mask = _present(*node.inputs[:3], node.inputs[4])
    if keys.producer() is not None:  # the encoder's own; a step gets its keys in heads
        name, rows = _queries_keys_values("EncoderAttention", node)
        return _quantized(
            Region(
                name=name,
                inputs=[*rows, mask],
                outputs=[node.outputs[0]],
                attributes={"MultiHeadAttention": "num_heads"},
            )
        )
    width = _width(keys)
    source = _behind_reshape(query)
    return _quantized(
        Region(
            name="CrossAttention",
            inputs=[source, keys, values, mask],
            outputs=[_before_reshape(node.outputs[0])],
            shape=None if source is query else made_by(query, "Reshape").inputs[1],
            width=width,
        )
    )


def _split_heads(node: ir.Node) -> Region:
    """node: the Transpose."""
    x, shape = _present(*made_by(node.inputs[0], "Reshape").inputs)
    if node.attributes["perm"].as_ints() != (0, 2, 1, 3) or array_of(shape).size != 4:
        raise UnfitError(f"{node.name} does not split heads")
    return Region(name="SplitHeads", inputs=[x, shape], outputs=[node.outputs[0]])


def _add_norm(node: ir.Node) -> Region:
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
        Region(
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


def _relu_quantize(node: ir.Node) -> Region:
    region = _quantized(
        Region(name="Relu", inputs=_present(node.inputs[0]), outputs=[node.outputs[0]])
    )
    if not region.name.endswith(_QUANTIZED) or len(node.outputs[0].uses()) > 1:
        raise UnfitError(f"{node.name} is not quantized, or read by something else too")
    return dataclasses.replace(region, outputs=region.outputs[-1:])


def _embedding(node: ir.Node) -> Region:
    """node: the Mul of rows and their scales."""
    cast, factors = (made_by(node.inputs[0], "Cast"), made_by(node.inputs[1], "Gather"))
    rows = made_by(cast.inputs[0], "Gather")
    add = used_by(node.outputs[0], "Add")
    positions = made_by(add.inputs[1 - node.outputs[0].uses()[0].idx], "Gather")
    shaped = used_by(add.outputs[0], "Reshape")
    inputs = _present(rows.inputs[1], rows.inputs[0], factors.inputs[0], *positions.inputs)
    return _quantized(Region(name="Embedding", inputs=inputs, outputs=[shaped.outputs[0]]))


def _best_candidates(node: ir.Node) -> Region:
    """node: the LogSoftmax that candidates are chosen by."""
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    outputs = [
        graph.outputs[output_index(graph, name)] for name in (SCORES, CANDIDATE_IDS, PARENTS)
    ]
    sums, count = input_named(graph, SUM_LOG_PROBS), input_named(graph, NUM_CANDIDATES)
    [logits] = _present(node.inputs[0])
    shapes = [node.outputs[0] for node in graph if node.name == "beam_shape"]
    return Region(
        name=_BEST,
        inputs=[logits, sums, count],
        outputs=outputs,
        shape=shapes[0] if shapes else None,
    )


def _best_continuations(graph: ir.Graph, call: ir.Node) -> Region:
    """call: of BestCandidates, to be one with the integer product that makes its logits."""
    logits, sums, count, *shape = _present(*call.inputs)
    product = made_by(made_by(logits, "Reshape").inputs[0], "MatMulIntegerToFloat")
    packed = pack_weight(graph, product)
    rows, scale, scales, zero_point, bias = _present(
        product.inputs[0], *product.inputs[2:5], product.inputs[6]
    )
    asked, stored = input_named(graph, LOG_PROB_SENTENCES), stored_weight(product)
    return Region(
        name="BestContinuations",
        inputs=[rows, packed, scale, scales, zero_point, bias, sums, count, asked, stored],
        outputs=[*call.outputs, graph.outputs[output_index(graph, LOG_PROBS)]],
        shape=shape[0] if shape else None,
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
