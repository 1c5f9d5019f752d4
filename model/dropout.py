"""Dropout whose masks are cheap on a CPU.

`torch.nn.Dropout` draws one random number per element with `bernoulli_`, single-threaded on a CPU.
Here one 64-bit draw serves four elements: each takes 16 bits and is kept when they reach p * 2**16,
so the drop probability is p rounded to a multiple of 2**-16, and the scale is exact for it.
On other devices this is `torch.nn.functional.dropout`.

Draws come from PyTorch's global generator, or from one of the thread's own after `seed_dropout`.
"""

from __future__ import annotations

import threading

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LEVELS = 1 << 16
_PER_DRAW = 4
_thread = threading.local()


def seed_dropout(seed: int, device: torch.device | None = None) -> None:
    """Makes the masks drawn from now on in this thread follow from `seed` alone; those drawn on a
    GPU by any thread, where the device is one."""
    if device is not None and device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    else:
        _thread.generator = torch.Generator().manual_seed(seed)


class Dropout(nn.Module):
    """Zeroes elements with probability p and scales the rest by 1/(1-p), in training only."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.dropped_levels = min(round(p * _LEVELS), _LEVELS - 1)

    def forward(self, x: Tensor) -> Tensor:
        """x: any shape, floating point; the result has the same shape and dtype."""
        if not self.training or self.dropped_levels == 0:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.p)
        draws = torch.empty(-(-x.numel() // _PER_DRAW), dtype=torch.int64).random_(
            torch.iinfo(torch.int64).min, None, generator=getattr(_thread, "generator", None)
        )
        levels = draws.view(torch.int16)[: x.numel()].view(x.shape)
        keep = levels >= self.dropped_levels - _LEVELS // 2
        return x * (keep * (_LEVELS / (_LEVELS - self.dropped_levels))).to(x.dtype)

    def extra_repr(self) -> str:
        return f"p={self.p}"
