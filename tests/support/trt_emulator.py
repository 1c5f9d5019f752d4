"""TensorRT's runtime and a GPU, as far as the engine runner uses them, on host memory.

An emulated engine runs an ONNX graph in float32 with ONNX Runtime, on the raw addresses that it is
given, and casts at the border to the dtypes that it declares. It does nothing before the stream is
waited for, as a GPU might, and it is stricter than TensorRT: whatever a GPU would do silently wrong
here raises EmulatorError or computes NaN.

- Memory holds 0xFF until it is written: NaN, -1, or a bool that is none.
- Every tensor has an address of its own, aligned, in live memory that holds all of it; outputs and
  scratch memory overlap nothing else.
- Outputs are written up to their true size only; scratch memory is overwritten by every run.
- Shapes lie within the profile (else the call gives False, as TensorRT's) and agree.
- Each thread must make the device its own before using it.
"""

from __future__ import annotations

import ctypes
import enum
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from runtime.device import ALIGNMENT
from runtime.engines.profiles import EngineLimits, engine_profiles
from runtime.errors import DeviceMemoryError
from runtime.graph_contract import graph_inputs, graph_outputs
from runtime.manifest import ModelSpec, Precision, Role

POISON = 0xFF


class EmulatorError(AssertionError):
    """The runner did what would be undefined, or silently wrong, on a GPU."""


class TensorIOMode(enum.Enum):
    NONE, INPUT, OUTPUT = range(3)


class DataType(enum.Enum):
    FLOAT, HALF, INT32, BOOL = "float32", "float16", "int32", "bool"


class TensorLocation(enum.Enum):
    DEVICE, HOST = range(2)


class ExecutionContextAllocationStrategy(enum.Enum):
    STATIC, ON_PROFILE_CHANGE, USER_MANAGED = range(3)


class EmulatedMemory:
    """Poisoned when it is made, and when it is freed."""

    def __init__(self, device: EmulatedDevice, nbytes: int) -> None:
        self._device, self.nbytes = device, nbytes
        whole = np.full(nbytes + ALIGNMENT, POISON, dtype=np.uint8)
        skipped = -whole.ctypes.data % ALIGNMENT
        self.array = whole[skipped : skipped + nbytes]
        self.address = self.array.ctypes.data
        self.live = True

    def close(self) -> None:
        if not self.live:
            raise EmulatorError("memory freed twice")
        self._device.check_thread()
        self.live = False
        self.array[...] = POISON


class EmulatedStream:
    """Does nothing before `synchronize`; then all of it, in order."""

    def __init__(self, device: EmulatedDevice, handle: int) -> None:
        self._device, self.handle = device, handle
        self.pending: list[Callable[[], None]] = []

    def enqueue(self, work: Callable[[], None]) -> None:
        self._device.check_thread()
        self.pending.append(work)

    def copy(self, source: int, target: int, nbytes: int) -> None:
        device = self._device
        if abs(source - target) < nbytes:
            raise EmulatorError("a copy between places that overlap")
        reads, writes = device.view(source, nbytes), device.view(target, nbytes)
        device.copies.append((device.is_pinned(source), device.is_pinned(target), nbytes))

        def work() -> None:
            device.view(source, nbytes), device.view(target, nbytes)  # still live
            writes[...] = reads

        self.enqueue(work)

    def synchronize(self) -> None:
        self._device.check_thread()
        while self.pending:
            self.pending.pop(0)()

    def close(self) -> None:
        if self.pending:
            raise EmulatorError("a stream closed while it has work to do")
        del self._device.streams[self.handle]


