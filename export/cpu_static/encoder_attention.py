"""Self-attention of the encoder as one node a layer.

q, k, v [B,S,H*Dh] -> Reshape, Transpose each -> MatMul(k transposed) -> Where(src_mask)
-> Softmax -> MatMul(v) -> Transpose, Reshape -> context [B,S,H*Dh]
1. becomes MultiHeadAttention(q, k, v, mask [B,S] as int32). Masked scores get -1e4 added instead
   of being replaced by it; after the softmax both are 0.
2. Where q or k are turned by their positions first (rotary), they are shaped back to
   [B,S,H*Dh]: nothing is gained there, so the layer stays as it is.
"""

from __future__ import annotations

import onnx_ir as ir

from export.cpu_static.cross_attention import source_mask
from export.cpu_static.editing import (
    CONTRIB,
    UnfitError,
    add_node,
    array_of,
    made_by,
    scope_of,
    used_by,
)
from model.attention import MASKED_SCORE


def fuse_encoder_attention(graph: ir.Graph) -> int:
    """Rewrites each layer's self-attention; how many there were."""
    fused = 0
    for node in list(graph):
        if node.op_type != "Softmax":
            continue
        try:
            _rewrite(graph, node)
        except UnfitError:
            continue
        fused += 1
    return fused


def _rewrite(graph: ir.Graph, softmax: ir.Node) -> None:
    where = made_by(softmax.inputs[0], "Where")
    scores = made_by(where.inputs[1], "MatMul")
    context = used_by(softmax.outputs[0], "MatMul")
    last = used_by(used_by(context.outputs[0], "Transpose").outputs[0], "Reshape")
    q, heads = _before_heads(scores.inputs[0])
    k, _ = _before_heads(made_by(scores.inputs[1], "Transpose").inputs[0])
    v, _ = _before_heads(context.inputs[1])
    scope = scope_of(last)
    attention = add_node(
        last,
        "MultiHeadAttention",
        [q, k, v, None, source_mask(graph)],
        f"{scope}.attention",
        domain=CONTRIB,
        num_heads=heads,
        mask_filter_value=MASKED_SCORE,
        scale=1.0,
    )
    last.outputs[0].replace_all_uses_with(attention.outputs[0])


def _before_heads(value: ir.Value | None) -> tuple[ir.Value, int]:
    """[B,H,S,Dh] -> the [B,S,H*Dh] that it was made of, and H."""
    shaped = made_by(made_by(value, "Transpose").inputs[0], "Reshape")
    target = array_of(shaped.inputs[1]).tolist()  # B, S, H, Dh
    source = shaped.inputs[0]
    assert source is not None
    return source, int(target[2])
