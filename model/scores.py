"""The score functions of the history, for the cross-attention: how well a target state s and a
source state h go together, before the softmax.

    scaled_dot  (W_q s)^T (W_k h) / sqrt(Dh)   Vaswani et al. 2017, 3.2.1; `model.attention` itself
    dot         s^T h                          Luong et al. 2015, arXiv 1508.04025, section 3.1
    general     s^T W_a h                      the same
    concat      v^T tanh(W_a [s; h])           the same
    additive    v^T tanh(W_a s + U_a h)        Bahdanau et al. 2015, arXiv 1409.0473, A.1.2

Both papers attend once. Here every head scores for itself: it takes its own slice of s and h where
the formula has no matrix beside them (dot, and s in general), else its own rows of the matrices and
its own v. With one head of head_dim = d_model each class is its paper's formula to the letter, but
that additive and concat add a bias inside the tanh, which the papers leave out of their formulas.

Additive and concat are one function: cut W_a of concat into its left and right half,
[W_s W_h] [s; h] = W_s s + W_h h, and W_s, W_h are additive's W_a and U_a. What differs is where
training starts (Xavier's bound falls with the width of the matrix, and concat's is twice as wide),
and, in the papers, what s and h are: additive looks from the state before the current word, concat
from that of the current one.

Whatever stands beside h is multiplied in `project_key`, once a sentence, as A.1.2 advises for
U_a h; a decoding step is left with its own side and `forward`.

Letters: R rows (sentences), Tq and Tk query and key lengths (in a decoding step all K beams of a
sentence are its queries), H heads, Dh head_dim, D d_model.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import CrossScore

BLOCK_ELEMENTS = 1 << 23
"""Most elements of [R,H,queries,Tk,Dh] that are there at a time: 32 MiB of float32."""


class Dot(nn.Module):
    """s^T h: no weights at all. Needs H*Dh = D. Every layer's keys are the encoder's output."""

    def project_query(self, s: Tensor) -> Tensor:
        """s [...,D] -> [...,H*Dh]; a head's share is a slice."""
        return s

    def project_key(self, h: Tensor) -> Tensor:
        """h [...,D] -> [...,H*Dh], once a sentence."""
        return h

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """q [R,H,Tq,Dh], k [R,H,Tk,Dh] -> scores [R,H,Tq,Tk]. Nothing is divided by sqrt(Dh)."""
        return torch.matmul(q, k.transpose(-1, -2))


