"""The two engines of a model as TensorRT has them, checked against the graph contract.

Letters: B sentences, S source length, K beams of a sentence, N = B*K, P rows of the past, T target
length so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from runtime.errors import EngineError
from runtime.graph_contract import (
    SRC_IDS,
    SRC_MASK,
    TOKEN_IDS,
    graph_inputs,
    graph_outputs,
    self_names,
)
from runtime.manifest import ModelSpec, Precision, Role, TensorSpec

Sizes = dict[str, int]
"""The letters of the graph contract, as numbers: B, K, 2K, N, P, S, T, T+1."""


def sizes(*, batch: int, beam: int, past: int, source: int, length: int) -> Sizes:
    """batch B, beam K, past P, source S, length T."""
    return {
        "B": batch,
        "K": beam,
        "2K": 2 * beam,
        "N": batch * beam,
        "P": past,
        "S": source,
        "T": length,
        "T+1": length + 1,
    }


def shape_of(spec: TensorSpec, now: Sizes) -> tuple[int, ...]:
    """The shape of a tensor of the contract at these sizes."""
    return tuple(now[dim] if isinstance(dim, str) else dim for dim in spec.dims)


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """The largest sizes that an engine's profile, or a workspace, takes. target: tokens made."""

    batch: int
    beam: int
    source: int
    target: int

    def sizes(self) -> Sizes:
        return sizes(
            batch=self.batch,
            beam=self.beam,
            past=self.batch * self.beam,
            source=self.source,
            length=self.target - 1,
        )

    def __str__(self) -> str:
        return f"batch {self.batch}, beam {self.beam}, source {self.source}, target {self.target}"


@dataclass(frozen=True, kw_only=True)
class EnginePair:
    """Two deserialized engines of one model, and the module of TensorRT that made them.

    last_words: what TensorRT said last, for messages. Raises EngineError unless both engines are
    what the graph contract says.
    """

    trt: Any
    encoder: Any  # ICudaEngine
    decoder_step: Any  # ICudaEngine
    model: ModelSpec
    precision: Precision
    last_words: Callable[[], str] = str

    def __post_init__(self) -> None:
        for role, engine in self.by_role().items():
            _check_tensors(engine, role, self.inputs(role), "INPUT")
            _check_tensors(engine, role, self.outputs(role), "OUTPUT")

    def by_role(self) -> dict[Role, Any]:
        return {"encoder": self.encoder, "decoder_step": self.decoder_step}

    def inputs(self, role: Role) -> tuple[TensorSpec, ...]:
        return _inputs(role, self.model, self.precision)

    def outputs(self, role: Role) -> tuple[TensorSpec, ...]:
        return _outputs(role, self.model, self.precision)

    def capacities(self) -> list[Capacity]:
        """What each optimization profile takes, in order.

        Raises EngineError unless each takes one sentence, one beam, an empty past.
        """
        count = self.decoder_step.num_optimization_profiles
        if self.encoder.num_optimization_profiles != count or count < 1:
            raise EngineError(
                f"the engines have {self.encoder.num_optimization_profiles} and {count} profiles, "
                "expected the same number: they were not built together, build them again"
            )
        return [self._capacity(profile) for profile in range(count)]

    def scratch_bytes(self, profile: int) -> int:
        """Activation memory of the larger engine: they run one after the other, and share it."""
        engines = self.by_role().values()
        return max(int(e.get_device_memory_size_for_profile_v2(profile)) for e in engines)

    def _capacity(self, profile: int) -> Capacity:
        past_name = self_names(1)[0]
        src_ids = _largest(self.encoder, SRC_IDS, profile, (1, 1))
        token_ids = _largest(self.decoder_step, TOKEN_IDS, profile, (1, 1))
        src_mask = _largest(self.decoder_step, SRC_MASK, profile, (1, 1))
        dims = (1, self.model.num_heads, 0, self.model.head_dim)
        past = _largest(self.decoder_step, past_name, profile, dims)
        return Capacity(
            batch=min(src_ids[0], token_ids[0], past[0] // token_ids[1]),
            beam=token_ids[1],
            source=min(src_ids[1], src_mask[1]),
            target=past[2] + 1,
        )


def tensor_names(engine: Any) -> list[str]:
    """Inputs and outputs of an ICudaEngine."""
    return [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]


def _check_tensors(engine: Any, role: Role, specs: Iterable[TensorSpec], mode: str) -> None:
    names = set(tensor_names(engine))
    for spec in specs:
        found = _kind(engine, spec.name) if spec.name in names else "nothing"
        expected = f"{mode} {_TRT_TYPES[spec.dtype]} DEVICE"
        if found != expected:
            raise EngineError(
                f"the {role} engine has {found} for {spec.name}, expected {expected}: it was built "
                "from another graph; build the engines again"
            )


def _kind(engine: Any, name: str) -> str:
    parts = (
        engine.get_tensor_mode(name),
        engine.get_tensor_dtype(name),
        engine.get_tensor_location(name),
    )
    return " ".join(part.name for part in parts)


def _largest(engine: Any, name: str, profile: int, smallest: tuple[int, ...]) -> tuple[int, ...]:
    """The largest shape of a tensor. EngineError unless the profile begins at `smallest`."""
    low, _, high = (tuple(dims) for dims in engine.get_tensor_profile_shape(name, profile))
    if low != smallest:
        raise EngineError(
            f"profile {profile} of an engine begins at {low} for {name}, expected {smallest}; "
            "build the engines again"
        )
    return high


# Asked for at every step.
_inputs, _outputs = cache(graph_inputs), cache(graph_outputs)
_TRT_TYPES = {"int32": "INT32", "bool": "BOOL", "float32": "FLOAT", "float16": "HALF"}
