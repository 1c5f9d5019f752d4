"""The step for beam 1: products whose activations are quantized by row and block as they come.

    x -> QuantizeLinear -> MatMulIntegerToFloat(weight int8 [I,O], scales [O], bias)
    1. becomes MatMulNBits(x, weight uint8 [O,I/BLOCK,BLOCK], scales [O,I/BLOCK], bias): a scale for
       each row and block of x, found when it runs, so rows stay apart. Of the weight each column's
       scale is repeated for its blocks: nothing is quantized again.
    2. The weight stays the int8 initializer that it was, so that both graphs can refer to one file:
       Transpose, Cast to uint8, BitwiseXor 128 (which adds 128) and Reshape make the other form of
       it, which ONNX Runtime folds when it loads.
    3. QuantizeLinear nodes that nothing reads go.

With one row this takes four fifths of the time; from about 4 rows on it is slower than the integer
product, whence beam 1 only (docs/decisions/0017-cpu-static.md).
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
from export.cpu_static.integer_matmul import unsigned_rows

BLOCK = 64
"""The largest with which ONNX Runtime 1.32 gives a row the same bits alone and beside others."""


def use_blockwise_matmuls(graph: ir.Graph) -> int:
    """Rewrites every MatMulIntegerToFloat; how many. Raises UnfitError where an inner size is no
    multiple of BLOCK."""
    count = 0
    for node in list(graph):
        if node.op_type == "MatMulIntegerToFloat":
            _rewrite(graph, node)
            count += 1
    remove_unused(graph)
    return count


def _rewrite(graph: ir.Graph, matmul: ir.Node) -> None:
    quantize = made_by(matmul.inputs[0], "QuantizeLinear")
    scales = array_of(matmul.inputs[3])
    shifted, inner = unsigned_rows(graph, matmul)
    if inner % BLOCK:
        raise UnfitError(f"{matmul.name} sums over {inner} products, no multiple of {BLOCK}")
    name, blocks = str(matmul.name), inner // BLOCK
    target = sizes(graph, len(scales), blocks, BLOCK)
    weight = add_node(matmul, "Reshape", [shifted, target], f"{name}.blocks")
    repeated = constant(graph, f"{name}.block_scales", np.repeat(scales[:, None], blocks, axis=1))
    bias = matmul.inputs[6] if len(matmul.inputs) > 6 else None
    product = add_node(
        matmul,
        "MatMulNBits",
        [quantize.inputs[0], weight.outputs[0], repeated, None, None, bias],
        f"{name}.blockwise",
        domain=CONTRIB,
        K=inner,
        N=len(scales),
        bits=8,
        block_size=BLOCK,
        accuracy_level=4,
    )
    matmul.outputs[0].replace_all_uses_with(product.outputs[0])
    matmul.name, product.name = f"{name}.before", name
