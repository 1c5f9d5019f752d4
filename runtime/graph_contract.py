"""The inputs and outputs of the two graphs: the one place that names them.

    encoder       src_ids, src_mask -> cross_k.0, cross_v.0, cross_k.1, ...
    decoder_step  token_ids, position, beam_indices, src_mask, sum_log_probs, eos_bias,
                  self_k.0, self_v.0, ..., cross_k.0, cross_v.0, ...
                  -> scores, candidate_ids, parents, next_self_k.0, next_self_v.0, ..., log_probs

Letters: B sentences, S source length, K beams of a sentence, N = B*K, P rows of the past (N of the
step before, finished sentences included), T target length so far, H heads, Dh head_dim, V
vocabulary. In dims a number is fixed and a text is dynamic.
"""

from __future__ import annotations

from runtime.manifest import ModelSpec, Precision, Role, TensorSpec

SRC_IDS = "src_ids"
SRC_MASK = "src_mask"
TOKEN_IDS = "token_ids"
POSITION = "position"
BEAM_INDICES = "beam_indices"
SUM_LOG_PROBS = "sum_log_probs"
EOS_BIAS = "eos_bias"
SCORES = "scores"
CANDIDATE_IDS = "candidate_ids"
PARENTS = "parents"
LOG_PROBS = "log_probs"

BANNED = -1e9
"""What eos_bias is where EOS is banned, and what banned ids get: added before log-softmax."""

INT8_DISABLED_OPTIMIZERS = ("CommonSubexpressionElimination", "MatMulAddFusion")
"""Optimizers of ONNX Runtime that must be off for graphs with Q/DQ: the first merges equal Q nodes,
the second makes a float Gemm of a MatMul and its bias; what either touched is not fused to INT8."""


def cross_names(num_layers: int) -> list[str]:
    """Cross-attention keys and values, layer by layer: outputs of the encoder, inputs of a step."""
    return _per_layer("cross", num_layers)


def self_names(num_layers: int) -> list[str]:
    """Cached keys and values, layer by layer, as a step takes them."""
    return _per_layer("self", num_layers)


def next_self_names(num_layers: int) -> list[str]:
    """The same, one token longer, as a step gives them."""
    return _per_layer("next_self", num_layers)


def cache_dtype(precision: Precision) -> str:
    """numpy's name for the type of all keys and values."""
    return "float16" if precision in ("fp16", "int8_fp16") else "float32"


def graph_inputs(role: Role, model: ModelSpec, precision: Precision) -> tuple[TensorSpec, ...]:
    """What the graph of that role takes, in order."""
    if role == "encoder":
        return (_tensor(SRC_IDS, "int32", "B", "S"), _tensor(SRC_MASK, "bool", "B", "S"))
    past = _caches(self_names(model.decoder_layers), model, precision, "P", "T")
    cross = _caches(cross_names(model.decoder_layers), model, precision, "B", "S")
    return (
        _tensor(TOKEN_IDS, "int32", "B", "K"),
        _tensor(POSITION, "int32", "B", 1),
        _tensor(BEAM_INDICES, "int32", "N"),
        _tensor(SRC_MASK, "bool", "B", "S"),
        _tensor(SUM_LOG_PROBS, "float32", "B", "K"),
        _tensor(EOS_BIAS, "float32", "B", 1),
        *past,
        *cross,
    )


def graph_outputs(role: Role, model: ModelSpec, precision: Precision) -> tuple[TensorSpec, ...]:
    """What the graph of that role gives, in order."""
    if role == "encoder":
        return _caches(cross_names(model.decoder_layers), model, precision, "B", "S")
    return (
        _tensor(SCORES, "float32", "B", "2K"),
        _tensor(CANDIDATE_IDS, "int32", "B", "2K"),
        _tensor(PARENTS, "int32", "B", "2K"),
        *_caches(next_self_names(model.decoder_layers), model, precision, "N", "T+1"),
        _tensor(LOG_PROBS, "float32", "B", "K", model.vocab_size),
    )


def _per_layer(prefix: str, num_layers: int) -> list[str]:
    return [f"{prefix}_{kind}.{layer}" for layer in range(num_layers) for kind in ("k", "v")]


def _tensor(name: str, dtype: str, *dims: str | int) -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, dims=dims)


def _caches(
    names: list[str], model: ModelSpec, precision: Precision, rows: str, length: str
) -> tuple[TensorSpec, ...]:
    dims = (rows, model.num_heads, length, model.head_dim)
    return tuple(_tensor(name, cache_dtype(precision), *dims) for name in names)
