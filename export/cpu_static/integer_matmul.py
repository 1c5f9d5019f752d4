"""Q/DQ around a MatMul becomes the operator that ONNX Runtime would make of it, with its bias.

    x -> QuantizeLinear -> DequantizeLinear -> MatMul -> Add bias
                              weight_int8 -> DequantizeLinear
    1. becomes x -> QuantizeLinear -> MatMulIntegerToFloat(weight_int8, bias), the same scales.
    2. x is quantized to uint8 around zero point 128 instead of int8 around 0: the same 256 steps,
       shifted. With int8 on both sides ONNX Runtime 1.32 takes a kernel 15 to 50 times slower.
    3. MatMuls that read the same x share its QuantizeLinear. (As Q/DQ they must not: nothing of
       what shares one is fused.)

The product is exact; scaling and bias round once less than a separate Add.
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
)

ZERO_POINT = "uint8_zero_point"


def use_integer_matmuls(graph: ir.Graph) -> int:
    """Rewrites every quantized MatMul; how many there were.

    Raises UnfitError where a DequantizeLinear stands elsewhere, or a zero point is not 0.
    """
    quantized: dict[tuple[int, int], ir.Value] = {}
    count = 0
    for node in list(graph):
        if node.op_type == "MatMul" and _is_dequantized(node.inputs[1]):
            _rewrite(graph, node, quantized)
            count += 1
    remove_unused(graph)
    for node in graph:
        if node.op_type == "DequantizeLinear":
            raise UnfitError(f"{node.name} dequantizes for something else than a MatMul")
    return count


def _is_dequantized(value: ir.Value | None) -> bool:
    producer = None if value is None else value.producer()
    return producer is not None and producer.op_type == "DequantizeLinear"


def _rewrite(graph: ir.Graph, matmul: ir.Node, quantized: dict[tuple[int, int], ir.Value]) -> None:
    dequantize = made_by(matmul.inputs[0], "DequantizeLinear")
    quantize = made_by(dequantize.inputs[0], "QuantizeLinear")
    weight = made_by(matmul.inputs[1], "DequantizeLinear")
    if np.any(array_of(quantize.inputs[2])) or len(weight.inputs) > 2:
        raise UnfitError(f"{matmul.name} has a zero point other than 0")
    x, scale = quantize.inputs[0], quantize.inputs[1]
    zero_point = constant(graph, ZERO_POINT, np.array(128, dtype=np.uint8))
    key = (id(x), id(scale))
    if key not in quantized:
        shared = add_node(
            matmul, "QuantizeLinear", [x, scale, zero_point], f"{matmul.name}.quantized"
        )
        quantized[key] = shared.outputs[0]
    name = str(matmul.name)
    replaced, bias = _bias_after(matmul)
    inputs = [quantized[key], weight.inputs[0], scale, weight.inputs[1], zero_point, None, bias]
    product = add_node(matmul, "MatMulIntegerToFloat", inputs, f"{name}.int8", domain=CONTRIB)
    replaced.outputs[0].replace_all_uses_with(product.outputs[0])
    matmul.name, product.name = f"{name}.before", name


def _bias_after(matmul: ir.Node) -> tuple[ir.Node, ir.Value | None]:
    """The last node to replace, and the bias [O] that it adds, where it adds one."""
    uses = matmul.outputs[0].uses()
    if len(uses) == 1:
        add = uses[0].node
        if add.op_type == "Add":
            other = add.inputs[1 - uses[0].idx]
            if other is not None and other.is_initializer() and len(array_of(other).shape) == 1:
                return add, other
    return matmul, None


def unsigned_rows(graph: ir.Graph, matmul: ir.Node) -> tuple[ir.Value, int]:
    """The weight of an integer product as uint8 [O,I], 128 added to each number, and I: made of the
    initializer [I,O], or of the table [O,I] where it reads that, by nodes that are folded."""
    weight = matmul.inputs[1]
    assert weight is not None
    name, producer = str(matmul.name), weight.producer()
    if producer is None:
        inner = array_of(weight).shape[0]
        by_row = add_node(matmul, "Transpose", [weight], f"{name}.by_row", perm=[1, 0]).outputs[0]
    else:
        table = made_by(weight, "Transpose").inputs[0]
        assert table is not None
        by_row, inner = table, array_of(table).shape[1]
    half = constant(graph, "half.uint8", np.array(128, dtype=np.uint8))
    unsigned = add_node(matmul, "Cast", [by_row], f"{name}.unsigned", to=ir.DataType.UINT8)
    shifted = add_node(matmul, "BitwiseXor", [unsigned.outputs[0], half], f"{name}.shifted")
    return shifted.outputs[0], inner
