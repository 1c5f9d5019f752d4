"""Where an ONNX Runtime session computes, and where its tensors lie: the host, or one GPU."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as ort_c

from runtime.errors import OptionError, UnavailableError
from runtime.extras import install_command
from runtime.gpu import check_gpu

OrtTensor = Any  # ort_c.OrtValue, which has no type stubs
OrtDevice = Any  # ort_c.OrtDevice

HOST = ort_c.OrtDevice(ort_c.OrtDevice.cpu(), ort_c.OrtDevice.default_memory(), 0)
PROVIDERS = ("cpu", "cuda")
_CUDA = "CUDAExecutionProvider"
_GPU_WHEEL = f"pip uninstall onnxruntime onnxruntime-gpu && {install_command('gpu')}"


@dataclass(frozen=True, kw_only=True)
class Placement:
    """One execution provider and its memory. name: as Capabilities.device has it."""

    name: str
    provider: str
    options: dict[str, str] = field(default_factory=dict)
    device: OrtDevice = HOST

    @property
    def on_host(self) -> bool:
        """Tensors lie in host memory, where numpy can see them."""
        return self.name == "cpu"

    def tensor(self, array: npt.NDArray[Any]) -> OrtTensor:
        """The array there. On the host that is the same memory, which the caller keeps alive."""
        return ort_c.OrtValue.ortvalue_from_numpy(array, self.device)

    def empty(self, shape: Sequence[int], dtype: str) -> OrtTensor:
        """A tensor without values: one size of its shape is 0."""
        return ort_c.OrtValue.ortvalue_from_shape_and_type(
            list(shape), np.dtype(dtype).type, self.device
        )


CPU = Placement(name="cpu", provider="CPUExecutionProvider")


def place(provider: str) -> Placement:
    """The placement of that name, once it is sure to be usable.

    Raises OptionError for a provider that there is not, UnavailableError as check_cuda.
    """
    if provider not in PROVIDERS:
        raise OptionError(f"provider is {provider!r}; expected {' or '.join(PROVIDERS)}")
    if provider == "cpu":
        return CPU
    check_cuda()
    return Placement(
        name="cuda:0",
        provider=_CUDA,
        # TF32 rounds the factors of an FP32 product to 10 bits; who wants speed takes FP16.
        options={"device_id": "0", "use_tf32": "0"},
        device=onnxruntime.OrtDevice.make("cuda", 0)._get_c_device(),
    )


def check_cuda() -> None:
    """Raises UnavailableError unless ONNX Runtime's CUDA provider is there, loads, and has a GPU.

    A session would pass over a provider that can't be used, and run on the CPU.
    """
    version = onnxruntime.__version__
    have = onnxruntime.get_available_providers()
    if _CUDA not in have:
        raise UnavailableError(
            f"the installed onnxruntime {version} has no CUDA provider, only "
            f"{', '.join(name.removesuffix('ExecutionProvider') for name in have)}. For a GPU "
            f"install the other wheel: {_GPU_WHEEL}",
            short="the installed onnxruntime has no CUDA provider",
        )
    check_gpu("ONNX Runtime's CUDA provider")
    if _missing_library() is not None:
        # It loads CUDA and cuDNN from the wheels that the extra brings; it prints what it misses.
        with contextlib.redirect_stdout(sys.stderr):
            getattr(onnxruntime, "preload_dlls", lambda: None)()
    missing = _missing_library()
    if missing is not None:
        raise UnavailableError(
            f"the CUDA provider of onnxruntime {version} doesn't load ({missing}): CUDA or cuDNN "
            f"are missing, or of another version. Install those that it needs: {_GPU_WHEEL}",
            short=f"{missing.partition(':')[0]} doesn't load",
        )


def check_placed(session: onnxruntime.InferenceSession, placement: Placement) -> None:
    """Raises UnavailableError when a session fell back to another provider."""
    found = session.get_providers()
    if placement.provider not in found:
        raise UnavailableError(
            f"ONNX Runtime {onnxruntime.__version__} took {', '.join(found)} instead of "
            f"{placement.provider}: this GPU, its driver and the wheel don't go together. "
            f"`leanseq doctor` shows all three; update the driver, or: {_GPU_WHEEL}",
            short=f"{placement.provider} doesn't start",
        )


def _missing_library() -> str | None:
    """What the system's loader says of the first library that the CUDA provider misses."""
    library = Path(ort_c.__file__).with_name("libonnxruntime_providers_cuda.so")
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        # All there, it would still miss symbols, which ONNX Runtime provides when it loads it.
        return str(error) if "cannot open shared object file" in str(error) else None
    return None
