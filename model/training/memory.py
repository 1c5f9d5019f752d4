"""Whether a model can be trained on this machine at all: told before hours go by, or the system
kills the process without a word."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import torch

from model.config import ModelConfig
from model.errors import ConfigError
from model.transformer import Transformer

BYTES_A_WEIGHT = 20
"""In float32: the weight, Adam's two moments, and the gradient twice, while its parts are joined.
What batches take comes on top."""

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def count_weights(config: ModelConfig) -> tuple[int, int]:
    """How many numbers are trained, and how many stand in fixed tables; nothing is allocated.

    Counted on a layer or two a side: of thousands even the empty shells take minutes.
    """
    base = _count(config, 1, 1)
    encoder, decoder = _count(config, 2, 1), _count(config, 1, 2)
    more = (config.encoder.num_layers - 1, config.decoder.num_layers - 1)
    trained, fixed = (
        b + (e - b) * more[0] + (d - b) * more[1]
        for b, e, d in zip(base, encoder, decoder, strict=True)
    )
    return trained, fixed


def check_memory(config: ModelConfig, memory: int | None) -> None:
    """Raises ConfigError if training takes more than `memory` bytes, whatever the batches; None is
    a machine that does not tell."""
    trained, fixed = count_weights(config)
    needed = BYTES_A_WEIGHT * trained + 4 * fixed
    if memory is not None and needed > memory:
        raise ConfigError(
            f"a model of {trained:,} weights needs at least {_gb(needed)} to be trained, without "
            f"its batches, and this machine has {_gb(memory)}; expected one that fits: take fewer "
            "layers (--encoder-layers, --decoder-layers), a smaller --preset or --vocab-size, or "
            "shorter --max-source and --max-target"
        )


def memory_of(device: torch.device) -> int | None:
    """All the bytes that a GPU has, or that this process may use on this machine."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not a Unix
        return None
    return min(total, read_limit(_CGROUP_LIMIT) or total)


def read_limit(path: Path) -> int | None:
    """Bytes that a container may use, from the kernel's file; None where there is no limit."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # "max"
        return None


def _count(config: ModelConfig, encoder: int, decoder: int) -> tuple[int, int]:
    """With so many layers."""
    small = dataclasses.replace(
        config,
        encoder=dataclasses.replace(config.encoder, num_layers=encoder),
        decoder=dataclasses.replace(config.decoder, num_layers=decoder),
    )
    with torch.device("meta"):
        model = Transformer(small)
    return (
        sum(parameter.numel() for parameter in model.parameters()),
        sum(buffer.numel() for buffer in model.buffers()),
    )


def _gb(count: int) -> str:
    return f"{count / 1e9:,.1f} GB"
