"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017, arXiv 1706.03762).

    src_ids [B,S] --Encoder--> encoder_output [B,S,D] --project_cross--> cross_k, cross_v per layer
    tgt_ids [B,T] --Decoder--> [B,T,D] --output projection--> logits [B,T,V]

`Transformer.forward` is teacher forcing, for training. `Decoder.step` makes one token a beam from
cached keys and values; `model.eager` and the exported decoder-step graph both drive it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import ModelConfig, padded_size
from model.dropout import Dropout
from model.layers import DecoderLayer, EncoderLayer, ExtendCache
from model.positions import PositionTable, Rotary


class Embedding(nn.Module):
    """Token vectors times a scale, plus positions where these are added (sections 3.4 and 3.5)."""

    def __init__(self, config: ModelConfig, vocab_size: int, length: int) -> None:
        super().__init__()
        self.scale = config.scale_of_embedding
        self.tokens = nn.Embedding(padded_size(vocab_size), config.d_model)
        nn.init.normal_(self.tokens.weight, std=config.d_model**-0.5)
        self.positions: PositionTable | None = None
        if config.positions != "rotary":
            self.positions = PositionTable(
                length,
                config.d_model,
                learned=config.positions == "learned",
                offset=config.position_offset,
            )
        self.dropout = Dropout(config.dropout)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """ids [R,T], positions [T] or [R,T] -> [R,T,D]."""
        x = self.tokens(ids) * self.scale
        if self.positions is not None:
            x = x + self.positions(positions)
        return self.dropout(x)  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """Source ids to one vector a token."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embedding = Embedding(config, config.src_vocab_size, config.max_source)
        self.rotary = (
            Rotary(config.max_source, config.head_dim) if config.positions == "rotary" else None
        )
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder.num_layers))
        self.final_norm = _final_norm(config)

    def forward(self, src_ids: Tensor, src_mask: Tensor) -> Tensor:
        """src_ids [B,S] int, src_mask [B,S] bool, True = a real token -> encoder_output [B,S,D]."""
        positions = torch.arange(src_ids.size(1), device=src_ids.device)
        visible = src_mask[:, None, None, :]  # [B,1,1,S]
        x = self.embedding(src_ids, positions)
        for layer in self.layers:
            x = layer(x, visible, self.rotary, positions)
        return self.final_norm(x)  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """Target ids and the encoder's keys and values to one vector a target token."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embedding = Embedding(config, config.tgt_vocab_size, config.max_target)
        self.rotary = (
            Rotary(config.max_target, config.head_dim) if config.positions == "rotary" else None
        )
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder.num_layers))
        self.final_norm = _final_norm(config)

    def project_cross(self, encoder_output: Tensor) -> list[tuple[Tensor, Tensor]]:
        """encoder_output [B,S,D] -> per layer cross_k, cross_v [B,H,S,Dh]; once a sentence."""
        return [
            layer.cross_attention.project_key_value(encoder_output)  # type: ignore[operator, union-attr]
            for layer in self.layers
        ]

    def forward(
        self, tgt_ids: Tensor, cross: Sequence[tuple[Tensor, Tensor]], src_mask: Tensor
    ) -> Tensor:
        """Teacher forcing: tgt_ids [B,T], src_mask [B,S] -> [B,T,D], each position seeing only
        those up to itself."""
        length = tgt_ids.size(1)
        positions = torch.arange(length, device=tgt_ids.device)
        causal_mask = positions[:, None] >= positions[None, :]  # [T,T]
        return self._run(tgt_ids, positions, causal_mask, cross, src_mask, None)

    def step(
        self,
        token_ids: Tensor,
        positions: Tensor,
        cross: Sequence[tuple[Tensor, Tensor]],
        src_mask: Tensor,
        extend: Sequence[ExtendCache],
    ) -> Tensor:
        """One token a beam: token_ids [N,1], positions [1] or [N,1], src_mask [B,S], one `extend`
        a layer -> [N,1,D]. All that is cached may be seen, so there is no causal mask."""
        return self._run(token_ids, positions, None, cross, src_mask, extend)

    def _run(
        self,
        ids: Tensor,
        positions: Tensor,
        self_mask: Tensor | None,
        cross: Sequence[tuple[Tensor, Tensor]],
        src_mask: Tensor,
        extend: Sequence[ExtendCache] | None,
    ) -> Tensor:
        visible = src_mask[:, None, None, :]  # [B,1,1,S]
        x = self.embedding(ids, positions)
        for index, layer in enumerate(self.layers):
            cross_k, cross_v = cross[index]
            grow = None if extend is None else extend[index]
            x = layer(x, self_mask, cross_k, cross_v, visible, self.rotary, positions, grow)
        return self.final_norm(x)  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Encoder, decoder and output projection, tied as the config says."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self._init_weights()
        if config.tying == "all":
            self.decoder.embedding.tokens.weight = self.encoder.embedding.tokens.weight
        if config.tying == "none":
            self.output = nn.Linear(config.d_model, padded_size(config.tgt_vocab_size), bias=False)

    def _init_weights(self) -> None:
        """Xavier-uniform matrices (Glorot and Bengio 2010), zero biases."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    @property
    def output_weight(self) -> Tensor:
        """[V,D]: the output projection, which has no bias."""
        table = self.output if self.config.tying == "none" else self.decoder.embedding.tokens
        return table.weight

    def project_output(self, hidden: Tensor) -> Tensor:
        """hidden [...,D] -> logits [...,V] before any masking, V padded to a multiple of 64."""
        return F.linear(hidden, self.output_weight)

    def encode(self, src_ids: Tensor, src_mask: Tensor) -> list[tuple[Tensor, Tensor]]:
        """src_ids [B,S], src_mask [B,S] -> per decoder layer cross_k, cross_v [B,H,S,Dh]."""
        return self.decoder.project_cross(self.encoder(src_ids, src_mask))

    def forward(self, src_ids: Tensor, src_mask: Tensor, tgt_ids: Tensor) -> Tensor:
        """Teacher forcing: src_ids [B,S], src_mask [B,S] bool, tgt_ids [B,T] (start id first) ->
        logits [B,T,V]; position t predicts the token after tgt_ids[:, t]."""
        hidden = self.decoder(tgt_ids, self.encode(src_ids, src_mask), src_mask)
        return self.project_output(hidden)


def banned_mask(config: ModelConfig) -> Tensor:
    """[V] bool: True for ids that are never predicted."""
    mask = torch.zeros(padded_size(config.tgt_vocab_size), dtype=torch.bool)
    mask[list(config.banned_ids)] = True
    return mask


def _final_norm(config: ModelConfig) -> nn.Module:
    """Pre-norm leaves the last sum unnormalised: a norm follows the stack."""
    if config.norm == "pre":
        return nn.LayerNorm(config.d_model, eps=config.norm_eps)
    return nn.Identity()
