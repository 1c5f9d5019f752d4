"""Our Transformer as a CTranslate2 model, weight by weight.

Pieces that exist only to pad our tables to a multiple of 64 are left out; tied tables are written
once, as CTranslate2's own converters do.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from model.attention import MultiHeadAttention
from model.config import ModelConfig
from model.errors import ConfigError
from model.layers import FeedForward, Residual
from model.transformer import Embedding, Transformer
from runtime.errors import MissingExtraError

Quantization = Literal["float32", "int8"]


def write_ctranslate2(
    model: Transformer,
    path: Path,
    *,
    pieces: Sequence[str] | None = None,
    quantization: Quantization = "float32",
) -> None:
    """Writes the model into the directory `path`, which must not exist.

    pieces: how the tokenizer spells each id; `token_name` does where none are given. int8 is
    CTranslate2's: a scale for each row of every matrix, tables included. Raises ConfigError for a
    model that CTranslate2 can't express, naming all reasons; MissingExtraError without ctranslate2.
    """
    config = model.config
    _check(config)
    spec = _new_spec(config)
    sizes = vocabulary_sizes(config)
    for side, embedding, target, size in (
        (spec.encoder, model.encoder.embedding, spec.encoder.embeddings[0], sizes[0]),
        (spec.decoder, model.decoder.embedding, spec.decoder.embeddings, sizes[1]),
    ):
        _embedding(target, side, embedding, size)
    encoder_layers: Any = model.encoder.layers  # mypy knows them as Module
    decoder_layers: Any = model.decoder.layers
    for target, layer in zip(spec.encoder.layer, encoder_layers, strict=True):
        _self_attention(target.self_attention, layer.self_attention, layer.self_residual)
        _feed_forward(target.ffn, layer.ffn, layer.ffn_residual)
    for target, layer in zip(spec.decoder.layer, decoder_layers, strict=True):
        _self_attention(target.self_attention, layer.self_attention, layer.self_residual)
        _cross_attention(target.attention, layer.cross_attention, layer.cross_residual)
        _feed_forward(target.ffn, layer.ffn, layer.ffn_residual)
    if config.norm == "pre":
        _norm(spec.encoder.layer_norm, model.encoder.final_norm)
        _norm(spec.decoder.layer_norm, model.decoder.final_norm)
    spec.decoder.projection.weight = _array(model.output_weight)[: sizes[1]]
    spec.register_source_vocabulary(_names(config, sizes[0], pieces))
    spec.register_target_vocabulary(_names(config, sizes[1], pieces))
    spec.config.layer_norm_epsilon = config.norm_eps
    for name, token_id in _special_tokens(config).items():
        setattr(spec.config, name, _names(config, sizes[1], pieces)[token_id])
    spec.validate()
    spec.optimize(quantization=None if quantization == "float32" else quantization)
    path.mkdir(parents=True)
    spec.save(str(path))


def token_name(token_id: int, config: ModelConfig) -> str:
    """A spelling for an id where there is no tokenizer: CTranslate2 wants texts."""
    ids = config.special_ids
    names = {ids.pad_id: "<pad>", ids.unk_id: "<unk>", ids.bos_id: "<s>", ids.eos_id: "</s>"}
    return names.get(token_id, f"t{token_id}")


def suppressed(config: ModelConfig, pieces: Sequence[str] | None = None) -> list[list[str]]:
    """What `translate_batch(suppress_sequences=...)` must be given, beside disable_unk, so that the
    same ids as ours are never predicted."""
    size = vocabulary_sizes(config)[1]
    names = _names(config, size, pieces)
    return [
        [names[token_id]]
        for token_id in config.banned_ids
        if token_id != config.special_ids.unk_id and token_id < size
    ]


def vocabulary_sizes(config: ModelConfig) -> tuple[int, int]:
    """Rows of the source's and of the target's table that are written: pieces, and special ids."""
    ids = config.special_ids
    used = max(ids.pad_id, ids.unk_id, ids.bos_id, ids.eos_id, ids.decoder_start_id) + 1
    return max(config.src_vocab_size, used), max(config.tgt_vocab_size, used)


def unsupported(config: ModelConfig) -> list[str]:
    """What of the config CTranslate2's Transformer can't express; empty where it can all of it."""
    found = []
    if config.positions == "rotary":
        found.append("rotary positions")
    if config.cross_score != "scaled_dot":
        found.append(f"cross_score {config.cross_score!r}")
    for name, stack in (("encoder", config.encoder), ("decoder", config.decoder)):
        if stack.num_heads * config.head_dim != config.d_model:
            found.append(
                f"{stack.num_heads} heads of {config.head_dim} in the {name}, which are not "
                f"d_model {config.d_model} together"
            )
    return found


def _check(config: ModelConfig) -> None:
    reasons = unsupported(config)
    if reasons:
        raise ConfigError(
            f"CTranslate2 can't express this model: it has {'; '.join(reasons)}. Compare a model "
            "with sinusoidal or learned positions and the paper's attention"
        )


def _new_spec(config: ModelConfig) -> Any:
    try:
        from ctranslate2.specs import (
            Activation,
            TransformerDecoderSpec,
            TransformerEncoderSpec,
            TransformerSpec,
        )
    except ImportError as error:
        raise MissingExtraError("ctranslate2", "peers", "comparing with CTranslate2") from error
    shared = {
        "pre_norm": config.norm == "pre",
        "activation": Activation.GELU if config.activation == "gelu" else Activation.RELU,
    }
    return TransformerSpec(
        TransformerEncoderSpec(config.encoder.num_layers, config.encoder.num_heads, **shared),
        TransformerDecoderSpec(config.decoder.num_layers, config.decoder.num_heads, **shared),
    )


def _special_tokens(config: ModelConfig) -> dict[str, int]:
    ids = config.special_ids
    return {
        "unk_token": ids.unk_id,
        "bos_token": ids.bos_id,
        "eos_token": ids.eos_id,
        "decoder_start_token": ids.decoder_start_id,
    }


def _names(config: ModelConfig, size: int, pieces: Sequence[str] | None) -> list[str]:
    """The text of each id; ids beyond the tokenizer's are named by their number."""
    given = [] if pieces is None else list(pieces[:size])
    return given + [token_name(i, config) for i in range(len(given), size)]


