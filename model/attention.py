"""Scaled dot-product attention over several heads (Vaswani et al. 2017, section 3.2).

Letters: R rows (sentences, or sentences times beams), Tq and Tk query and key lengths, H heads,
Dh head_dim, D d_model.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.dropout import Dropout
from model.scores import Score

MASKED_SCORE = -1e4
"""What a masked score becomes: far below any real one, and finite in float16 as well."""


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_H) W_O; head i attends in its own projections.

    Keys and values are projected apart from queries, since a decoder keeps them between steps.
    score: what takes the place of the dot products, with the projections that are its own.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        head_dim: int,
        *,
        scale: float,
        dropout: float,
        score: Score | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.scale = scale
        inner = num_heads * head_dim
        self.score = score
        if score is None:
            self.q_proj = nn.Linear(d_model, inner)
            self.k_proj = nn.Linear(d_model, inner)
        self.v_proj = nn.Linear(d_model, inner)
        self.out_proj = nn.Linear(inner, d_model)
        self.dropout = Dropout(dropout)

    def split_heads(self, x: Tensor) -> Tensor:
        """[R,T,H*Dh] -> [R,H,T,Dh]."""
        return x.reshape(x.size(0), x.size(1), self.num_heads, self.head_dim).transpose(1, 2)

    def project_query(self, x: Tensor) -> Tensor:
        """x [R,Tq,D] -> [R,H,Tq,Dh]."""
        q = self.q_proj(x) if self.score is None else self.score.project_query(x)
        return self.split_heads(q)

    def project_key_value(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [R,Tk,D] -> keys, values [R,H,Tk,Dh]."""
        k = self.k_proj(x) if self.score is None else self.score.project_key(x)
        return self.split_heads(k), self.split_heads(self.v_proj(x))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """softmax(q k^T * scale) v, heads joined and projected (equation 1); or with the scores of
        another score function in place of q k^T * scale.

        q [R,H,Tq,Dh]; k, v [R,H,Tk,Dh]; mask bool, broadcast to [R,H,Tq,Tk], True = may be seen;
        gives [R,Tq,D]. A row that may see nothing gets the mean of all values: finite, and unused.
        """
        fused = q.device.type == "cuda" and not torch.onnx.is_in_onnx_export()
        if fused and self.score is None:
            p = self.dropout.p if self.training else 0.0
            context = F.scaled_dot_product_attention(q, k, v, mask, dropout_p=p, scale=self.scale)
        else:
            context = self._attend_written_out(q, k, v, mask)
        joined = context.transpose(1, 2).flatten(2)  # [R,Tq,H*Dh]
        return self.out_proj(joined)  # type: ignore[no-any-return]

    def _attend_written_out(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Two batched products and a softmax: on a CPU faster to train than the fused kernel."""
        scores = self._scores(q, k)  # [R,H,Tq,Tk]
        if mask is not None:
            scores = torch.where(mask, scores, MASKED_SCORE)
        # model.interpretation.maps reads the weights off what the dropout is given.
        weights = self.dropout(scores.softmax(dim=-1))  # [R,H,Tq,Tk]
        return torch.matmul(weights, v)

    def _scores(self, q: Tensor, k: Tensor) -> Tensor:
        """q [R,H,Tq,Dh], k [R,H,Tk,Dh] -> [R,H,Tq,Tk], before the mask."""
        if self.score is not None:
            return self.score(q, k)  # type: ignore[no-any-return]
        return torch.matmul(q * self.scale if self.scale != 1.0 else q, k.transpose(-1, -2))
