"""Our Transformer as a CTranslate2 model, weight by weight, for comparisons with its search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
from ctranslate2.specs import Activation, TransformerSpec

from model.attention import MultiHeadAttention
from model.config import ModelConfig
from model.layers import FeedForward, Residual
from model.transformer import Embedding, Transformer


def token_name(token_id: int, config: ModelConfig) -> str:
    """How CTranslate2's vocabulary spells an id: it wants texts."""
    ids = config.special_ids
    names = {ids.pad_id: "<pad>", ids.unk_id: "<unk>", ids.bos_id: "<s>", ids.eos_id: "</s>"}
    return names.get(token_id, f"t{token_id}")


def convert(model: Transformer, path: Path) -> ctranslate2.Translator:
    """Writes the model (sinusoidal or learned positions) to `path`, and opens it in float32."""
    config = model.config
    spec = TransformerSpec.from_config(
        (config.encoder.num_layers, config.decoder.num_layers),
        config.encoder.num_heads,
        pre_norm=config.norm == "pre",
        activation=Activation.GELU if config.activation == "gelu" else Activation.RELU,
    )
    _embedding(spec.encoder.embeddings[0], spec.encoder, model.encoder.embedding)
    _embedding(spec.decoder.embeddings, spec.decoder, model.decoder.embedding)
    for target, layer in zip(spec.encoder.layer, model.encoder.layers, strict=True):
        _self_attention(target.self_attention, layer.self_attention, layer.self_residual)
        _feed_forward(target.ffn, layer.ffn, layer.ffn_residual)
    for target, layer in zip(spec.decoder.layer, model.decoder.layers, strict=True):
        _self_attention(target.self_attention, layer.self_attention, layer.self_residual)
        _cross_attention(target.attention, layer.cross_attention, layer.cross_residual)
        _feed_forward(target.ffn, layer.ffn, layer.ffn_residual)
    if config.norm == "pre":
        _norm(spec.encoder.layer_norm, model.encoder.final_norm)
        _norm(spec.decoder.layer_norm, model.decoder.final_norm)
    output = model.output if config.tying == "none" else model.decoder.embedding.tokens
    spec.decoder.projection.weight = _array(output.weight)
    names = [token_name(i, config) for i in range(output.weight.size(0))]
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    spec.config.layer_norm_epsilon = config.norm_eps
    spec.validate()
    path.mkdir(parents=True)
    spec.save(str(path))
    return ctranslate2.Translator(
        str(path), device="cpu", compute_type="float32", inter_threads=1, intra_threads=1
    )


def _array(tensor: Any) -> np.ndarray:
    array: np.ndarray = np.ascontiguousarray(tensor.detach().numpy())
    return array


def _embedding(target: Any, stack: Any, embedding: Embedding) -> None:
    """CTranslate2 multiplies by sqrt(d_model) or not at all: fold the scale in."""
    assert embedding.positions is not None
    target.weight = _array(embedding.tokens.weight) * np.float32(embedding.scale)
    stack.scale_embeddings = False
    stack.position_encodings.encodings = _array(embedding.positions.table)


def _norm(target: Any, norm: Any) -> None:
    target.gamma, target.beta = _array(norm.weight), _array(norm.bias)


def _linear(target: Any, *layers: Any) -> None:
    target.weight = np.concatenate([_array(layer.weight) for layer in layers])
    target.bias = np.concatenate([_array(layer.bias) for layer in layers])


def _self_attention(target: Any, attention: MultiHeadAttention, residual: Residual) -> None:
    _norm(target.layer_norm, residual.norm)
    _linear(target.linear[0], attention.q_proj, attention.k_proj, attention.v_proj)
    _linear(target.linear[1], attention.out_proj)


def _cross_attention(target: Any, attention: MultiHeadAttention, residual: Residual) -> None:
    _norm(target.layer_norm, residual.norm)
    _linear(target.linear[0], attention.q_proj)
    _linear(target.linear[1], attention.k_proj, attention.v_proj)
    _linear(target.linear[2], attention.out_proj)


def _feed_forward(target: Any, ffn: FeedForward, residual: Residual) -> None:
    _norm(target.layer_norm, residual.norm)
    _linear(target.linear_0, ffn.in_proj)
    _linear(target.linear_1, ffn.out_proj)
