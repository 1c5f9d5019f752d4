"""CudaDevice over a stand-in of cuda-core on host memory, and its words where there is no GPU."""

from __future__ import annotations

import ctypes
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from runtime.device import ALIGNMENT, CudaDevice
from runtime.errors import BackendError, DeviceMemoryError, MissingExtraError

# Every name of cuda-core that runtime.device uses.
USED = {
    "Buffer": ("close", "copy_from", "from_handle", "handle", "size"),
    "Device": ("allocate", "compute_capability", "create_stream", "name", "set_current"),
    "LegacyPinnedMemoryResource": ("allocate",),
    "Stream": ("close", "handle", "sync"),
}


class Stream:
    handle = 77

    def __init__(self) -> None:
        self.synced, self.closed = 0, False

    def sync(self) -> None:
        self.synced += 1

    def close(self) -> None:
        self.closed = True


class Buffer:
    def __init__(self, address: int, size: int, owner: Any = None) -> None:
        self.handle, self.size, self.owner, self.closed = address, size, owner, False

    @staticmethod
    def from_handle(address: int, size: int) -> Buffer:
        return Buffer(address, size)

    def copy_from(self, other: Buffer, *, stream: Stream) -> None:
        assert isinstance(stream, Stream)
        if other.size != self.size:
            raise ValueError("buffer sizes mismatch")
        if other.handle == 0:
            raise RuntimeError("CUDA_ERROR_INVALID_VALUE: this indicates an invalid value\nmore")
        ctypes.memmove(self.handle, other.handle, self.size)

    def close(self) -> None:
        self.closed = True


def allocate(size: int) -> Buffer:
    if size > 10**9:
        raise RuntimeError("CUDA_ERROR_OUT_OF_MEMORY: the API call failed")
    if size == 10**9:
        raise RuntimeError("CUDA_ERROR_ECC_UNCORRECTABLE: an uncorrectable error")
    memory = (ctypes.c_uint8 * size)()
    return Buffer(ctypes.addressof(memory), size, memory)


class Device:
    compute_capability = (8, 9)
    name = "Stand-in GPU"

    def __init__(self, index: int) -> None:
        if index:
            raise ValueError(f"device_id must be within [0, 1), got {index}")

    def set_current(self) -> None: ...

    def create_stream(self) -> Stream:
        return Stream()

    def allocate(self, size: int, *, stream: Stream) -> Buffer:
        assert isinstance(stream, Stream)
        return allocate(size)


class Pinned:
    def allocate(self, size: int) -> Buffer:
        return allocate(size)


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("cuda.core")
    vars(module).update(
        Buffer=Buffer, Device=Device, LegacyPinnedMemoryResource=Pinned, Stream=Stream
    )
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.core", module)
    return module


def test_a_device_says_what_it_is(core: ModuleType) -> None:
    device = CudaDevice()
    device.use()
    assert (device.name, device.target, device.product) == ("cuda:0", "sm89", "Stand-in GPU")


def test_memory_is_copied_between_host_and_device(core: ModuleType) -> None:
    device = CudaDevice()
    stream = device.make_stream()
    there, back, memory = device.allocate_pinned(8), device.allocate_pinned(8), device.allocate(8)
    there.array[:8] = np.arange(8)
    stream.copy(there.address, memory.address, 8)
    stream.copy(memory.address + 2, back.address, 4)
    stream.synchronize()
    assert back.array[:4].tolist() == [2, 3, 4, 5]
    assert stream.handle == 77
    assert memory.nbytes == ALIGNMENT  # an empty tensor has an address of its own, too
    memory.close()
    stream.close()


def test_memory_that_is_not_there_is_told(core: ModuleType) -> None:
    device = CudaDevice()
    expected = r"cuda:0 has no 1,907 MiB of {} memory left; free some \(nvidia-smi lists"
    with pytest.raises(DeviceMemoryError, match=expected.format("device")):
        device.allocate(2 * 10**9)
    with pytest.raises(DeviceMemoryError, match=expected.format("pinned")):
        device.allocate_pinned(2 * 10**9)


def test_what_fails_is_told(core: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    device = CudaDevice()
    with pytest.raises(BackendError, match=r"CUDA failed \(CUDA_ERROR_ECC_UNCORRECTABLE: an unco"):
        device.allocate(10**9)
    with pytest.raises(BackendError, match=r"CUDA failed \(CUDA_ERROR_INVALID_VALUE: .* value\);"):
        device.make_stream().copy(0, 0, 4)

    def fail(_self: Stream) -> None:
        raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")

    stream = device.make_stream()
    monkeypatch.setattr(Stream, "sync", fail)
    with pytest.raises(BackendError, match=r"CUDA failed \(CUDA_ERROR_ILLEGAL_ADDRESS\); the GPU"):
        stream.synchronize()


def test_another_device_is_told(core: ModuleType) -> None:
    with pytest.raises(
        BackendError, match=r"there is no GPU cuda:3 to run on \(device_id must be within"
    ):
        CudaDevice(3)


def test_a_missing_cuda_core_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    with pytest.raises(MissingExtraError, match=r"needs the package cuda-core.*'\.\[trt\]"):
        CudaDevice()


def test_a_cuda_core_without_bindings_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_name: str) -> None:
        raise ImportError("cannot import name 'bindings' from 'cuda'")

    monkeypatch.setattr("runtime.device.importlib.import_module", fail)
    with pytest.raises(
        BackendError, match=r"cuda-core can't be imported \(cannot import name 'bindings'.*bindings"
    ):
        CudaDevice()


def test_an_old_cuda_core_is_told(core: ModuleType) -> None:
    del core.LegacyPinnedMemoryResource  # type: ignore[attr-defined]
    core.__version__ = "0.3.1"  # type: ignore[attr-defined]
    with pytest.raises(BackendError, match=r"cuda-core 0.3.1 is too old; expected 1.0 or newer"):
        CudaDevice()


def test_the_real_cuda_core_has_the_names() -> None:
    core = pytest.importorskip("cuda.core", exc_type=ImportError)
    missing = [
        f"{kind}.{name}"
        for kind, names in USED.items()
        for name in names
        if not hasattr(getattr(core, kind, None), name)
    ]
    assert missing == []


def test_the_stand_in_has_no_other_names() -> None:
    """So that it can't promise what cuda-core does not have."""
    stand_ins = {"Buffer": Buffer, "Device": Device, "Stream": Stream}
    for kind, stand_in in stand_ins.items():
        public = {n for n in vars(stand_in) if not n.startswith("_")}
        assert public <= set(USED[kind])


def test_without_a_driver_the_real_cuda_core_is_told() -> None:
    pytest.importorskip("cuda.core", exc_type=ImportError)
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        with pytest.raises(BackendError, match="there is no GPU cuda:0 to run on"):
            CudaDevice()
    else:
        pytest.skip("there is a driver here")
