"""Encoder and decoder layers: attention and feed-forward, each inside a residual with its norm."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from model.attention import MultiHeadAttention
from model.config import CrossScore, ModelConfig, StackConfig
from model.dropout import Dropout
from model.positions import Rotary
from model.scores import make_score

ExtendCache = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Takes the new keys and values [R,H,1,Dh] of one layer, gives all so far [R,H,T+1,Dh]."""


class FeedForward(nn.Module):
    """FFN(x) = activation(x W_1 + b_1) W_2 + b_2, at every position alike (section 3.3)."""

    def __init__(self, config: ModelConfig, stack: StackConfig) -> None:
        super().__init__()
        self.gelu = config.activation == "gelu"
        self.in_proj = nn.Linear(config.d_model, stack.ffn_dim)
        self.out_proj = nn.Linear(stack.ffn_dim, config.d_model)
        self.dropout = Dropout(config.ffn_dropout)

    def forward(self, x: Tensor) -> Tensor:
        """x [...,D] -> [...,D]."""
        hidden = self.in_proj(x)
        hidden = self.dropout(F.gelu(hidden) if self.gelu else F.relu(hidden))
        return self.out_proj(hidden)  # type: ignore[no-any-return]


class Residual(nn.Module):
    """x + dropout(sublayer(x)), normalised after the sum (post) or before the sublayer (pre).

    Post-norm is the paper's (section 5.4); pre-norm: Xiong et al. 2020, arXiv 2002.04745.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.pre = config.norm == "pre"
        self.norm = nn.LayerNorm(config.d_model, eps=config.norm_eps)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """x [R,T,D] -> [R,T,D]."""
        if self.pre:
            return x + self.dropout(sublayer(self.norm(x)))  # type: ignore[no-any-return]
        return self.norm(x + self.dropout(sublayer(x)))  # type: ignore[no-any-return]


def _attention(
    config: ModelConfig, stack: StackConfig, score: CrossScore = "scaled_dot"
) -> MultiHeadAttention:
    return MultiHeadAttention(
        config.d_model,
        stack.num_heads,
        config.head_dim,
        scale=config.scale_of_attention,
        dropout=config.attention_dropout,
        score=make_score(score, config.d_model, stack.num_heads, config.head_dim),
    )


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward (section 3.1)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = _attention(config, config.encoder)
        self.ffn = FeedForward(config, config.encoder)
        self.self_residual = Residual(config)
        self.ffn_residual = Residual(config)

    def forward(
        self, x: Tensor, src_mask: Tensor, rotary: Rotary | None, positions: Tensor
    ) -> Tensor:
        """x [B,S,D], src_mask bool [B,1,1,S], positions [S] -> [B,S,D]."""

        def attend_to_source(y: Tensor) -> Tensor:
            q = self.self_attention.project_query(y)
            k, v = self.self_attention.project_key_value(y)
            if rotary is not None:
                q, k = rotary(q, positions), rotary(k, positions)
            return self.self_attention.attend(q, k, v, src_mask)

        x = self.self_residual(x, attend_to_source)
        return self.ffn_residual(x, self.ffn)  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Masked self-attention, cross-attention to the encoder, then feed-forward (section 3.1)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = _attention(config, config.decoder)
        self.cross_attention = _attention(config, config.decoder, config.cross_score)
        self.ffn = FeedForward(config, config.decoder)
        self.self_residual = Residual(config)
        self.cross_residual = Residual(config)
        self.ffn_residual = Residual(config)

    def forward(
        self,
        x: Tensor,
        self_mask: Tensor | None,
        cross_k: Tensor,
        cross_v: Tensor,
        src_mask: Tensor,
        rotary: Rotary | None,
        positions: Tensor,
        extend: ExtendCache | None = None,
    ) -> Tensor:
        """x [R,Tq,D]; self_mask bool [Tq,Tk] or None; cross_k, cross_v [B,H,S,Dh]; src_mask
        bool [B,1,1,S]; positions [Tq] or [R,Tq] -> [R,Tq,D].

        Training has R = B. A decoding step has R = B*K rows of one token each, and `extend`, which
        adds this step's keys and values to those of the steps before.
        """

        def attend_to_target(y: Tensor) -> Tensor:
            q = self.self_attention.project_query(y)
            k, v = self.self_attention.project_key_value(y)
            if rotary is not None:
                q, k = rotary(q, positions), rotary(k, positions)
            if extend is not None:
                k, v = extend(k, v)
            return self.self_attention.attend(q, k, v, self_mask)

        x = self.self_residual(x, attend_to_target)
        x = self.cross_residual(x, lambda y: self.attend_to_source(y, cross_k, cross_v, src_mask))
        return self.ffn_residual(x, self.ffn)  # type: ignore[no-any-return]

    def attend_to_source(
        self, x: Tensor, cross_k: Tensor, cross_v: Tensor, src_mask: Tensor
    ) -> Tensor:
        """x [R,Tq,D] -> [R,Tq,D]. The beams of a sentence stand on the query axis, so that its keys
        exist once."""
        queries = x.reshape(cross_k.size(0), -1, x.size(-1))  # [B, K*Tq, D]
        q = self.cross_attention.project_query(queries)
        return self.cross_attention.attend(q, cross_k, cross_v, src_mask).reshape(x.shape)
