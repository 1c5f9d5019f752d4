"""Gradient norms that explode from one update to the next, or vanish on the way to a layer."""

from __future__ import annotations

import math
import statistics
from collections import deque

import torch
from torch import nn

EXPLODED = 100.0
"""So many times the running median, and the norm is worth a word."""
VANISHED = 1e-4
"""A layer learns nothing if its gradient is smaller than this share of the largest layer's."""
_WINDOW, _ENOUGH = 101, 20


class GradientNorms:
    """The norms so far, before clipping, since this process began."""

    def __init__(self) -> None:
        self.largest = 0.0
        self._last: deque[float] = deque(maxlen=_WINDOW)

    @property
    def median(self) -> float:
        """Of the last 101; 0 where there are none."""
        return statistics.median(self._last) if self._last else 0.0

    def add(self, norm: float) -> float | None:
        """How many times the median of those before it, where it is over EXPLODED times that."""
        median = self.median if len(self._last) >= _ENOUGH else 0.0
        self.largest = max(self.largest, norm)
        self._last.append(norm)
        return norm / median if median and norm > EXPLODED * median else None


def vanished_layers(model: nn.Module) -> list[tuple[str, float]]:
    """The layers ("encoder.layers.0") whose gradient, root mean square, is below VANISHED of the
    largest layer's, and that share. Reads `.grad`, as the last update left it."""
    sizes = {
        f"{side}.layers.{index}": _rms(layer)
        for side in ("encoder", "decoder")
        for index, layer in enumerate(model.get_submodule(f"{side}.layers").children())
    }
    largest = max(sizes.values())
    return [
        (name, size / largest)
        for name, size in sizes.items()
        if largest and size < VANISHED * largest
    ]


def _rms(module: nn.Module) -> float:
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    count = max(1, sum(gradient.numel() for gradient in gradients))
    return float(torch.nn.utils.get_total_norm(gradients)) / math.sqrt(count)
