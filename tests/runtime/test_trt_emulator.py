"""The emulator refuses what is undefined on a GPU, and promises nothing that TensorRT lacks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from support import trt_emulator
from support.bundles import Graphs
from support.emulated_backend import emulated_pair
from support.trt_emulator import (
    EmulatedContext,
    EmulatedDevice,
    EmulatedEngine,
    EmulatedRuntime,
    EmulatedRuntimeConfig,
    EmulatorError,
    ExecutionContextAllocationStrategy,
)

from runtime.engines.library import USED
from runtime.engines.profiles import EngineLimits

LIMITS = EngineLimits(max_batch=2, max_beam=2, max_source=8, max_target=8)


class Encoder:
    """An emulated encoder with a place for each tensor, ready to run."""

    def __init__(self, graphs: Graphs) -> None:
        self.device = EmulatedDevice()
        self.device.use()
        pair = emulated_pair(graphs, self.device, "fp16", LIMITS)
        self.engine = pair.encoder
        self.context: EmulatedContext = self.engine.create_execution_context(
            ExecutionContextAllocationStrategy.USER_MANAGED
        )
        self.stream = self.device.make_stream()
        self.scratch = self.device.allocate(4096)
        self.blocks = {name: self.device.allocate(4096) for name in self.engine.tensors}
        assert self.context.set_optimization_profile_async(0, self.stream.handle)
        self.context.set_device_memory(self.scratch.address, 4096)
        for name, block in self.blocks.items():
            assert self.context.set_tensor_address(name, block.address)
        for name in ("src_ids", "src_mask"):
            assert self.context.set_input_shape(name, (1, 8))
            self.blocks[name].array[...] = 0
        self.blocks["src_mask"].array[:8] = 1

    def run(self) -> None:
        assert self.context.execute_async_v3(self.stream.handle)
        self.stream.synchronize()


@pytest.fixture
def encoder(random_graphs: Graphs) -> Encoder:
    return Encoder(random_graphs)


def test_outputs_are_written_up_to_their_size(encoder: Encoder) -> None:
    """As float16, as the engine shows it; nothing before the stream is waited for."""
    block = encoder.blocks["cross_k.0"]
    assert encoder.context.execute_async_v3(encoder.stream.handle)
    assert (block.array == 0xFF).all()
    encoder.stream.synchronize()
    written = 2 * 4 * 8 * 8  # float16 [1,4,8,8]
    assert np.isfinite(block.array[:written].view(np.float16)).all()
    assert (block.array[written:] == 0xFF).all()
    assert (encoder.scratch.array == 0xFF).all()


def test_shapes_beyond_the_profile_are_refused(encoder: Encoder) -> None:
    for shape in ((2, 8), (1, 9), (1, 0), (1,), (1, 8, 1)):
        assert not encoder.context.set_input_shape("src_ids", shape)
    assert not encoder.context.set_input_shape("cross_k.0", (1, 4, 8, 8))
    assert encoder.context.set_optimization_profile_async(1, encoder.stream.handle)
    assert encoder.context.infer_shapes() == ["src_ids", "src_mask"]  # a new profile forgets them
    assert not encoder.context.set_optimization_profile_async(2, encoder.stream.handle)


def test_shapes_that_differ_are_refused(encoder: Encoder) -> None:
    encoder.context.set_input_shape("src_mask", (1, 7))
    with pytest.raises(EmulatorError, match="src_mask has S = 7, others 8"):
        encoder.run()


def test_addresses_that_can_not_be_are_refused(encoder: Encoder) -> None:
    address = encoder.blocks["src_ids"].address
    for wrong in (0, address + 4):
        assert not encoder.context.set_tensor_address("src_ids", wrong)
    assert not encoder.context.set_tensor_address("nothing", address)


@pytest.mark.parametrize("name", ["src_mask", "cross_v.1"])
def test_two_tensors_at_one_address_are_refused(encoder: Encoder, name: str) -> None:
    encoder.context.set_tensor_address(name, encoder.blocks["src_ids"].address)
    with pytest.raises(EmulatorError, match=f"src_ids and {name} overlap"):
        encoder.run()


def test_tensors_over_scratch_memory_are_refused(encoder: Encoder) -> None:
    encoder.context.set_tensor_address("cross_k.0", encoder.scratch.address)
    with pytest.raises(EmulatorError, match=r"cross_k.0 and scratch memory overlap"):
        encoder.run()


def test_too_small_a_place_is_refused(encoder: Encoder) -> None:
    block = encoder.device.allocate(256)
    encoder.context.set_tensor_address("cross_k.0", block.address)
    with pytest.raises(EmulatorError, match=r"512 bytes at 0x.* are not in live memory"):
        encoder.run()


def test_host_memory_is_refused(encoder: Encoder) -> None:
    block = encoder.device.allocate_pinned(4096)
    encoder.context.set_tensor_address("src_ids", block.address)
    with pytest.raises(EmulatorError, match="src_ids lies in host memory"):
        encoder.run()


def test_freed_memory_is_refused_even_after_the_call(encoder: Encoder) -> None:
    assert encoder.context.execute_async_v3(encoder.stream.handle)
    encoder.blocks["src_ids"].close()
    with pytest.raises(EmulatorError, match="are not in live memory"):
        encoder.stream.synchronize()
    with pytest.raises(EmulatorError, match="memory freed twice"):
        encoder.blocks["src_ids"].close()


def test_memory_that_was_never_written_is_noticed(encoder: Encoder) -> None:
    encoder.blocks["src_mask"].array[...] = trt_emulator.POISON
    with pytest.raises(EmulatorError, match="src_mask holds a byte that is no bool"):
        encoder.run()
    encoder.blocks["src_mask"].array[...] = 1
    encoder.blocks["src_ids"].array[...] = trt_emulator.POISON
    with pytest.raises(EmulatorError, match="src_ids holds -1"):
        encoder.run()


def test_what_the_graph_can_not_compute_is_told(encoder: Encoder) -> None:
    encoder.blocks["src_ids"].array[:4].view(np.int32)[...] = 10**6
    with pytest.raises(EmulatorError, match="the encoder graph can't compute this"):
        encoder.run()


def test_a_missing_address_is_refused(random_graphs: Graphs, encoder: Encoder) -> None:
    del encoder.context._addresses["src_ids"]
    assert not encoder.context.execute_async_v3(encoder.stream.handle)


def test_too_little_scratch_memory_is_refused(encoder: Encoder) -> None:
    encoder.context.set_device_memory(encoder.scratch.address, 256)
    with pytest.raises(EmulatorError, match="256 bytes of scratch memory, 4096 are needed"):
        encoder.run()


def test_other_mistakes_are_refused(encoder: Encoder) -> None:
    with pytest.raises(EmulatorError, match="there is no stream 99"):
        encoder.context.set_optimization_profile_async(0, 99)
    with pytest.raises(EmulatorError, match="scratch memory is not ours with STATIC"):
        encoder.engine.create_execution_context(ExecutionContextAllocationStrategy.STATIC)
    fresh = EmulatedContext(encoder.engine)
    with pytest.raises(EmulatorError, match="a shape before a profile was selected"):
        fresh.set_input_shape("src_ids", (1, 8))
    address = encoder.blocks["src_ids"].address
    with pytest.raises(EmulatorError, match="a copy between places that overlap"):
        encoder.stream.copy(address, address + 4, 8)
    encoder.stream.copy(address, encoder.blocks["cross_k.0"].address, 8)
    with pytest.raises(EmulatorError, match="a stream closed while it has work to do"):
        encoder.stream.close()


def public_names(kind: type[Any]) -> set[str]:
    extra = {"device", "inputs", "outputs", "tensors", "profiles", "session", "scratch_bytes"}
    extra |= {"configs"}
    return {name for name in vars(kind) if not name.startswith("_")} - extra


EMULATED = {
    "ICudaEngine": public_names(EmulatedEngine),
    "IExecutionContext": public_names(EmulatedContext),
    "IRuntimeConfig": public_names(EmulatedRuntimeConfig),
    "Runtime": public_names(EmulatedRuntime),
    **{
        name: set(getattr(trt_emulator, name).__members__)
        for name in (
            "DataType",
            "DynamicShapesKernelSpecializationStrategy",
            "EngineInvalidityDiagnostics",
            "EngineValidity",
            "ExecutionContextAllocationStrategy",
            "TensorIOMode",
            "TensorLocation",
        )
    },
}


def test_tensorrt_rtx_has_every_emulated_name() -> None:
    trt = pytest.importorskip("tensorrt_rtx")
    missing = [
        f"{kind}.{name}"
        for kind, names in EMULATED.items()
        for name in names
        if not hasattr(getattr(trt, kind, None), name)
    ]
    assert missing == []


def test_every_emulated_method_is_in_the_table_of_used_names() -> None:
    """runtime.engines.library checks that table when it loads a library."""
    optional = {"get_engine_validity", "create_runtime_config"}  # where they are there
    for kind in ("ICudaEngine", "IExecutionContext", "Runtime"):
        assert EMULATED[kind] - optional == set(USED[kind])
