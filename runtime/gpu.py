"""The NVIDIA GPUs of this machine, asked of the driver itself: no CUDA toolkit, no other package.

Nothing is loaded before `find_gpus` is called. It makes no CUDA context and takes no GPU memory.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from runtime.errors import UnavailableError

# Of the driver's own C interfaces: cuda.h (libcuda) and nvml.h (NVML).
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
_NAME_BYTES = 256

_Loader = Callable[[str], Any]


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU, as CUDA numbers it. sm: 89 is compute capability 8.9."""

    index: int
    name: str
    sm: int
    memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class GpuReport:
    """driver: the driver's release, None where it is not known. cuda: the newest CUDA that the
    driver runs. reason: why there are no GPUs to use; empty where there are."""

    driver: str | None
    cuda: str | None
    gpus: tuple[Gpu, ...]
    reason: str


def find_gpus(load: _Loader = ctypes.CDLL) -> GpuReport:
    """The GPUs that CUDA shows this process; never raises. load: opens a shared library."""
    driver = _driver_release(load)
    try:
        cuda = load("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        found = "no NVIDIA driver" if driver is None else "the driver has no libcuda"
        return GpuReport(driver=driver, cuda=None, gpus=(), reason=found)
    version = ctypes.c_int(0)
    cuda.cuDriverGetVersion(ctypes.byref(version))
    release = f"{version.value // 1000}.{version.value % 1000 // 10}" if version.value else None
    count = ctypes.c_int(0)
    status = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
    if status not in (0, _NO_DEVICE):
        reason = f"the NVIDIA driver doesn't start (CUDA error {status})"
        return GpuReport(driver=driver, cuda=release, gpus=(), reason=reason)
    gpus = tuple(_gpu(cuda, index) for index in range(count.value))
    return GpuReport(
        driver=driver, cuda=release, gpus=gpus, reason="" if gpus else "no NVIDIA GPU is visible"
    )


def check_gpu(purpose: str, oldest_sm: int = 0) -> Gpu:
    """The first GPU. Raises UnavailableError when there is none, or it is older than oldest_sm.

    purpose: what needs it, as the message names it.
    """
    report = find_gpus()
    if not report.gpus:
        raise UnavailableError(
            f"{purpose} needs an NVIDIA GPU and its driver: {report.reason}. Run it on a machine "
            "that has one (`nvidia-smi` lists them; containers need --gpus all), or take "
            "--backend onnxruntime, which runs on the CPU",
            short=report.reason,
        )
    gpu = report.gpus[0]
    if gpu.sm < oldest_sm:
        raise UnavailableError(
            f"{purpose} needs a GPU of sm{oldest_sm} or newer; {gpu.name} is sm{gpu.sm}. Take "
            "--backend onnxruntime-cuda or onnxruntime",
            short=f"{gpu.name} is sm{gpu.sm}, too old",
        )
    return gpu


def _gpu(cuda: Any, index: int) -> Gpu:
    device = ctypes.c_int(0)
    cuda.cuDeviceGet(ctypes.byref(device), index)
    name = ctypes.create_string_buffer(_NAME_BYTES)
    cuda.cuDeviceGetName(name, _NAME_BYTES, device)
    memory = ctypes.c_size_t(0)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    major, minor = ctypes.c_int(0), ctypes.c_int(0)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
    return Gpu(
        index=index,
        name=name.value.decode(errors="replace"),
        sm=10 * major.value + minor.value,
        memory_bytes=memory.value,
    )


def _driver_release(load: _Loader) -> str | None:
    """Such as 580.65.06; None without NVML, which some embedded drivers lack."""
    try:
        nvml = load("nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1")
    except OSError:
        return None
    if nvml.nvmlInit_v2() != 0:
        return None
    text = ctypes.create_string_buffer(_NAME_BYTES)
    status = nvml.nvmlSystemGetDriverVersion(text, _NAME_BYTES)
    nvml.nvmlShutdown()
    return text.value.decode(errors="replace") if status == 0 else None
