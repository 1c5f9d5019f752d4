"""Cross-entropy with label smoothing, without ever holding the logits of a whole batch.

Letters: R rows (target tokens that are no padding), D d_model, V vocabulary (padded).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from model.batching import Batch
from model.transformer import Transformer, banned_mask

_CHUNK_ELEMENTS = 1 << 22
"""Logits computed at a time: 16 MiB in float32, which stays within the caches' reach."""


def token_loss(
    model: Transformer, batch: Batch, *, smoothing: float, bf16: bool
) -> tuple[Tensor, Tensor]:
    """Teacher forcing on one batch -> summed over its target tokens: the smoothed loss, and the
    negative log-likelihood in nats. bf16: matrix products in bfloat16 (autocast), the softmax and
    the sums in float32."""
    # Each weight is used once, so a cache of cast ones, which threads would share, gains nothing.
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16, cache_enabled=False):
        cross = model.encode(batch.src_ids, batch.src_mask)
        hidden = model.decoder(batch.tgt_in, cross, batch.src_mask)  # [B,T,D]
    real = (batch.tgt_out != model.config.special_ids.pad_id).flatten().nonzero().squeeze(1)  # [R]
    rows, weight = hidden.flatten(0, 1).index_select(0, real), model.output_weight
    if bf16:
        rows, weight = rows.bfloat16(), weight.bfloat16()
    bias = torch.zeros(weight.size(0)).masked_fill_(banned_mask(model.config), -1e9)
    targets = batch.tgt_out.flatten().index_select(0, real)
    losses: tuple[Tensor, Tensor] = SmoothedCrossEntropy.apply(  # type: ignore[no-untyped-call]
        rows, weight, targets, bias, smoothing
    )
    return losses


class SmoothedCrossEntropy(torch.autograd.Function):
    """Sum over rows of -sum_v q(v) log p(v): Szegedy et al. 2016, arXiv 1512.00567, section 7.

    q holds 1 - smoothing on the target and smoothing / A on each of the A ids that may be
    predicted; p is a softmax over those A ids only, as in decoding. Gradients are made in the
    forward pass, chunk by chunk, while the logits are there.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        """hidden [R,D], weight [V,D] of one dtype; targets int64 [R]; bias float32 [V], 0 or -1e9
        -> two float32 scalars: the smoothed loss, and the negative log-likelihood of the targets.
        Only the first has a gradient."""
        allowed = (bias == 0).to(torch.float32)  # [V]
        share = smoothing / float(allowed.sum())
        wanted = any(ctx.needs_input_grad[:2])
        grad_hidden = torch.empty_like(hidden) if wanted else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if wanted else None
        smoothed, plain = torch.zeros(2, device=hidden.device).unbind()
        step = max(1, _CHUNK_ELEMENTS // weight.size(0))
        for start in range(0, hidden.size(0), step):
            rows, target = hidden[start : start + step], targets[start : start + step]
            logits = (rows @ weight.t()).float().add_(bias)  # [r,V]
            total = logits.logsumexp(dim=1, keepdim=True)  # [r,1]
            picked = logits.gather(1, target.unsqueeze(1))
            nll = (total - picked).sum()
            plain = plain + nll
            smoothed = smoothed + (1 - smoothing) * nll
            if smoothing:
                smoothed = smoothed + smoothing * total.sum() - share * (logits @ allowed).sum()
            if grad_hidden is None or grad_weight is None:
                continue
            probs = logits.sub_(total).exp_()  # softmax minus q is the gradient: [r,V]
            if smoothing:
                probs.sub_(share * allowed)
            probs.scatter_add_(1, target.unsqueeze(1), torch.full_like(picked, smoothing - 1))
            probs = probs.to(weight.dtype)
            torch.mm(probs, weight, out=grad_hidden[start : start + step])
            grad_weight += probs.t() @ rows
        if grad_hidden is not None and grad_weight is not None:
            ctx.save_for_backward(grad_hidden, grad_weight.to(weight.dtype))
        ctx.mark_non_differentiable(plain)
        return smoothed, plain

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        grad_hidden, grad_weight = ctx.saved_tensors
        return (
            grad_hidden * grad.to(grad_hidden.dtype),
            grad_weight * grad.to(grad_weight.dtype),
            None,
            None,
            None,
        )
