"""The gradient of one update, its batches computed side by side.

A batch a core, each core working through its own, waits once an update; all cores on one batch wait
for each other at every operation, and on a machine that does something else as well that is where
the time goes (docs/decisions/0004-training.md). The result does not depend on how many run at once,
nor on how many processes share an update (model.training.distributed): gradients are added in the
order of the batches, and dropout is seeded by batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from model.dropout import seed_dropout
from model.training.batching import Batch
from model.training.distributed import ALONE, Ranks
from model.training.loss import token_loss
from model.transformer import Transformer


class GradientWorkers:
    """Threads for the batches that this rank computes of up to `accumulation`; one on a GPU. Sets
    PyTorch's threads; `close` sets them back."""

    def __init__(self, accumulation: int, ranks: Ranks = ALONE) -> None:
        self._ranks, self._device = ranks, ranks.device
        self._threads_before = torch.get_num_threads()
        workers = min(len(ranks.own(accumulation)), self._threads_before)
        each = self._threads_before // workers
        if self._device.type != "cpu":  # which has one generator for dropout, and is busy with one
            workers = 1
        torch.set_num_threads(each)

        def start() -> None:  # PyTorch keeps both for each thread
            torch.set_num_threads(each)
            if self._device.type == "cuda":
                torch.cuda.set_device(self._device)

        self._pool = ThreadPoolExecutor(workers, initializer=start)

    def compute(
        self,
        model: Transformer,
        batches: Sequence[Batch],
        seeds: Sequence[int],
        *,
        smoothing: float,
        bf16: bool,
        r_drop: float = 0.0,
        tokens: int | None = None,
        count: int | None = None,
    ) -> float:
        """Sets `.grad` of every parameter to that of the mean loss of a target token of all batches
        (model.training.loss.token_loss); seeds: of each batch's dropout. Returns the mean negative
        log-likelihood.

        tokens, count: how many target tokens and batches the update has on all ranks, where
        `batches` are only those of this one.
        """
        parameters = list(model.parameters())
        all_tokens = sum(batch.num_tokens for batch in batches) if tokens is None else tokens
        all_batches = len(batches) if count is None else count

        def one(batch: Batch, seed: int) -> tuple[float, Tensor]:
            seed_dropout(seed, self._device)
            loss, nll = token_loss(model, batch, smoothing=smoothing, bf16=bf16, r_drop=r_drop)
            found = torch.autograd.grad(loss / all_tokens, parameters)
            return float(nll), torch.cat([gradient.flatten() for gradient in found])

        nlls: list[float] = []

        def gradients() -> Iterator[Tensor]:
            for nll, gradient in self._pool.map(one, batches, seeds):
                nlls.append(nll)
                yield gradient

        sizes = [parameter.numel() for parameter in parameters]
        total = self._ranks.add_up(gradients(), all_batches, sum(sizes))  # [P]
        for parameter, gradient in zip(parameters, torch.split(total, sizes), strict=True):
            parameter.grad = gradient.view_as(parameter)
        return sum(self._ranks.gather(nlls, all_batches)) / all_tokens

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        torch.set_num_threads(self._threads_before)