def _array(tensor: Any) -> npt.NDArray[np.float32]:
    """A copy: quantizing writes into what it is given."""
    array: npt.NDArray[np.float32] = np.array(tensor.detach().numpy(), order="C")
    return array


def _embedding(target: Any, stack: Any, embedding: Embedding, size: int) -> None:
    assert embedding.positions is not None
    target.weight = _array(embedding.tokens.weight)[:size]
    # A flag, or the scale itself. Folded into the table it would part it from the projection.
    stack.scale_embeddings = float(embedding.scale)
    stack.position_encodings.encodings = _array(embedding.positions.table)[
        embedding.positions.offset :
    ]


def _norm(target: Any, norm: Any) -> None:
    target.gamma, target.beta = _array(norm.weight), _array(norm.bias)


def _linear(target: Any, *layers: Any) -> None:
    target.weight = np.concatenate([_array(layer.weight) for layer in layers])
    target.bias = np.concatenate([_array(layer.bias) for layer in layers])


def _self_attention(target: Any, attention: MultiHeadAttention, residual: Residual) -> None:
    _norm(target.layer_norm, residual.norm)
    target.queries_scale = float(attention.scale)
    _linear(target.linear[0], attention.q_proj, attention.k_proj, attention.v_proj)
    _linear(target.linear[1], attention.out_proj)


def _cross_attention(target: Any, attention: MultiHeadAttention, residual: Residual) -> None:
    _norm(target.layer_norm, residual.norm)
    target.queries_scale = float(attention.scale)
    _linear(target.linear[0], attention.q_proj)
    _linear(target.linear[1], attention.k_proj, attention.v_proj)
    _linear(target.linear[2], attention.out_proj)


def _feed_forward(target: Any, ffn: FeedForward, residual: Residual) -> None:
    _norm(target.layer_norm, residual.norm)
    _linear(target.linear_0, ffn.in_proj)
    _linear(target.linear_1, ffn.out_proj)
