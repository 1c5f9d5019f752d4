"""Embeddings in INT8, out of the table that makes the logits.

weight [V,D] float -> Gather(ids) -> Mul(embedding scale)
1. becomes Gather of int8 rows, Cast, times Gather of the rows' scales. A row's scale is its
   largest absolute value / 127, which is also the scale of a column of the logits' weight: the
   only scales that the passes compute, and none of an activation.
2. Where the logits' product has the same weight, transposed and in INT8, it reads the table
   through a Transpose, which ONNX Runtime folds when it loads: one table in the file.
3. The embedding scale is multiplied into the scales.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from calibration.quantize import quantize_weight
from export.cpu_static.editing import UnfitError, add_node, array_of, constant, used_by


def quantize_embedding(graph: ir.Graph) -> ir.Value | None:
    """The int8 table [V,D], an initializer; None where the graph keeps its float table, since
    something else reads it (logits that stay float). Raises UnfitError."""
    gather = _lookup(graph)
    weight = gather.inputs[0]
    assert weight is not None
    if len(weight.uses()) > 1:
        return None
    rows, scales = _quantized(weight)
    table = constant(graph, f"{weight.name}.int8_rows", rows)
    product = _logits_product(graph, weight)
    if product is not None:
        columns = add_node(product, "Transpose", [table], f"{product.name}.weight", perm=[1, 0])
        product.replace_input_with(1, columns.outputs[0])
    scale, replaced = _embedding_scale(gather)
    row_scales = constant(
        graph, f"{weight.name}.row_scales", (scales * np.float32(scale))[:, None]
    )  # [V,1]
    ids, name = gather.inputs[1], str(gather.name)
    quantized = add_node(gather, "Gather", [table, ids], f"{name}.int8", axis=0)
    widened = add_node(gather, "Cast", quantized.outputs, f"{name}.float", to=ir.DataType.FLOAT)
    factors = add_node(gather, "Gather", [row_scales, ids], f"{name}.scales", axis=0)
    vectors = add_node(
        gather, "Mul", [widened.outputs[0], factors.outputs[0]], f"{name}.dequantized"
    )
    replaced.outputs[0].replace_all_uses_with(vectors.outputs[0])
    return table


def _lookup(graph: ir.Graph) -> ir.Node:
    for node in graph:
        if node.op_type == "Gather" and str(node.name).endswith("embedding.tokens.gather"):
            return node
    raise UnfitError("there is no lookup of token embeddings")


def _quantized(weight: ir.Value) -> tuple[np.ndarray, np.ndarray]:
    """[V,D] float -> int8 rows [V,D] and their scales [V], as quantize_weight makes columns."""
    columns, scales = quantize_weight(array_of(weight).T)
    return np.ascontiguousarray(columns.T), scales


def _logits_product(graph: ir.Graph, weight: ir.Value) -> ir.Node | None:
    """The MatMulIntegerToFloat whose weight is this table, transposed."""
    for node in graph:
        operand = node.inputs[1] if node.op_type == "MatMulIntegerToFloat" else None
        if operand is not None and operand.name == f"{weight.name}.int8":
            return node
    return None


def _embedding_scale(gather: ir.Node) -> tuple[float, ir.Node]:
    """What embeddings are multiplied with, and the last node that this pass replaces."""
    try:
        mul = used_by(gather.outputs[0], "Mul")
        return float(array_of(mul.inputs[1])), mul
    except UnfitError:
        return 1.0, gather
