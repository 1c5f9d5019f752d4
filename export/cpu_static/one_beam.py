"""The step for beam 1: what only several beams need goes.

rows [N,1,D] -> Reshape [B,K,D] -> MultiHeadAttention -> Reshape [N,1,D], and logits likewise
1. One beam is one row, so these change nothing, and go.
groups of log_probs and their members -> scores, candidate_ids, parents
2. becomes one TopK over V numbers: with one row, twenty small nodes take longer than it does.
   Every parent is 0. Order and ties are the contract's: score descending, then token ascending.
"""

from __future__ import annotations

import onnx_ir as ir

from export.cpu_static.candidates import LOG_SOFTMAX
from export.cpu_static.cross_attention import beam_shape
from export.cpu_static.editing import (
    add_node,
    input_named,
    output_index,
    remove_unused,
    set_output,
    sizes,
)
from runtime.graph_contract import CANDIDATE_IDS, PARENTS, SCORES, SUM_LOG_PROBS
from runtime.static_contract import NUM_CANDIDATES


def use_one_beam(graph: ir.Graph) -> None:
    """Rewrites a step whose rows are [N,1,D] and whose candidates are grouped."""
    _flatten_candidates(graph)
    remove_unused(graph)
    _drop_reshapes(graph)
    remove_unused(graph)


def _flatten_candidates(graph: ir.Graph) -> None:
    log_probs = next(node for node in graph if node.name == LOG_SOFTMAX).outputs[0]  # [B,1,V]
    sums, count = input_named(graph, SUM_LOG_PROBS), input_named(graph, NUM_CANDIDATES)
    last = graph.outputs[output_index(graph, SCORES)].producer()
    assert last is not None
    totals = add_node(last, "Add", [log_probs, sums], "scores.all")
    flat = add_node(last, "Reshape", [totals.outputs[0], sizes(graph, 0, -1)], "scores.flat")
    best = add_node(
        last, "TopK", [flat.outputs[0], count], "best", outputs=2, axis=-1, largest=1, sorted=1
    )
    token = add_node(last, "Cast", [best.outputs[1]], "best.token", to=ir.DataType.INT32)
    parent = add_node(last, "Sub", [token.outputs[0], token.outputs[0]], "best.parent")
    found = {SCORES: best.outputs[0], CANDIDATE_IDS: token.outputs[0], PARENTS: parent.outputs[0]}
    for name, value in found.items():
        set_output(graph, name, value)


def _drop_reshapes(graph: ir.Graph) -> None:
    by_beam = beam_shape(graph)
    for node in list(graph):
        if node.op_type != "Reshape":
            continue
        source = node.inputs[0]
        assert source is not None
        producer = source.producer()
        after_attention = producer is not None and producer.op_type == "MultiHeadAttention"
        if node.inputs[1] is by_beam or after_attention:
            node.outputs[0].replace_all_uses_with(source)
