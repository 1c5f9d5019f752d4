"""The gradient of one update, its batches computed side by side.

A batch a core, each core working through its own, waits once an update; all cores on one batch wait
for each other at every operation, and on a machine that does something else as well that is where
the time goes (docs/decisions/0004-training.md). The result does not depend on how many run at once:
gradients are added in the order of the batches, and dropout is seeded by batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from model.batching import Batch
from model.dropout import seed_dropout
from model.loss import token_loss
from model.transformer import Transformer


class GradientWorkers:
    """Threads for up to `accumulation` batches. Sets PyTorch's threads; `close` sets them back."""

    def __init__(self, accumulation: int) -> None:
        self._threads_before = torch.get_num_threads()
        workers = min(accumulation, self._threads_before)
        each = self._threads_before // workers
        torch.set_num_threads(each)
        # PyTorch keeps the number per thread as well.
        self._pool = ThreadPoolExecutor(workers, initializer=lambda: torch.set_num_threads(each))

    def compute(
        self,
        model: Transformer,
        batches: Sequence[Batch],
        seeds: Sequence[int],
        *,
        smoothing: float,
        bf16: bool,
        r_drop: float = 0.0,
    ) -> float:
        """Sets `.grad` of every parameter to that of the mean loss of a target token of all batches
        (model.loss.token_loss); seeds: of each batch's dropout. Returns the mean negative
        log-likelihood."""
        parameters = list(model.parameters())
        tokens = sum(batch.num_tokens for batch in batches)

        def one(batch: Batch, seed: int) -> tuple[float, tuple[Tensor, ...]]:
            seed_dropout(seed)
            loss, nll = token_loss(model, batch, smoothing=smoothing, bf16=bf16, r_drop=r_drop)
            return float(nll), torch.autograd.grad(loss / tokens, parameters)

        total = 0.0
        for index, (nll, gradients) in enumerate(self._pool.map(one, batches, seeds)):
            total += nll
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if index == 0 or parameter.grad is None:
                    parameter.grad = gradient
                else:
                    parameter.grad += gradient
        return total / tokens

    def close(self) -> None:
        self._pool.shutdown()
        torch.set_num_threads(self._threads_before)
