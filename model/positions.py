"""How a position reaches the model: added to the embedding, or turned into the queries and keys."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def sinusoid_table(length: int, d_model: int) -> Tensor:
    """[length, d_model] float32: PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) the cosine.

    Vaswani et al. 2017, section 3.5. Computed in float64, so that it is the same everywhere.
    """
    positions = torch.arange(length, dtype=torch.float64).unsqueeze(1)  # [length, 1]
    exponents = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model
    angles = positions * torch.exp(-math.log(10000.0) * exponents)  # [length, d_model/2]
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1).to(torch.float32)


class PositionTable(nn.Module):
    """Sinusoidal (fixed) or learned vectors, looked up by position."""

    table: Tensor

    def __init__(self, length: int, d_model: int, *, learned: bool, offset: int) -> None:
        super().__init__()
        self.offset = offset
        if learned:
            self.table = nn.Parameter(torch.empty(length + offset, d_model))
            nn.init.normal_(self.table, std=d_model**-0.5)
        else:
            table = sinusoid_table(length + offset, d_model)
            self.register_buffer("table", table, persistent=False)

    def forward(self, positions: Tensor) -> Tensor:
        """positions: integers [...]; gives float32 [..., d_model]."""
        return self.table[positions + self.offset if self.offset else positions]


class Rotary(nn.Module):
    """Rotary position embedding: rotates pairs of a query's or key's coordinates by their position.

    Su et al. 2021, arXiv 2104.09864, section 3.2.2, pairing coordinate i with i + head_dim/2.
    """

    cos_table: Tensor
    sin_table: Tensor

    def __init__(self, length: int, head_dim: int) -> None:
        super().__init__()
        pairs = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
        angles = torch.arange(length, dtype=torch.float64).unsqueeze(1) * 10000.0**-pairs
        angles = torch.cat((angles, angles), dim=-1)  # [length, head_dim]
        self.register_buffer("cos_table", angles.cos().to(torch.float32), persistent=False)
        self.register_buffer("sin_table", angles.sin().to(torch.float32), persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [R,H,T,Dh], positions [R,T] or [T]; gives x rotated, same shape."""
        cos = self.cos_table[positions].unsqueeze(-3)  # [(R,)1,T,Dh]
        sin = self.sin_table[positions].unsqueeze(-3)
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-second, first), dim=-1) * sin
