"""What one batch holds on the device: buffers for every tensor, the contexts that run on them.

A workspace is made once for an optimization profile, at its largest sizes, and used for one batch
after the other. The growing caches are there twice: a step reads one set and writes the other.

Letters: B sentences, S source length, K beams of a sentence, N = B*K, P rows of the past, T target
length so far, L layers, H heads, Dh head_dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.device import ALIGNMENT, Device, PinnedMemory, Stream
from runtime.engine_pair import Capacity, EnginePair, Sizes, shape_of, sizes, tensor_names
from runtime.errors import BackendError, DeviceMemoryError
from runtime.graph_contract import (
    BEAM_INDICES,
    CANDIDATE_IDS,
    EOS_BIAS,
    LOG_PROBS,
    PARENTS,
    POSITION,
    SCORES,
    SRC_IDS,
    SRC_MASK,
    SUM_LOG_PROBS,
    TOKEN_IDS,
    cross_names,
    next_self_names,
    self_names,
)
from runtime.manifest import Role, TensorSpec

Array = npt.NDArray[Any]

FED = (TOKEN_IDS, POSITION, BEAM_INDICES, SUM_LOG_PROBS, EOS_BIAS)
FETCHED = (SCORES, CANDIDATE_IDS, PARENTS)
SOURCE = (SRC_IDS, SRC_MASK)


@dataclass(frozen=True)
class Region:
    """A place in device memory."""

    address: int
    nbytes: int


class Workspace:
    """Buffers, a stream and two execution contexts: for one batch, one thread, at a time.

    Raises DeviceMemoryError when the device has no room for it.
    """

    def __init__(
        self, device: Device, engines: EnginePair, profile: int, capacity: Capacity
    ) -> None:
        self.profile, self.capacity = profile, capacity
        self._device, self._engines = device, engines
        layers = engines.model.decoder_layers
        self.cross = cross_names(layers)
        self._self_names, self._next_names = self_names(layers), next_self_names(layers)
        self._closers: list[Callable[[], None]] = []
        self._contexts: dict[Role, Any] = {}
        self._stream: Stream = self._own(device.make_stream())
        try:
            self._place()
            for role, engine in engines.by_role().items():
                self._contexts[role] = self._make_context(role, engine)
        except BaseException:
            self.close()
            raise

    def staged(self, name: str, shape: tuple[int, ...]) -> Array:
        """The pinned memory of a tensor that is fed or fetched, as an array of that shape."""
        offset, dtype = self._staging[name]
        nbytes = prod(shape) * dtype.itemsize
        memory: Array = self._pinned.array[offset : offset + nbytes]
        return memory.view(dtype).reshape(shape)

    def encode(self, src_ids: Array, src_mask: Array) -> None:
        """Queues the encoder for src_ids int32 [B,S], src_mask bool [B,S]: cross K/V stay here."""
        self._stream.synchronize()  # a batch that was given up may still be reading
        self.staged(SRC_IDS, src_ids.shape)[...] = src_ids
        self.staged(SRC_MASK, src_mask.shape)[...] = src_mask
        self._copy_block(SOURCE)
        batch, source = src_ids.shape
        now = sizes(batch=batch, beam=1, past=batch, source=source, length=0)
        self._run("encoder", now, check_outputs=True)

    def step(self, now: Sizes, turn: int, fed: dict[str, Array], *, need_log_probs: bool) -> None:
        """One decoder step, waited for. turn: which set of caches is read; the other is written.

        fed: a value for each name in FED. What it gives is then in `staged`, `log_probs`.
        """
        for name, value in fed.items():
            self.staged(name, value.shape)[...] = value
        self._copy_block(FED)
        context = self._contexts["decoder_step"]
        for name, next_name in zip(self._self_names, self._next_names, strict=True):
            self._bind("decoder_step", context, name, self._regions[f"{name}/{turn}"])
            self._bind("decoder_step", context, next_name, self._regions[f"{name}/{1 - turn}"])
        self._run("decoder_step", now, check_outputs=now["T"] == 0)
        self._copy_block(FETCHED, to_host=True)
        if need_log_probs:
            self._fetch_log_probs(now)
        self._stream.synchronize()

    def log_probs(self, now: Sizes) -> Array:
        """float32 [B,K,V] of the last step, which was told that they are needed."""
        assert self._log_probs is not None
        shape = (now["B"], now["K"], self._engines.model.vocab_size)
        return self._log_probs.array[: 4 * prod(shape)].view(np.float32).reshape(shape)

    def move_rows(self, name: str, row_bytes: int, moves: Iterable[tuple[int, int]]) -> None:
        """Queues copies of whole rows (source, target) of a tensor, within the device."""
        address = self._regions[name].address
        for source, target in moves:
            self._stream.copy(address + source * row_bytes, address + target * row_bytes, row_bytes)

    def close(self) -> None:
        """Frees the memory, once the device is done with it. Calling it twice does no harm."""
        if self._closers:
            with suppress(BackendError):  # what failed has been told
                self._stream.synchronize()
        self._contexts.clear()
        while self._closers:
            self._closers.pop()()

    def _place(self) -> None:
        """Allocates one block on the device and one on the host, and gives every tensor its place.

        What is copied together lies together, so that a step takes one copy in and one out.
        """
        specs, at_most = self._specs(), self.capacity.sizes()
        nbytes = {
            name: prod(shape_of(spec, at_most)) * np.dtype(spec.dtype).itemsize
            for name, spec in specs.items()
        }
        nbytes["scratch"] = self._engines.scratch_bytes(self.profile)
        offsets, total = _pack(nbytes)
        base = self._own(self._device.allocate(total)).address
        self._regions = {name: Region(base + offsets[name], nbytes[name]) for name in nbytes}
        staged = (*SOURCE, *FED, *FETCHED)
        places, total = _pack({name: nbytes[name] for name in staged})
        self._pinned: PinnedMemory = self._own(self._device.allocate_pinned(total))
        self._staging = {name: (places[name], np.dtype(specs[name].dtype)) for name in staged}
        self._log_probs: PinnedMemory | None = None

    def _specs(self) -> dict[str, TensorSpec]:
        """Every tensor that has a place on the device; the growing caches have two."""
        engines = self._engines
        every: dict[str, TensorSpec] = {}
        for role in engines.by_role():
            every |= {spec.name: spec for spec in (*engines.inputs(role), *engines.outputs(role))}
        names = (*SOURCE, *FED, *FETCHED, LOG_PROBS, *self.cross)
        placed = {name: every[name] for name in names}
        for name, next_name in zip(self._self_names, self._next_names, strict=True):
            placed |= {f"{name}/{turn}": every[next_name] for turn in (0, 1)}
        return placed

    def _make_context(self, role: Role, engine: Any) -> Any:
        context = _create_context(self._engines.trt, role, engine)
        if context is None:
            raise DeviceMemoryError(
                f"TensorRT made no execution context for the {role} engine "
                f"({self._engines.last_words() or 'it does not say why'}); if memory ran out, free "
                "some (nvidia-smi lists who holds it)"
            )
        if not context.set_optimization_profile_async(self.profile, self._stream.handle):
            raise self._failure(role, f"did not take profile {self.profile}")
        scratch = self._regions["scratch"]
        context.set_device_memory(scratch.address, scratch.nbytes)
        for name in tensor_names(engine):
            if name in self._regions:
                self._bind(role, context, name, self._regions[name])
        return context

    def _bind(self, role: Role, context: Any, name: str, region: Region) -> None:
        if not context.set_tensor_address(name, region.address):
            raise self._failure(role, f"took no address for {name}")

    def _run(self, role: Role, now: Sizes, *, check_outputs: bool) -> None:
        context, engines = self._contexts[role], self._engines
        shapes: dict[tuple[str | int, ...], tuple[int, ...]] = {}  # all caches have the same dims
        for spec in engines.inputs(role):
            shape = shapes.get(spec.dims)
            if shape is None:
                shape = shapes[spec.dims] = shape_of(spec, now)
            if not context.set_input_shape(spec.name, shape):
                raise self._failure(role, f"took no shape {shape} for {spec.name}")
        try:
            missing = context.infer_shapes()
        except RuntimeError as error:
            raise self._failure(role, f"can't have these shapes: {error}") from error
        if missing:
            raise self._failure(role, f"still lacks {', '.join(missing)}")
        if check_outputs:
            self._check_outputs(role, now)
        if not context.execute_async_v3(self._stream.handle):
            raise self._failure(role, "did not run")

    def _check_outputs(self, role: Role, now: Sizes) -> None:
        """A larger output than its place would overwrite its neighbours."""
        for spec in self._engines.outputs(role):
            found = tuple(self._contexts[role].get_tensor_shape(spec.name))
            if found != shape_of(spec, now):
                raise self._failure(
                    role, f"gives {spec.name} as {found}, expected {shape_of(spec, now)}"
                )

    def _failure(self, role: Role, what: str) -> BackendError:
        words = self._engines.last_words()
        return BackendError(
            f"the {role} engine {what}{f' ({words})' if words else ''}, with profile "
            f"{self.profile} ({self.capacity}); build the engines again, and use smaller batches "
            "if memory ran out"
        )

    def _copy_block(self, names: tuple[str, ...], *, to_host: bool = False) -> None:
        """Queues one copy of neighbours between the host and the device."""
        first, last = self._regions[names[0]], self._regions[names[-1]]
        nbytes = last.address + last.nbytes - first.address
        host = self._pinned.address + self._staging[names[0]][0]
        pair = (first.address, host) if to_host else (host, first.address)
        self._stream.copy(*pair, nbytes)

    def _fetch_log_probs(self, now: Sizes) -> None:
        region = self._regions[LOG_PROBS]
        if self._log_probs is None:
            self._log_probs = self._own(self._device.allocate_pinned(region.nbytes))
        nbytes = 4 * now["B"] * now["K"] * self._engines.model.vocab_size
        self._stream.copy(region.address, self._log_probs.address, nbytes)

    def _own(self, thing: Any) -> Any:
        self._closers.append(thing.close)
        return thing


def _create_context(trt: Any, role: Role, engine: Any) -> Any:
    """A context over scratch memory of ours; None where TensorRT can't make one.

    tensorrt-rtx compiles kernels for every new shape, and a step has a new one each time: there it
    is told to go on with those for any shape.
    """
    strategy = trt.ExecutionContextAllocationStrategy.USER_MANAGED
    specialization = getattr(trt, "DynamicShapesKernelSpecializationStrategy", None)
    if specialization is None or role == "encoder":
        return engine.create_execution_context(strategy)
    config = engine.create_runtime_config()
    config.set_execution_context_allocation_strategy(strategy)
    config.dynamic_shapes_kernel_specialization_strategy = specialization.NONE
    return engine.create_execution_context(config)


def _pack(nbytes: dict[str, int]) -> tuple[dict[str, int], int]:
    """An aligned offset for each name, in order, and the size of all. None shares an address."""
    offsets, end = {}, 0
    for name, size in nbytes.items():
        offsets[name] = end
        end += -(-max(size, 1) // ALIGNMENT) * ALIGNMENT
    return offsets, end
