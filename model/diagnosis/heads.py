"""Attention heads that do nothing for the model: all alike, one place only, or silent.

A few are usual in a trained model (Michel et al. 2019, arXiv 1905.10650, prune many), and the first
or last token is where a head looks that has nothing to say. Many, or all of a layer, are not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from model.attention import MultiHeadAttention
from model.training.batching import Batch
from model.transformer import Transformer

UNIFORM = 0.01
"""A head looks at all positions alike if, in every row, its largest weight is at most this much
above its smallest."""
FIXED = 0.99
"""A head looks at one place only if the first, or the last, gets this weight in every row."""
SILENT = 1e-3
"""A head is silent if what it adds is below this share of what the loudest of its layer adds."""


@dataclass(frozen=True, kw_only=True)
class DeadHead:
    """attention: its module's path. head: from 0. why: words for it."""

    attention: str
    head: int
    why: str

    def __str__(self) -> str:
        return f"{self.attention} head {self.head} {self.why}"


@torch.no_grad()
def dead_heads(model: Transformer, batch: Batch) -> list[DeadHead]:
    """Of one pass over `batch`, without dropout. Leaves the model's mode as it was."""
    training = model.training
    model.eval()
    recorders = {
        name: _Recorder(module)
        for name, module in model.named_modules()
        if isinstance(module, MultiHeadAttention)
    }
    try:
        model.decoder(batch.tgt_in, model.encode(batch.src_ids, batch.src_mask), batch.src_mask)
    finally:
        for recorder in recorders.values():
            recorder.remove()
        model.train(training)
    real = batch.tgt_out != model.config.special_ids.pad_id
    source = batch.src_mask
    causal = torch.ones(real.size(1), real.size(1), dtype=torch.bool, device=real.device).tril()
    found = []
    for name, recorder in recorders.items():
        if name.startswith("encoder"):
            queries, visible = source, source[:, None, :].expand(-1, source.size(1), -1)
        elif name.endswith("self_attention"):
            queries, visible = real, causal & real[:, None, :]
        else:
            queries, visible = real, source[:, None, :].expand(-1, real.size(1), -1)
        found += [
            DeadHead(attention=name, head=head, why=why)
            for head, why in enumerate(recorder.judge(queries, visible))
            if why
        ]
    return found


class _Recorder:
    """Keeps an attention's weights [B,H,Tq,Tk] and what its heads hand to the output projection."""

    def __init__(self, attention: MultiHeadAttention) -> None:
        self._attention = attention
        self._weights: Tensor | None = None
        self._joined = torch.empty(0)
        self._handles = [
            attention.dropout.register_forward_pre_hook(self._keep("_weights")),
            attention.out_proj.register_forward_pre_hook(self._keep("_joined")),
        ]

    def _keep(self, name: str) -> Callable[..., None]:
        def hook(_: nn.Module, inputs: Any) -> None:
            setattr(self, name, inputs[0])

        return hook

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def judge(self, queries: Tensor, visible: Tensor) -> list[str]:
        """For each head what is wrong with it, or nothing. queries bool [B,Tq]: the real ones;
        visible bool [B,Tq,Tk]."""
        silent = self._silent(queries)
        rows = queries & (visible.sum(2) > 1)  # with a choice
        if self._weights is None or not bool(rows.any()):
            return ["adds nothing to its layer" if quiet else "" for quiet in silent]
        weights = self._weights.float().transpose(0, 1)[:, rows]  # [H,rows,Tk]
        seen = visible[rows]  # [rows,Tk]
        largest = weights.amax(2)
        smallest = weights.masked_fill(~seen, torch.inf).amin(2)
        uniform = (largest <= (1 + UNIFORM) * smallest).all(1)
        last = seen.shape[1] - 1 - seen.flip(1).int().argmax(1)  # [rows]
        first_only = (weights[..., 0] >= FIXED).all(1)
        last_only = (weights.gather(2, last.expand(len(weights), -1)[..., None]) >= FIXED).all(1)
        return [
            "adds nothing to its layer" if quiet
            else "looks at all positions alike" if alike
            else "looks at the first position only" if first
            else "looks at the last position only" if end
            else ""
            for quiet, alike, first, end in zip(
                silent, uniform.tolist(), first_only.tolist(), last_only.flatten().tolist(),
                strict=True,
            )
        ]  # fmt: skip

    def _silent(self, queries: Tensor) -> list[bool]:
        """Whether a head adds next to nothing: its share of the joined values, through its columns
        of the output projection."""
        heads, width = self._attention.num_heads, self._attention.head_dim
        joined = self._joined[queries].float().view(-1, heads, width)  # [rows,H,Dh]
        columns = self._attention.out_proj.weight.float().view(-1, heads, width)  # [D,H,Dh]
        loudness = torch.einsum("rhw,dhw->rhd", joined, columns).norm(dim=2).mean(0)  # [H]
        return (loudness <= SILENT * loudness.max()).tolist()  # type: ignore[no-any-return]