@dataclass(kw_only=True)
class EmulatedDevice:
    """A GPU of so much memory (bytes; None: no end). copies: (from pinned, to pinned, bytes)."""

    memory: int | None = None
    name: str = "emulated:0"
    target: str = "sm89"
    blocks: list[EmulatedMemory] = field(default_factory=list)
    pinned: list[EmulatedMemory] = field(default_factory=list)
    streams: dict[int, EmulatedStream] = field(default_factory=dict)
    copies: list[tuple[bool, bool, int]] = field(default_factory=list)
    _threads: set[int] = field(default_factory=set)
    _handles: int = 0

    def use(self) -> None:
        self._threads.add(threading.get_ident())

    def check_thread(self) -> None:
        if threading.get_ident() not in self._threads:
            raise EmulatorError("this thread has not made the device its own")

    def make_stream(self) -> EmulatedStream:
        self.check_thread()
        self._handles += 1
        self.streams[self._handles] = EmulatedStream(self, self._handles)
        return self.streams[self._handles]

    def allocate(self, nbytes: int) -> EmulatedMemory:
        self.check_thread()
        if self.memory is not None and self.used() + nbytes > self.memory:
            raise DeviceMemoryError(f"{self.name} has no {nbytes} bytes left")
        self.blocks.append(EmulatedMemory(self, nbytes))
        return self.blocks[-1]

    def allocate_pinned(self, nbytes: int) -> EmulatedMemory:
        self.check_thread()
        self.pinned.append(EmulatedMemory(self, nbytes))
        return self.pinned[-1]

    def used(self) -> int:
        """Bytes of device memory that are not freed."""
        return sum(block.nbytes for block in self.blocks if block.live)

    def is_pinned(self, address: int) -> bool:
        return any(_holds(block, address, 0) for block in self.pinned)

    def view(self, address: int, nbytes: int) -> np.ndarray:
        """uint8 [nbytes] of live memory. EmulatorError where it is not."""
        for block in (*self.blocks, *self.pinned):
            if block.live and _holds(block, address, nbytes):
                memory = (ctypes.c_uint8 * nbytes).from_address(address)
                return np.ctypeslib.as_array(memory)
        raise EmulatorError(f"{nbytes} bytes at {address:#x} are not in live memory")


def _holds(block: EmulatedMemory, address: int, nbytes: int) -> bool:
    return block.address <= address and address + nbytes <= block.address + block.nbytes


def plan(
    path: Path, role: Role, model: ModelSpec, precision: Precision, limits: EngineLimits
) -> bytes:
    """What stands for a plan: which graph to run, and as what to show it."""
    values = {
        "onnx": str(path),
        "role": role,
        "model": vars(model),
        "precision": precision,
        "limits": limits.to_json(),
    }
    return json.dumps(values).encode()


class EngineValidity(enum.Enum):
    VALID, SUBOPTIMAL, INVALID = range(3)


class EngineInvalidityDiagnostics(enum.IntEnum):
    VERSION_MISMATCH, UNSUPPORTED_CC, OLD_CUDA_DRIVER, OLD_CUDA_RUNTIME = 1, 2, 4, 8
    INSUFFICIENT_GPU_MEMORY, MALFORMED_ENGINE, CUDA_ERROR = 16, 32, 64


class ILogger:
    class Severity(enum.Enum):
        INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)


class EmulatedTensorRT:
    """Stands for the module `tensorrt`."""

    EngineValidity = EngineValidity
    EngineInvalidityDiagnostics = EngineInvalidityDiagnostics
    ILogger = ILogger

    TensorIOMode = TensorIOMode
    DataType = DataType
    TensorLocation = TensorLocation
    ExecutionContextAllocationStrategy = ExecutionContextAllocationStrategy

    def __init__(self, device: EmulatedDevice) -> None:
        self.device = device

    def Runtime(self, logger: Any = None) -> EmulatedRuntime:  # noqa: N802 (the module's name)
        return EmulatedRuntime(self, logger)


class DynamicShapesKernelSpecializationStrategy(enum.Enum):
    LAZY, EAGER, NONE = range(3)


class EmulatedTensorRtRtx(EmulatedTensorRT):
    """Stands for the module `tensorrt_rtx`."""

    DynamicShapesKernelSpecializationStrategy = DynamicShapesKernelSpecializationStrategy


class EmulatedRuntimeConfig:
    """IRuntimeConfig."""

    dynamic_shapes_kernel_specialization_strategy = DynamicShapesKernelSpecializationStrategy.LAZY

    def __init__(self) -> None:
        self._strategy = ExecutionContextAllocationStrategy.STATIC

    def set_execution_context_allocation_strategy(
        self, strategy: ExecutionContextAllocationStrategy
    ) -> None:
        self._strategy = strategy


