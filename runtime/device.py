"""A GPU as the engine runner sees it: memory with an address, and a stream that work is queued on.

`CudaDevice` is the real one, over cuda-core. It is a protocol, so that tests can run the same
runner on host memory.
"""

from __future__ import annotations

import ctypes
import importlib
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from runtime.errors import BackendError, DeviceMemoryError, MissingExtraError
from runtime.extras import install_command

ALIGNMENT = 256
"""Bytes: what TensorRT wants tensor addresses to be a multiple of."""

ByteArray = npt.NDArray[np.uint8]


class DeviceMemory(Protocol):
    """Memory of the device, whose content is not defined until something is written."""

    @property
    def address(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def close(self) -> None: ...


class PinnedMemory(DeviceMemory, Protocol):
    """Memory of the host that the device copies from and to by itself, while the host goes on."""

    @property
    def array(self) -> ByteArray:
        """The memory itself, uint8 [nbytes]. Valid until `close`."""
        ...


class Stream(Protocol):
    """A queue of work for the device: done in order, and later than the call that queues it."""

    @property
    def handle(self) -> int:
        """What TensorRT knows it by."""
        ...

    def copy(self, source: int, target: int, nbytes: int) -> None:
        """Queues a copy between two addresses, each in device memory or in pinned memory."""
        ...

    def synchronize(self) -> None:
        """Waits until all that was queued is done. BackendError if something failed."""
        ...

    def close(self) -> None: ...


class Device(Protocol):
    """One GPU. Every thread calls `use` before anything else on it."""

    @property
    def name(self) -> str:
        """For messages and signatures: "cuda:0"."""
        ...

    @property
    def target(self) -> str:
        """What engines are built for: "sm89"."""
        ...

    def use(self) -> None:
        """Makes this device the calling thread's."""
        ...

    def make_stream(self) -> Stream: ...

    def allocate(self, nbytes: int) -> DeviceMemory:
        """Aligned to ALIGNMENT. Raises DeviceMemoryError when there is not enough."""
        ...

    def allocate_pinned(self, nbytes: int) -> PinnedMemory:
        """Aligned to ALIGNMENT. Raises DeviceMemoryError when there is not enough."""
        ...


class CudaDevice:
    """An NVIDIA GPU by its number, through cuda-core.

    Raises MissingExtraError without cuda-core, BackendError where there is no such GPU or no
    driver.
    """

    def __init__(self, index: int = 0) -> None:
        self._core = _import_cuda_core()
        self._index = index
        try:
            self._device = self._core.Device(index)
            self._device.set_current()
            major, minor = self._device.compute_capability
        except Exception as error:  # cuda-core's errors share no public root
            raise BackendError(
                f"there is no GPU cuda:{index} to run on ({_first_line(error)}); check that "
                "nvidia-smi lists it and that the NVIDIA driver is new enough, or use the "
                "onnxruntime backend"
            ) from error
        self._target = f"sm{major}{minor}"
        self._stream = self._device.create_stream()  # orders what is freed behind what is allocated
        self._pinned = self._core.LegacyPinnedMemoryResource()

    @property
    def name(self) -> str:
        return f"cuda:{self._index}"

    @property
    def target(self) -> str:
        return self._target

    @property
    def product(self) -> str:
        """As NVIDIA sells it: "NVIDIA L4"."""
        return str(self._device.name)

    def use(self) -> None:
        # cuda-core's Device objects belong to the thread that asked for them.
        self._core.Device(self._index).set_current()

    def make_stream(self) -> Stream:
        return _CudaStream(self._core, self._core.Device(self._index).create_stream())

    def allocate(self, nbytes: int) -> DeviceMemory:
        try:
            device = self._core.Device(self._index)
            buffer = device.allocate(max(nbytes, ALIGNMENT), stream=self._stream)
            # Other streams use the memory as soon as this returns.
            self._stream.sync()
        except Exception as error:  # cuda-core's errors share no public root
            raise _allocation_error(self.name, "device", nbytes, error) from error
        return _CudaMemory(buffer)

    def allocate_pinned(self, nbytes: int) -> PinnedMemory:
        try:
            buffer = self._pinned.allocate(max(nbytes, ALIGNMENT))
        except Exception as error:  # cuda-core's errors share no public root
            raise _allocation_error(self.name, "pinned", nbytes, error) from error
        return _CudaPinned(buffer)


class _CudaMemory:
    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer
        self.address = int(buffer.handle)
        self.nbytes = int(buffer.size)

    def close(self) -> None:
        self._buffer.close()


class _CudaPinned(_CudaMemory):
    def __init__(self, buffer: Any) -> None:
        super().__init__(buffer)
        memory = (ctypes.c_uint8 * self.nbytes).from_address(self.address)
        self.array: ByteArray = np.ctypeslib.as_array(memory)


class _CudaStream:
    def __init__(self, core: Any, stream: Any) -> None:
        self._core, self._stream = core, stream
        self.handle = int(stream.handle)

    def copy(self, source: int, target: int, nbytes: int) -> None:
        # Buffers that own nothing: cuda-core copies whole buffers of the same size only.
        from_handle = self._core.Buffer.from_handle
        try:
            from_handle(target, nbytes).copy_from(from_handle(source, nbytes), stream=self._stream)
        except Exception as error:  # cuda-core's errors share no public root
            raise _work_error(error) from error

    def synchronize(self) -> None:
        try:
            self._stream.sync()
        except Exception as error:  # cuda-core's errors share no public root
            raise _work_error(error) from error

    def close(self) -> None:
        self._stream.close()


def _import_cuda_core() -> Any:
    try:
        core = importlib.import_module("cuda.core")
    except ModuleNotFoundError as error:
        raise MissingExtraError("cuda-core", "trt", "the tensorrt backend") from error
    except ImportError as error:  # it is there, but what it binds to is not
        raise BackendError(
            f"cuda-core can't be imported ({_first_line(error)}); it needs the cuda-bindings of "
            f"your CUDA version: install it with {install_command('trt')}"
        ) from error
    if not hasattr(core, "LegacyPinnedMemoryResource"):
        raise BackendError(
            f"cuda-core {getattr(core, '__version__', 'of this version')} is too old; expected "
            "1.0 or newer: pip install --upgrade 'cuda-core[cu13]'"
        )
    return core


def _allocation_error(device: str, kind: str, nbytes: int, error: Exception) -> BackendError:
    if "OUT_OF_MEMORY" not in str(error):
        return _work_error(error)
    return DeviceMemoryError(
        f"{device} has no {nbytes / 2**20:,.0f} MiB of {kind} memory left; free some (nvidia-smi "
        "lists who holds it), or use smaller batches or engines with lower limits"
    )


def _work_error(error: Exception) -> BackendError:
    return BackendError(
        f"CUDA failed ({_first_line(error)}); the GPU or its driver may have to be reset: try "
        "again, and see what nvidia-smi says"
    )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0]
