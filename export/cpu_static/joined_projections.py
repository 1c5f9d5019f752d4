"""q, k and v of a self-attention as one product.

x in uint8 -> MatMulIntegerToFloat, three times -> (DecoderMasked)MultiHeadAttention
1. The three become one, whose weight [I,3*O], scales and bias are theirs beside each other, and a
   Split. They read the same x under the same scale, so each number of each is what it was.
2. Where positions turn q and k before the attention, the layer stays as it is.

Every product costs ONNX Runtime some microseconds beside its multiplying. Its attention takes no
packed q, k and v on a CPU, so the Split takes up most of what that gains; leanseq's kernel does
(export.cpu_static.fused_operators).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from export.cpu_static.editing import (
    CONTRIB,
    UnfitError,
    add_node,
    array_of,
    constant,
    made_by,
    remove_unused,
    sizes,
)

_ATTENTION = ("DecoderMaskedMultiHeadAttention", "MultiHeadAttention")


def join_projections(graph: ir.Graph) -> int:
    """Rewrites each self-attention whose projections are integer products; how many these were."""
    remove_unused(graph)  # or what the attention was made of reads them too
    joined = 0
    for node in list(graph):
        if node.op_type in _ATTENTION:
            try:
                _join(graph, node)
            except UnfitError:
                continue
            joined += 1
    remove_unused(graph)
    return joined


def _join(graph: ir.Graph, attention: ir.Node) -> None:
    products = [made_by(value, "MatMulIntegerToFloat") for value in attention.inputs[:3]]
    x, _, scale, _, zero_point, *_ = products[0].inputs
    for product in products:
        if product.inputs[0] is not x or product.inputs[2] is not scale:
            raise UnfitError(f"{product.name} reads another tensor")
        if len(product.outputs[0].uses()) != 1:
            raise UnfitError(f"{product.name} is read by something else too")
    weights, scales, biases = (
        [array_of(product.inputs[index]) for product in products] for index in (1, 3, 6)
    )
    name = f"{str(products[0].name).removesuffix('q_proj')}qkv_proj"
    joined = add_node(
        products[0],
        "MatMulIntegerToFloat",
        [
            x,
            constant(graph, f"{name}.weight.int8", np.concatenate(weights, axis=1)),
            scale,
            constant(graph, f"{name}.weight.scale", np.concatenate(scales)),
            zero_point,
            None,
            constant(graph, f"{name}.bias", np.concatenate(biases)),
        ],
        name,
        domain=CONTRIB,
    )
    widths = sizes(graph, *(weight.shape[1] for weight in weights))
    split = add_node(
        products[0], "Split", [joined.outputs[0], widths], f"{name}.split", outputs=3, axis=-1
    )
    for product, part in zip(products, split.outputs, strict=True):
        product.outputs[0].replace_all_uses_with(part)
