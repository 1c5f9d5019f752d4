"""The weight that makes the logits, in the order in which the kernel of BestContinuations reads it.

MatMulIntegerToFloat(x, weight int8 [D,V])
1. The packed weight is uint8 [V/ENTRIES,D/PLACES,ENTRIES,PLACES]: the same numbers, 128 added to
   each.
2. It is not stored: nodes make it of the weight, or of the table of embeddings, and ONNX Runtime
   folds them when it loads the graph. The product keeps its own weight, for where there is no
   kernel that takes the packed one.
"""

from __future__ import annotations

import onnx_ir as ir

from export.cpu_static.editing import UnfitError, add_node, array_of, sizes
from export.cpu_static.integer_matmul import unsigned_rows

ENTRIES, PLACES = 16, 4
"""Of the vocabulary, and of a row: a vector of 64 bytes."""


def pack_weight(graph: ir.Graph, matmul: ir.Node) -> ir.Value:
    """The packed weight of a MatMulIntegerToFloat. Raises UnfitError for sizes that are no
    multiples, or rows with a zero point other than 128."""
    if int(array_of(matmul.inputs[4])) != 128:
        raise UnfitError(f"{matmul.name} reads rows with a zero point other than 128")
    shifted, width = unsigned_rows(graph, matmul)
    entries = array_of(matmul.inputs[3]).size
    if entries % ENTRIES or width % PLACES:
        raise UnfitError(
            f"{matmul.name} has a weight of {width} x {entries}, which can't be packed"
        )
    name = str(matmul.name)
    blocks = sizes(graph, entries // ENTRIES, ENTRIES, width // PLACES, PLACES)
    reshaped = add_node(matmul, "Reshape", [shifted, blocks], f"{name}.blocks")
    packed = add_node(matmul, "Transpose", reshaped.outputs, f"{name}.packed", perm=[0, 2, 1, 3])
    return packed.outputs[0]


def stored_weight(matmul: ir.Node) -> ir.Value:
    """What a MatMulIntegerToFloat has its weight from: an initializer [D,V] or the table [V,D]."""
    weight = matmul.inputs[1]
    assert weight is not None
    producer = weight.producer()
    stored = weight if producer is None else producer.inputs[0]
    assert stored is not None
    return stored
