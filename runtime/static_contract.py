"""The inputs and outputs of the decoder-step graph of variant `cpu_static`, for CPUs only.

    decoder_step  token_ids, position, beam_width, cache_indirection, src_mask, sum_log_probs,
                  num_candidates, log_prob_sentences, eos_bias,
                  self_k.0, self_v.0, ..., cross_k.0, cross_v.0, ...
                  -> scores, candidate_ids, parents, next_self_k.0, next_self_v.0, ..., log_probs

It differs from the portable graph (runtime.graph_contract, whose letters and names hold here) in
what is said once instead of once a sentence, and in the caches: they have room for M positions,
M > `position`; the step writes position `position` of each row, and next_self_k.i has to be bound
to the very memory of self_k.i. No row moves: cache_indirection[b,k,t], for t < position, is
the row, 0..K-1 among those of sentence b, that holds position t of beam k. log_probs [L,K,V] are
those of the first L = log_prob_sentences: 0 where nobody asks, which saves a pass over all of V.

The encoder's inputs and outputs are the portable ones.
"""

from __future__ import annotations

import dataclasses

from runtime.graph_contract import (
    BEAM_INDICES,
    EOS_BIAS,
    LOG_PROBS,
    POSITION,
    SUM_LOG_PROBS,
    graph_inputs,
    graph_outputs,
    next_self_names,
    self_names,
)
from runtime.manifest import ModelSpec, Precision, Role, TensorSpec, Variant

VARIANT: Variant = "cpu_static"
GREEDY: Variant = "cpu_static_greedy"
"""A second step graph of the same contract and weights, whose kernels suit one row: for beam 1."""
BEAM_WIDTH = "beam_width"
CACHE_INDIRECTION = "cache_indirection"
NUM_CANDIDATES = "num_candidates"
LOG_PROB_SENTENCES = "log_prob_sentences"


def static_inputs(role: Role, model: ModelSpec, precision: Precision) -> tuple[TensorSpec, ...]:
    """What the graph of that role takes, in order."""
    portable = graph_inputs(role, model, precision)
    if role == "encoder":
        return portable
    changed: dict[str, tuple[TensorSpec, ...]] = {
        POSITION: (_tensor(POSITION, "int32", 1), _tensor(BEAM_WIDTH, "int32", 1)),
        BEAM_INDICES: (_tensor(CACHE_INDIRECTION, "int32", "B", "K", "M"),),
        SUM_LOG_PROBS: (
            _tensor(SUM_LOG_PROBS, "float32", "B", "K", 1),
            _tensor(NUM_CANDIDATES, "int64", 1),
            _tensor(LOG_PROB_SENTENCES, "int64", 1),
        ),
        EOS_BIAS: (_tensor(EOS_BIAS, "float32", 1),),
    }
    caches = set(self_names(model.decoder_layers))
    return tuple(
        _fixed(tensor) if tensor.name in caches else new
        for tensor in portable
        for new in changed.get(tensor.name, (tensor,))
    )


def static_outputs(role: Role, model: ModelSpec, precision: Precision) -> tuple[TensorSpec, ...]:
    """What the graph of that role gives, in order."""
    portable = graph_outputs(role, model, precision)
    if role == "encoder":
        return portable
    caches = set(next_self_names(model.decoder_layers))
    return tuple(
        _fixed(tensor)
        if tensor.name in caches
        else dataclasses.replace(tensor, dims=("L", *tensor.dims[1:]))
        if tensor.name == LOG_PROBS
        else tensor
        for tensor in portable
    )


def _fixed(cache: TensorSpec) -> TensorSpec:
    """A cache with room for M positions of N rows."""
    return dataclasses.replace(cache, dims=("N", cache.dims[1], "M", cache.dims[3]))


def _tensor(name: str, dtype: str, *dims: str | int) -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, dims=dims)
