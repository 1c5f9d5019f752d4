"""Whether the loss stands still, and why: learning rate, frozen weights, lines that don't match."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from model.config import Norm
from model.training.batching import Batch, EncodedCorpus, make_batch
from model.training.loss import token_loss
from model.transformer import Transformer

STALL_UPDATES = 1000
STALL_SHARE, STALL_GAIN = 0.9, 0.99
"""A loss stands still if over STALL_UPDATES updates its mean stays above STALL_GAIN of its mean
over as many updates before, and either above STALL_SHARE of what guessing by frequency costs, or
the source is ignored."""
SOURCE_GAIN = 0.01
"""The source is ignored if another line's makes the loss larger by less than this share."""
_SOURCE_ROWS = 64


@dataclass(frozen=True, kw_only=True)
class Plateau:
    """A loss that stands still, and what may explain it.

    mean, before: nats a target token over the last STALL_UPDATES updates and those before.
    guessing: what guessing by frequency alone costs. own, other: the loss of some validation lines
    with their own sources and with those of other lines. median_norm: of the gradient, before
    clipping. moved: the most that a weight can have moved since training began, which with Adam is
    about the sum of the learning rates; size: the typical magnitude of a weight. frozen: weights
    that have had no gradient.
    """

    mean: float
    before: float
    guessing: float
    own: float
    other: float
    median_norm: float
    moved: float
    size: float
    frozen: Sequence[str]
    peak: float
    norm: Norm

    @property
    def ignores_source(self) -> bool:
        return self.other < (1 + SOURCE_GAIN) * self.own

    @property
    def stands_still(self) -> bool:
        guesses = self.mean > STALL_SHARE * self.guessing
        return self.mean > STALL_GAIN * self.before and (guesses or self.ignores_source)

    def explain(self) -> str:
        return (
            f"the loss stands still: {self.mean:.2f} nats a token over the last {STALL_UPDATES} "
            f"updates, {self.before:.2f} over those before, and guessing by frequency alone costs "
            f"{self.guessing:.2f} (median gradient norm {self.median_norm:.2g}, validation loss "
            f"{self.own:.2f} with the right sources, {self.other:.2f} with those of other lines). "
            f"Probably {self._cause()}"
        )

    def _cause(self) -> str:
        if self.frozen:
            more = f" and {len(self.frozen) - 3} more" if len(self.frozen) > 3 else ""
            return (
                f"weights are frozen: {', '.join(self.frozen[:3])}{more} had no gradient since "
                "training began. Look for requires_grad, detach() or no_grad() on the way to them"
            )
        if self.moved < self.size:
            return (
                f"the learning rate ({self.peak:g}) is too low: no weight can have moved by more "
                f"than {self.moved:.1g} yet, and a typical one is {self.size:.1g}. Leave "
                "--learning-rate out, which takes one that suits the width"
            )
        if self.mean < STALL_SHARE * self.guessing:
            return (
                "source and target lines do not belong together: the model has learnt to continue "
                "target lines, better than by frequency, and its source makes no difference. "
                "One line too many or too few on one side shifts all behind it: `python -m model "
                "check-data` tells where"
            )
        hint = "a longer --warmup or --norm pre" if self.norm == "post" else "or a longer --warmup"
        return (
            f"the learning rate ({self.peak:g}) is too high for {self.norm}-norm: try a third of "
            f"it, {hint}. Or source and target lines do not belong together: `python -m model "
            "check-data` tells"
        )


@torch.no_grad()
def source_use(
    model: Transformer, corpus: EncodedCorpus, device: torch.device
) -> tuple[float, float]:
    """Nats a target token of some lines with their own sources, and with those of their neighbours
    by length, without dropout; equal where the source is ignored. The second is infinite where the
    corpus has one line only. Leaves the model's mode as it was."""
    order = np.argsort(corpus.source.lengths, kind="stable")
    rows = order[np.linspace(0, len(order) - 1, min(_SOURCE_ROWS, len(order))).astype(np.int64)]
    batch = make_batch(corpus, rows, model.config).to(device)
    training = model.training
    model.eval()
    own, other = (
        float(token_loss(model, given, smoothing=0.0, bf16=False)[1]) / batch.num_tokens
        for given in (batch, _with_other_sources(batch))
    )
    model.train(training)
    return own, other if len(rows) > 1 else math.inf


def _with_other_sources(batch: Batch) -> Batch:
    return dataclasses.replace(
        batch, src_ids=batch.src_ids.roll(1, 0), src_mask=batch.src_mask.roll(1, 0)
    )


def frozen_weights(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """The matrices that had no gradient since training began: Adam's second moment is all 0."""
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.dim() > 1
        and not bool(optimizer.state.get(parameter, {}).get("exp_avg_sq", torch.zeros(1)).any())
    ]


def typical_weight(model: nn.Module) -> float:
    """The median, over matrices, of the root mean square of their numbers."""
    return statistics.median(
        float(parameter.detach().square().mean().sqrt())
        for parameter in model.parameters()
        if parameter.dim() > 1
    )