class EmulatedRuntime:
    """A plan that is the name of a diagnostic is invalid for that reason."""

    def __init__(self, trt: EmulatedTensorRT, logger: Any) -> None:
        self._trt, self._logger = trt, logger

    def get_engine_validity(self, serialized: bytes) -> tuple[EngineValidity, int]:
        for refusal in EngineInvalidityDiagnostics:
            if serialized == refusal.name.encode():
                return EngineValidity.INVALID, int(refusal)
        return EngineValidity.VALID, 0

    def deserialize_cuda_engine(self, serialized: bytes) -> EmulatedEngine | None:
        try:
            values = json.loads(serialized)
        except ValueError:
            self._logger.log(ILogger.Severity.ERROR, "Magic tag does not match\nmore of it")
            return None
        values["model"] = ModelSpec(**values["model"])
        return EmulatedEngine(self._trt.device, **values)


class EmulatedEngine:
    """ICudaEngine."""

    scratch_bytes = 4096

    def __init__(
        self,
        device: EmulatedDevice,
        onnx: str,
        role: Role,
        model: ModelSpec,
        precision: Precision,
        limits: dict[str, int],
    ) -> None:
        self.device, self.role = device, role
        self.configs: list[EmulatedRuntimeConfig] = []
        self.inputs = {spec.name: spec for spec in graph_inputs(role, model, precision)}
        self.outputs = {spec.name: spec for spec in graph_outputs(role, model, precision)}
        self.tensors = self.inputs | self.outputs
        self.profiles = engine_profiles(tuple(self.inputs.values()), EngineLimits(**limits))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.enable_mem_pattern = False
        self.session = onnxruntime.InferenceSession(
            onnx, options, providers=["CPUExecutionProvider"]
        )
        self.float_dtypes = {
            tensor.name: np.dtype("float32")
            for tensor in (*self.session.get_inputs(), *self.session.get_outputs())
            if tensor.type == "tensor(float)"
        }

    @property
    def num_io_tensors(self) -> int:
        return len(self.tensors)

    @property
    def num_optimization_profiles(self) -> int:
        return len(self.profiles)

    def get_tensor_name(self, index: int) -> str:
        return list(self.tensors)[index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        if name not in self.tensors:
            return TensorIOMode.NONE
        return TensorIOMode.INPUT if name in self.inputs else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> DataType:
        return DataType(self.tensors[name].dtype)

    def get_tensor_location(self, _name: str) -> TensorLocation:
        return TensorLocation.DEVICE

    def get_tensor_profile_shape(self, name: str, profile: int) -> list[tuple[int, ...]]:
        found = self.profiles[profile][name]
        return [found.min, found.opt, found.max]

    def get_device_memory_size_for_profile_v2(self, profile: int) -> int:
        return self.scratch_bytes * (profile + 1)

    def create_runtime_config(self) -> EmulatedRuntimeConfig:
        self.configs.append(EmulatedRuntimeConfig())
        return self.configs[-1]

    def create_execution_context(
        self, how: ExecutionContextAllocationStrategy | EmulatedRuntimeConfig
    ) -> EmulatedContext | None:
        strategy = how._strategy if isinstance(how, EmulatedRuntimeConfig) else how
        if strategy is not ExecutionContextAllocationStrategy.USER_MANAGED:
            raise EmulatorError(f"scratch memory is not ours with {strategy.name}")
        return EmulatedContext(self)


class EmulatedContext:
    """IExecutionContext."""

    def __init__(self, engine: EmulatedEngine) -> None:
        self._engine = engine
        self._profile: int | None = None
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._scratch: tuple[int, int] | None = None

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        if stream not in self._engine.device.streams:
            raise EmulatorError(f"there is no stream {stream}")
        if not 0 <= profile < self._engine.num_optimization_profiles:
            return False
        self._profile, self._shapes = profile, {}
        return True

    def set_device_memory(self, address: int, nbytes: int) -> None:
        self._engine.device.view(address, nbytes)
        self._scratch = (address, nbytes)

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        if self._profile is None:
            raise EmulatorError("a shape before a profile was selected")
        if name not in self._engine.inputs:
            return False
        found = self._engine.profiles[self._profile][name]
        if len(shape) != len(found.min):
            return False
        if not all(a <= n <= b for a, n, b in zip(found.min, shape, found.max, strict=True)):
            return False
        self._shapes[name] = tuple(shape)
        return True

    def set_tensor_address(self, name: str, address: int) -> bool:
        if name not in self._engine.tensors or address == 0 or address % ALIGNMENT:
            return False
        self._addresses[name] = address
        return True

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self._all_shapes()[name]

    def infer_shapes(self) -> list[str]:
        missing = [name for name in self._engine.inputs if name not in self._shapes]
        if not missing:
            self._all_shapes()
        return missing

    def execute_async_v3(self, stream: int) -> bool:
        engine, shapes, addresses = self._engine, self._all_shapes(), dict(self._addresses)
        if set(addresses) != set(engine.tensors) or self._scratch is None:
            return False
        self._check_places(shapes, addresses)
        scratch = self._scratch
        engine.device.streams[stream].enqueue(lambda: _execute(engine, shapes, addresses, scratch))
        return True

    def _all_shapes(self) -> dict[str, tuple[int, ...]]:
        """Of inputs and outputs. EmulatorError where one letter is two sizes."""
        letters: dict[str, int] = {}
        for name, spec in self._engine.inputs.items():
            for dim, size in zip(spec.dims, self._shapes[name], strict=True):
                if isinstance(dim, str) and letters.setdefault(dim, size) != size:
                    raise EmulatorError(f"{name} has {dim} = {size}, others {letters[dim]}")
        if self._engine.role == "decoder_step":
            letters |= {"2K": 2 * letters["K"], "T+1": letters["T"] + 1}
            if letters["N"] != letters["B"] * letters["K"]:
                raise EmulatorError(f"N, B, K are {[letters[n] for n in 'NBK']}")
        return {
            name: tuple(letters[d] if isinstance(d, str) else d for d in spec.dims)
            for name, spec in self._engine.tensors.items()
        }

    def _check_places(self, shapes: dict[str, tuple[int, ...]], addresses: dict[str, int]) -> None:
        assert self._scratch is not None
        assert self._profile is not None
        places = {name: (addresses[name], _nbytes(self._engine, name, shapes)) for name in shapes}
        for name, place in places.items():
            self._engine.device.view(*place)
            if self._engine.device.is_pinned(place[0]):
                raise EmulatorError(f"{name} lies in host memory")
        needed = self._engine.get_device_memory_size_for_profile_v2(self._profile)
        if self._scratch[1] < needed:
            raise EmulatorError(f"{self._scratch[1]} bytes of scratch memory, {needed} are needed")
        every = [*places.items(), ("scratch memory", self._scratch)]
        for (one, (start, size)), (other, (start2, size2)) in combinations(every, 2):
            if start < start2 + max(size2, 1) and start2 < start + max(size, 1):
                raise EmulatorError(f"{one} and {other} overlap")


def _nbytes(engine: EmulatedEngine, name: str, shapes: dict[str, tuple[int, ...]]) -> int:
    return prod(shapes[name]) * np.dtype(engine.tensors[name].dtype).itemsize


def _execute(
    engine: EmulatedEngine,
    shapes: dict[str, tuple[int, ...]],
    addresses: dict[str, int],
    scratch: tuple[int, int],
) -> None:
    def memory(name: str) -> np.ndarray:
        raw = engine.device.view(addresses[name], _nbytes(engine, name, shapes))
        if engine.tensors[name].dtype == "bool" and name in engine.inputs and (raw > 1).any():
            raise EmulatorError(f"{name} holds a byte that is no bool")
        return raw.view(engine.tensors[name].dtype).reshape(shapes[name])

    engine.device.view(*scratch)[...] = POISON
    feeds = {}
    for name, spec in engine.inputs.items():
        value = memory(name)
        if spec.dtype == "int32" and value.size and value.min() < 0:
            raise EmulatorError(f"{name} holds {value.min()}")
        feeds[name] = value.astype(engine.float_dtypes.get(name, value.dtype), copy=False)
    names = list(engine.outputs)
    try:
        values = engine.session.run(names, feeds)
    except Exception as error:  # ONNX Runtime's errors share no root
        raise EmulatorError(f"the {engine.role} graph can't compute this: {error}") from error
    for name, value in zip(names, values, strict=True):
        if value.shape != shapes[name]:
            raise EmulatorError(f"{name} is {value.shape}, inferred {shapes[name]}")
        memory(name)[...] = value
    engine.device.view(*scratch)[...] = POISON
