"""Caches of a fixed size that a step writes into, and beams that find theirs by indirection.

    self_k [P,H,T,Dh] -> Gather(beam_indices) -> Concat(new k) -> next_self_k [N,H,T+1,Dh], and so v
    q, next_self_k, next_self_v -> Transpose, MatMul, Softmax, MatMul, Reshape -> context
    1. becomes one DecoderMaskedMultiHeadAttention over self_k, self_v [N,H,M,Dh], M >= T+1. It
       writes the new token at `position` and gives the same buffers back as next_self_k,
       next_self_v: bound to the memory of the inputs, nothing is copied.
    2. `beam_indices` goes. `cache_indirection` [B,K,M] says for every beam and every position in
       which of the sentence's K rows its key lies, so that no row ever moves.
    3. `position` becomes int32 [1], how many tokens are cached; `beam_width` int32 [1] is K.

Queries bear the attention's scale already; the operator's own is 1.
"""

from __future__ import annotations

import onnx_ir as ir

from export.cpu_static.editing import (
    CONTRIB,
    UnfitError,
    add_node,
    input_named,
    made_by,
    output_index,
    scope_of,
    set_output,
    sizes,
    used_by,
)
from runtime.graph_contract import (
    BEAM_INDICES,
    POSITION,
    next_self_names,
    self_names,
)
from runtime.manifest import ModelSpec
from runtime.static_contract import BEAM_WIDTH, CACHE_INDIRECTION


def use_static_caches(graph: ir.Graph, model: ModelSpec, *, row_dims: int) -> None:
    """Rewrites every layer. row_dims: of a token's row, 2 for [N,D] and 3 for [N,1,D].

    Raises UnfitError where a layer's self-attention looks otherwise.
    """
    position = input_named(graph, POSITION)
    position.shape = ir.Shape([1])
    beams = _int32_input(BEAM_WIDTH, [1])
    indirection = _int32_input(CACHE_INDIRECTION, ["B", "K", "M"])
    graph.inputs[2:2] = [beams, indirection]
    names = zip(
        self_names(model.decoder_layers), next_self_names(model.decoder_layers), strict=True
    )
    pairs = list(names)
    for keys, values in zip(pairs[0::2], pairs[1::2], strict=True):
        _rewrite(graph, model, keys, values, [position, beams, indirection], row_dims)
    graph.inputs.remove(input_named(graph, BEAM_INDICES))


def _rewrite(
    graph: ir.Graph,
    model: ModelSpec,
    keys: tuple[str, str],
    values: tuple[str, str],
    extra: list[ir.Value],
    row_dims: int,
) -> None:
    inner = model.num_heads * model.head_dim
    all_k, all_v = (graph.outputs[output_index(graph, name)] for name in (keys[1], values[1]))
    new_k, new_v = (_new_token(value) for value in (all_k, all_v))
    scores = used_by(used_by(all_k, "Transpose").outputs[0], "MatMul")
    softmax = used_by(scores.outputs[0], "Softmax")
    context = used_by(softmax.outputs[0], "MatMul")
    if context.inputs[1] is not all_v:
        raise UnfitError(f"{context.name} does not weigh {values[1]}")
    joined = used_by(context.outputs[0], "Reshape")
    scope = scope_of(joined)
    rows = [
        _token_row(graph, value, joined, f"{scope}.row.{name}", inner, row_dims)
        for name, value in (("q", scores.inputs[0]), ("k", new_k), ("v", new_v))
    ]
    caches = [input_named(graph, name) for name in (keys[0], values[0])]
    for cache in caches:
        cache.shape = ir.Shape(["N", model.num_heads, "M", model.head_dim])
    attention = add_node(
        joined,
        "DecoderMaskedMultiHeadAttention",
        [*rows, None, None, *caches, *extra],
        f"{scope}.attention",
        outputs=3,
        domain=CONTRIB,
        num_heads=model.num_heads,
        past_present_share_buffer=1,
        scale=1.0,
    )  # [N,1,H*Dh]
    result = attention.outputs[0]
    if row_dims == 2:
        result = add_node(
            joined, "Reshape", [result, sizes(graph, -1, inner)], f"{scope}.context"
        ).outputs[0]
    joined.outputs[0].replace_all_uses_with(result)
    for name, value, cache in zip((keys[1], values[1]), attention.outputs[1:], caches, strict=True):
        set_output(graph, name, value)
        value.shape, value.type = cache.shape, cache.type


def _new_token(grown: ir.Value) -> ir.Value:
    """[N,H,1,Dh]: what is appended to a cache."""
    concat = made_by(grown, "Concat")
    made_by(concat.inputs[0], "Gather")
    value = concat.inputs[1]
    assert value is not None
    return value


def _token_row(
    graph: ir.Graph, value: ir.Value | None, before: ir.Node, name: str, inner: int, row_dims: int
) -> ir.Value:
    """[N,H,1,Dh] -> [N,1,H*Dh], which is the same memory. Without a Reshape where what was shaped
    into heads is such a row already."""
    assert value is not None
    producer = value.producer()
    if producer is not None and producer.op_type == "Reshape":
        source = producer.inputs[0]
        assert source is not None
        if row_dims == 3:
            return source
        value = source
    return add_node(before, "Reshape", [value, sizes(graph, -1, 1, inner)], name).outputs[0]


def _int32_input(name: str, dims: list[str | int]) -> ir.Value:
    return ir.Value(name=name, shape=ir.Shape(dims), type=ir.TensorType(ir.DataType.INT32))
