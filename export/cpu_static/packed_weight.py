"""The weight that makes the logits, in the order in which the kernel of BestContinuations reads it.

MatMulIntegerToFloat(x, weight int8 [D,V])
1. The packed weight is uint8 [V/ENTRIES,D/PLACES,ENTRIES,PLACES]: the same numbers, 128 added to
   each.
2. It is not stored: nodes make it of the weight, or of the table of embeddings, and ONNX Runtime
   folds them when it loads the graph. The product keeps its own weight, for where there is no
   kernel that takes the packed one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from export.cpu_static.editing import UnfitError, add_node, array_of, constant, sizes
from export.cpu_static.integer_matmul import rows_of_weight

ENTRIES, PLACES = 16, 4
"""Of the vocabulary, and of a row: a vector of 64 bytes."""


def pack_weight(graph: ir.Graph, matmul: ir.Node) -> ir.Value:
    """The packed weight of a MatMulIntegerToFloat. Raises UnfitError for sizes that are no
    multiples, or rows with a zero point other than 128."""
    if int(array_of(matmul.inputs[4])) != 128:
        raise UnfitError(f"{matmul.name} reads rows with a zero point other than 128")
    by_row, width = rows_of_weight(matmul)
    entries = array_of(matmul.inputs[3]).size
    if entries % ENTRIES or width % PLACES:
        raise UnfitError(
            f"{matmul.name} has a weight of {width} x {entries}, which can't be packed"
        )
    name, half = str(matmul.name), constant(graph, "half.uint8", np.array(128, dtype=np.uint8))

    def add(op_type: str, inputs: list[ir.Value], what: str, **attributes: Any) -> ir.Value:
        return add_node(matmul, op_type, inputs, f"{name}.{what}", **attributes).outputs[0]

    unsigned = add("Cast", [by_row], "unsigned", to=ir.DataType.UINT8)
    shifted = add("BitwiseXor", [unsigned, half], "shifted")
    blocks = sizes(graph, entries // ENTRIES, ENTRIES, width // PLACES, PLACES)
    return add(
        "Transpose", [add("Reshape", [shifted, blocks], "blocks")], "packed", perm=[0, 2, 1, 3]
    )


def stored_weight(matmul: ir.Node) -> ir.Value:
    """What a MatMulIntegerToFloat has its weight from: an initializer [D,V] or the table [V,D]."""
    weight = matmul.inputs[1]
    assert weight is not None
    producer = weight.producer()
    stored = weight if producer is None else producer.inputs[0]
    assert stored is not None
    return stored
