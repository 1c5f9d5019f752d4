"""The passes in order: portable graphs in, graphs of variant `cpu_static` out.

The last makes fused operators, of a copy, when graphs are written: the step for beam 1 is made of
the plain nodes of the other.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes import common as passes

from export.cpu_static.blockwise_matmul import use_blockwise_matmuls
from export.cpu_static.candidates import group_candidates
from export.cpu_static.cross_attention import fuse_cross_attention
from export.cpu_static.editing import CONTRIB, sizes
from export.cpu_static.embedding_table import quantize_embedding
from export.cpu_static.encoder_attention import fuse_encoder_attention
from export.cpu_static.fused_operators import use_fused_operators
from export.cpu_static.integer_matmul import use_integer_matmuls
from export.cpu_static.joined_projections import join_projections
from export.cpu_static.one_beam import use_one_beam
from export.cpu_static.static_caches import use_static_caches
from runtime.manifest import ModelSpec

logger = logging.getLogger(__name__)

_INT8_MATMULS = ("MatMulIntegerToFloat", "MatMulNBits")


@dataclass(frozen=True, kw_only=True)
class StaticGraph:
    """What was made of a portable graph. flat_rows: a token's row is [N,D] in it, not [N,1,D]."""

    model: ir.Model
    int8_matmuls: int
    flat_rows: bool = False

    def with_fused_operators(self) -> ir.Model:
        """As it is written: what stands between two products is one operator."""
        model = self.model.clone()
        use_fused_operators(model, flat_rows=self.flat_rows)
        return model


def convert_step(path: Path, model: ModelSpec) -> StaticGraph:
    """The decoder step of an FP32 or INT8 (Q/DQ) graph. Raises UnfitError where a pass can't."""
    loaded = ir.load(path)
    graph = loaded.graph
    matmuls = use_integer_matmuls(graph)
    row_dims = 3 if matmuls else 2
    if row_dims == 3:
        rows_of_one_token(graph)
    use_static_caches(graph, model, row_dims=row_dims)
    join_projections(graph)
    fuse_cross_attention(graph, model, row_dims=row_dims)
    group_candidates(graph, model.vocab_size)
    passes.RemoveUnusedNodesPass()(loaded)
    if matmuls:
        quantize_embedding(graph)
    return _finished(loaded, flat_rows=row_dims == 2)


def convert_greedy(step: StaticGraph) -> StaticGraph:
    """The INT8 step for beam 1. The other graph is used up. Raises UnfitError where a size does not
    fit the blocks."""
    use_one_beam(step.model.graph)
    use_blockwise_matmuls(step.model.graph)
    return _finished(step.model)


def convert_encoder(path: Path) -> StaticGraph:
    """The encoder of an INT8 (Q/DQ) or FP32 graph. Raises UnfitError where a pass can't."""
    loaded = ir.load(path)
    matmuls = use_integer_matmuls(loaded.graph)
    fuse_encoder_attention(loaded.graph)
    join_projections(loaded.graph)
    passes.RemoveUnusedNodesPass()(loaded)
    if matmuls:
        quantize_embedding(loaded.graph)
    return _finished(loaded)


def rows_of_one_token(graph: ir.Graph) -> None:
    """Rows of tokens [N,D] become [N,1,D], as the attention wants them: for MatMulIntegerToFloat
    that is the same, and no Reshape is left between. (A float MatMul and its bias are one Gemm only
    in two dimensions.)"""
    for node in graph:
        if node.op_type != "Reshape" or node.inputs[1] is None:
            continue
        if node.inputs[1].const_value is None:
            continue
        target = node.inputs[1].const_value.numpy().tolist()
        if len(target) == 2 and target[0] == -1 and target[1] > 1:
            node.replace_input_with(1, sizes(graph, -1, 1, target[1]))


def _finished(model: ir.Model, *, flat_rows: bool = False) -> StaticGraph:
    passes.RemoveUnusedNodesPass()(model)
    for node in model.graph:
        for value in node.outputs:
            if not value.is_graph_output():
                value.type = value.shape = None
    if any(node.domain == CONTRIB for node in model.graph):
        model.opset_imports[CONTRIB] = 1
    matmuls = [node for node in model.graph if node.op_type in _INT8_MATMULS]
    return StaticGraph(model=model, int8_matmuls=len(matmuls), flat_rows=flat_rows)