class General(Dot):
    """s^T W_a h: the rows of W_a [H*Dh,D] that belong to a head meet its slice of s. H*Dh = D."""

    def __init__(self, d_model: int, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.key_proj = nn.Linear(d_model, num_heads * head_dim, bias=False)  # W_a

    def project_key(self, h: Tensor) -> Tensor:
        """h [...,D] -> W_a h [...,H*Dh], once a sentence."""
        return self.key_proj(h)  # type: ignore[no-any-return]


class Additive(nn.Module):
    """v^T tanh(W_a s + b + U_a h): a perceptron with one hidden layer of Dh units a head.

    Its hidden layer exists for every pair of positions: R*H*Tq*Tk*Dh numbers, where dot products
    are R*H*Tq*Tk. PyTorch keeps it for the gradient if it has at most BLOCK_ELEMENTS; a larger one
    is made block by block of queries, and again for the gradient. An exported step makes it at
    once: B*H*K*S*Dh floats, with 4 beams, 64 source tokens and H*Dh = 512 half a megabyte a
    sentence.
    """

    def __init__(self, d_model: int, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.query_proj = nn.Linear(d_model, num_heads * head_dim)  # W_a and b
        self.key_proj = nn.Linear(d_model, num_heads * head_dim, bias=False)  # U_a
        self.v = _new_v(num_heads, head_dim)

    def project_query(self, s: Tensor) -> Tensor:
        """s [...,D] -> W_a s + b [...,H*Dh]."""
        return self.query_proj(s)  # type: ignore[no-any-return]

    def project_key(self, h: Tensor) -> Tensor:
        """h [...,D] -> U_a h [...,H*Dh], once a sentence."""
        return self.key_proj(h)  # type: ignore[no-any-return]

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """q [R,H,Tq,Dh], k [R,H,Tk,Dh] -> scores [R,H,Tq,Tk]."""
        return tanh_scores(q, k, self.v)


class Concat(nn.Module):
    """v^T tanh(W_a [s; h] + b), W_a [H*Dh,2D] as one matrix. Costs what Additive costs."""

    def __init__(self, d_model: int, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.proj = nn.Linear(2 * d_model, num_heads * head_dim)  # W_a and b
        self.v = _new_v(num_heads, head_dim)

    def project_query(self, s: Tensor) -> Tensor:
        """s [...,D] -> the left half of W_a s + b [...,H*Dh]."""
        return F.linear(s, self.proj.weight[:, : s.size(-1)], self.proj.bias)

    def project_key(self, h: Tensor) -> Tensor:
        """h [...,D] -> the right half of W_a h [...,H*Dh], once a sentence."""
        return F.linear(h, self.proj.weight[:, -h.size(-1) :])

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """q [R,H,Tq,Dh], k [R,H,Tk,Dh] -> scores [R,H,Tq,Tk]."""
        return tanh_scores(q, k, self.v)

    def as_additive(self) -> Additive:
        """The same function in the other notation, W_a cut in two: what is exported."""
        heads, _, _, head_dim = self.v.shape
        d_model = self.proj.in_features // 2
        other = Additive(d_model, heads, head_dim).to(self.v)
        with torch.no_grad():
            other.query_proj.weight.copy_(self.proj.weight[:, :d_model])
            other.query_proj.bias.copy_(self.proj.bias)
            other.key_proj.weight.copy_(self.proj.weight[:, d_model:])
            other.v.copy_(self.v)
        return other


Score = Dot | General | Additive | Concat


def make_score(name: CrossScore, d_model: int, num_heads: int, head_dim: int) -> Score | None:
    """The score function of that name; None for scaled_dot, which MultiHeadAttention is by itself.

    Matrices get their start with all others, in Transformer.
    """
    if name == "dot":
        return Dot()
    if name == "scaled_dot":
        return None
    if name == "general":
        return General(d_model, num_heads, head_dim)
    if name == "concat":
        return Concat(d_model, num_heads, head_dim)
    return Additive(d_model, num_heads, head_dim)


def tanh_scores(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """v^T tanh(q + k) for every query and key.

    q [R,H,Tq,Dh], k [R,H,Tk,Dh], v [H,1,1,Dh] -> [R,H,Tq,Tk].
    """
    if torch.compiler.is_exporting() or q.size(2) * k.numel() <= BLOCK_ELEMENTS:
        return _score_block(q, k, v)
    return _TanhScores.apply(q, k, v)  # type: ignore[no-any-return, no-untyped-call]


class _TanhScores(torch.autograd.Function):
    """tanh_scores and its gradient, a block of queries at a time, nothing kept in between.

    With u = tanh(q + k), each [R,H,Tq,Tk,Dh], and g = dloss/dscores [R,H,Tq,Tk]:
    dloss/dv sums g u, dloss/dq sums g v (1 - u^2) over keys, dloss/dk the same over queries.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, v)
        return torch.cat([_score_block(part, k, v) for part in _blocks(q, k)], dim=2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = ctx.saved_tensors
        for_q, for_k, for_v = [], torch.zeros_like(k, dtype=v.dtype), torch.zeros_like(v)
        for part, grad in zip(_blocks(q, k), _blocks(gradients[0], k), strict=True):
            hidden = _hidden(part, k)  # [R,H,block,Tk,Dh]
            grad = grad.unsqueeze(-1)
            for_v += (grad * hidden).sum(dim=(0, 2, 3))[:, None, None]
            inner = grad * v * (1 - hidden.square())
            for_q.append(inner.sum(dim=3))
            for_k += inner.sum(dim=2)
        return torch.cat(for_q, dim=2).to(q.dtype), for_k.to(k.dtype), for_v


def _hidden(q: Tensor, k: Tensor) -> Tensor:
    """q [R,H,Tq,Dh], k [R,H,Tk,Dh] -> tanh(q + k) [R,H,Tq,Tk,Dh]."""
    return torch.tanh(q.unsqueeze(3) + k.unsqueeze(2))


def _score_block(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    # Not a MatMul by v: a product and a sum stay float when MatMuls of weights become INT8, and do
    # not depend on how many rows there are.
    return (_hidden(q, k) * v).sum(dim=-1)


def _blocks(x: Tensor, k: Tensor) -> tuple[Tensor, ...]:
    """x [R,H,Tq,...] cut along its queries, so that each block of the hidden layer is small."""
    queries = max(1, BLOCK_ELEMENTS // k.numel())
    return x.split(queries, dim=2)  # type: ignore[no-any-return, no-untyped-call]


def _new_v(num_heads: int, head_dim: int) -> nn.Parameter:
    """v [H,1,1,Dh], broadcast over queries and keys; Xavier's bound for Dh inputs and one output.

    Bahdanau et al. started v at zero (B.1), from which all positions weigh the same.
    """
    bound = (6 / (head_dim + 1)) ** 0.5
    return nn.Parameter(torch.empty(num_heads, 1, 1, head_dim).uniform_(-bound, bound))
