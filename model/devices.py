"""What a training computes on: the CPU, or a GPU a process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Literal

import torch

from runtime.errors import OptionError

Device = Literal["auto", "cpu", "cuda"]


def choose_device(name: Device) -> torch.device:
    """ "auto" is this process's GPU where PyTorch has one, else the CPU.

    Of several processes on a machine (torchrun's LOCAL_RANK) each takes its own GPU. Raises
    OptionError where there is none for it.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and not count):
        return torch.device("cpu")
    number = int(os.environ.get("LOCAL_RANK", "0"))
    if number >= count:
        raise OptionError(
            f"device is {name}, and this is process {number + 1} on this machine, where PyTorch "
            f"{torch.__version__} finds {count} GPUs; expected one for each: start fewer "
            "processes, install PyTorch for CUDA, or take --device cpu"
        )
    return torch.device("cuda", number)


def has_fast_bf16(device: torch.device) -> bool:
    """Whether it multiplies bfloat16 matrices faster than float32 ones."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    capabilities: Callable[[], dict[str, object]] | None
    capabilities = getattr(torch.cpu, "get_capabilities", None)
    found = capabilities() if capabilities else {}
    return bool(found.get("avx512_bf16") or found.get("amx_bf16"))
