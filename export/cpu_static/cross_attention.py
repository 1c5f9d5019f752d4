"""Cross-attention over scaled (or plain) dot products as one node a layer.

    query rows -> Reshape, Transpose -> MatMul(cross_k transposed) -> Where(src_mask) -> Softmax
    -> MatMul(cross_v) -> Transpose, Reshape -> context rows
    1. becomes MultiHeadAttention(query [B,K,H*Dh], cross_k, cross_v, mask [B,S] as int32): beams
       lie on the query axis as before. Masked scores get -1e4 added instead of being replaced by
       it; after the softmax both are 0.
    2. Other scores (additive) stay as they are, nodes and all.

Transposing cross_k in the encoder instead gained nothing: the product reads it either way.
"""

from __future__ import annotations

import onnx_ir as ir

from export.cpu_static.editing import (
    CONTRIB,
    UnfitError,
    add_node,
    input_named,
    made_by,
    scope_of,
    sizes,
    used_by,
)
from model.attention import MASKED_SCORE
from runtime.graph_contract import SRC_MASK, TOKEN_IDS, cross_names
from runtime.manifest import ModelSpec


def fuse_cross_attention(graph: ir.Graph, model: ModelSpec, *, row_dims: int) -> int:
    """Rewrites each layer whose scores are dot products; how many these were.

    row_dims: of a token's row, 2 for [N,D] and 3 for [N,1,D].
    """
    names = cross_names(model.decoder_layers)
    fused = 0
    for key, value in zip(names[0::2], names[1::2], strict=True):
        try:
            found = _Pattern(input_named(graph, key), input_named(graph, value))
        except UnfitError:
            continue
        _rewrite(graph, model, found, row_dims)
        fused += 1
    return fused


class _Pattern:
    """The nodes between the rows of queries and the rows of contexts."""

    def __init__(self, cross_k: ir.Value, cross_v: ir.Value) -> None:
        self.cross_k, self.cross_v = cross_k, cross_v
        scores = used_by(used_by(cross_k, "Transpose").outputs[0], "MatMul")
        where = used_by(scores.outputs[0], "Where")
        context = used_by(used_by(where.outputs[0], "Softmax").outputs[0], "MatMul")
        if context.inputs[1] is not cross_v:
            raise UnfitError(f"{context.name} does not weigh {cross_v.name}")
        self.last = used_by(used_by(context.outputs[0], "Transpose").outputs[0], "Reshape")
        shaped = made_by(made_by(scores.inputs[0], "Transpose").inputs[0], "Reshape")
        rows = shaped.inputs[0]
        assert rows is not None
        self.rows = rows


def _rewrite(graph: ir.Graph, model: ModelSpec, found: _Pattern, row_dims: int) -> None:
    inner = model.num_heads * model.head_dim
    scope = scope_of(found.last)
    by_sentence = add_node(
        found.last, "Reshape", [found.rows, beam_shape(graph)], f"{scope}.queries"
    )  # [B,K,H*Dh]
    attention = add_node(
        found.last,
        "MultiHeadAttention",
        [by_sentence.outputs[0], found.cross_k, found.cross_v, None, source_mask(graph)],
        f"{scope}.attention",
        domain=CONTRIB,
        num_heads=model.num_heads,
        mask_filter_value=MASKED_SCORE,
        scale=1.0,
    )
    target = sizes(graph, -1, *([1] if row_dims == 3 else []), inner)
    rows = add_node(found.last, "Reshape", [attention.outputs[0], target], f"{scope}.context")
    found.last.outputs[0].replace_all_uses_with(rows.outputs[0])


def beam_shape(graph: ir.Graph) -> ir.Value:
    """int64 [3]: B, K, and -1 for the rest; computed once a step."""
    for node in graph:
        if node.name == "beam_shape":
            return node.outputs[0]
    first = graph[0]
    shape = add_node(first, "Shape", [input_named(graph, TOKEN_IDS)], "beams")
    parts = [shape.outputs[0], sizes(graph, -1)]
    return add_node(first, "Concat", parts, "beam_shape", axis=0).outputs[0]


def source_mask(graph: ir.Graph) -> ir.Value:
    """src_mask as int32 [B,S]."""
    for node in graph:
        if node.name == "source_mask":
            return node.outputs[0]
    mask = input_named(graph, SRC_MASK)
    cast = add_node(graph[0], "Cast", [mask], "source_mask", to=ir.DataType.INT32)
    return cast.outputs[0]
