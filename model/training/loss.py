"""What training minimises, without ever holding the logits of a whole batch.

Cross-entropy with label smoothing and, where asked for, R-Drop: the batch is run twice with other
dropout masks, and the two predictions of a token are drawn towards each other.

Letters: R rows (target tokens that are no padding), D d_model, V vocabulary (padded).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from model.training.batching import Batch
from model.transformer import Transformer, banned_mask

_CHUNK_ELEMENTS = 1 << 21
"""Logits computed at a time: 8 MiB in float32, which stays within the caches' reach."""


def token_loss(
    model: Transformer, batch: Batch, *, smoothing: float, bf16: bool, r_drop: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Teacher forcing on one batch -> summed over its target tokens: what is minimised, and the
    negative log-likelihood in nats. bf16: matrix products in bfloat16 (autocast), the softmax and
    the sums in float32. r_drop: see `PredictionLoss`; twice the work where it is not 0."""
    copies = 2 if r_drop else 1
    src_ids, src_mask, tgt_in = (
        x.repeat(copies, 1) for x in (batch.src_ids, batch.src_mask, batch.tgt_in)
    )
    device = src_ids.device
    # Each weight is used once, so a cache of cast ones, which threads would share, gains nothing.
    with torch.autocast(device.type, torch.bfloat16, enabled=bf16, cache_enabled=False):
        hidden = model.decoder(tgt_in, model.encode(src_ids, src_mask), src_mask)  # [c*B,T,D]
    real = (batch.tgt_out != model.config.special_ids.pad_id).flatten().nonzero().squeeze(1)  # [R]
    rows = hidden.reshape(copies, -1, hidden.size(-1)).index_select(1, real)  # [c,R,D]
    weight = model.output_weight
    if bf16:
        rows, weight = rows.bfloat16(), weight.bfloat16()
    targets = batch.tgt_out.flatten().index_select(0, real)
    losses: tuple[Tensor, Tensor] = PredictionLoss.apply(  # type: ignore[no-untyped-call]
        rows, weight, targets, banned_mask(model.config).to(device), smoothing, r_drop
    )
    return losses


class PredictionLoss(torch.autograd.Function):
    """The mean over c copies of sum over rows of -sum_v q(v) log p(v), plus the R-Drop term.

    Smoothing (Szegedy et al. 2016, arXiv 1512.00567, section 7): q holds 1 - smoothing on the
    target and smoothing / A on each of the A ids that may be predicted; p is a softmax over those A
    ids only, as in decoding.

    R-Drop (Liang et al. 2021, arXiv 2106.14448, equations 2 to 4, all halved so that a token counts
    as much as without it): r_drop / 4 * (KL(p1 || p2) + KL(p2 || p1)), p1 and p2 being the
    predictions of the two copies.

    Gradients are made in the forward pass, chunk by chunk, while the logits are there.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        banned: Tensor,
        smoothing: float,
        r_drop: float,
    ) -> tuple[Tensor, Tensor]:
        """hidden [c,R,D] (c is 1, or 2 for r_drop), weight [V,D] of one dtype; targets int64 [R];
        banned bool [V] -> two float32 scalars: the loss, and the negative log-likelihood of the
        targets, the mean of the copies. Only the first has a gradient."""
        copies, num_rows, _ = hidden.shape
        allowed = (~banned).float()  # [V]
        share = smoothing / float(allowed.sum())
        banned_ids = banned.nonzero().squeeze(1)
        # sum_v logits(v) of the allowed ids is hidden . sum_v weight(v): no pass over V.
        weight_sum = allowed @ weight.float()  # [D]
        wanted = any(ctx.needs_input_grad[:2])
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        loss, plain = torch.zeros(2, device=hidden.device).unbind()
        step = max(1, _CHUNK_ELEMENTS // (weight.size(0) * copies))
        for start in range(0, num_rows, step):
            target = targets[start : start + step, None]  # [r,1]
            chunk = hidden[:, start : start + step]  # [c,r,D]
            found = [_predict(rows, weight, banned_ids) for rows in chunk]
            for (logits, _, total), rows in zip(found, chunk, strict=True):
                nll = (total - logits.gather(1, target).float()).sum() / copies
                plain = plain + nll
                loss = loss + (1 - smoothing) * nll
                if smoothing:
                    sums = rows.float() @ weight_sum  # [r]
                    loss = loss + (smoothing * total.sum() - share * sums.sum()) / copies
            slopes = [probs for _, probs, _ in found]  # of the loss by the logits, each [r,V]
            if r_drop:
                divergence, slopes = _draw_together(found, r_drop)
                loss = loss + divergence
            if not wanted:
                continue
            for copy, (rows, slope) in enumerate(zip(chunk, slopes, strict=True)):
                slope.scatter_add_(1, target, slope.new_full(target.shape, smoothing - 1))
                cast = slope.to(weight.dtype)
                torch.mm(cast, weight, out=grad_hidden[copy, start : start + step])
                grad_weight += cast.t() @ rows
        if wanted:
            if smoothing:
                grad_hidden -= (share * weight_sum).to(weight.dtype)
                grad_weight -= torch.outer(share * allowed, hidden.float().sum((0, 1)))
            ctx.save_for_backward(grad_hidden / copies, (grad_weight / copies).to(weight.dtype))
        ctx.mark_non_differentiable(plain)
        return loss, plain

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight = ctx.saved_tensors
        return (
            grad_hidden * grad.to(grad_hidden.dtype),
            grad_weight * grad.to(grad_weight.dtype),
            None,
            None,
            None,
            None,
        )


Prediction = tuple[Tensor, Tensor, Tensor]
"""logits [r,V]; their softmax, float32 [r,V]; the logarithm of its divisor, float32 [r,1]."""


def _predict(rows: Tensor, weight: Tensor, banned_ids: Tensor) -> Prediction:
    logits = (rows @ weight.t()).index_fill_(1, banned_ids, -1e9)
    probs = torch.softmax(logits, dim=1, dtype=torch.float32)
    # The largest probability is at least 1/V, so its logarithm is always finite.
    total = logits.amax(1, keepdim=True).float() - probs.amax(1, keepdim=True).log()
    return logits, probs, total


def _draw_together(found: list[Prediction], r_drop: float) -> tuple[Tensor, list[Tensor]]:
    """The R-Drop term of a chunk, and for each copy probs plus twice its slope: the mean over two
    copies, taken later, halves it.

    With d = log p1 - log p2: sum_v (p1 - p2) d is both divergences together, and its slope by the
    logits of p1 is p1 (d - KL(p1 || p2)) + p1 - p2.
    """
    (logits_1, probs_1, total_1), (logits_2, probs_2, total_2) = found
    log_ratio = (logits_1.float() - total_1).sub_(logits_2.float() - total_2)  # [r,V]
    forward = (probs_1 * log_ratio).sum(1, keepdim=True)  # KL(p1 || p2): [r,1]
    backward = -(probs_2 * log_ratio).sum(1, keepdim=True)
    factor = r_drop / 2
    difference = probs_1 - probs_2
    slope_1 = probs_1 * (log_ratio - forward)
    slope_2 = probs_2 * (-log_ratio - backward)
    return (
        r_drop / 4 * (forward + backward).sum(),
        [
            probs_1 + factor * slope_1.add_(difference),
            probs_2 + factor * slope_2.sub_(difference),
        ],
    )
