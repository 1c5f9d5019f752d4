"""One engine on disk: a directory with a plan, and engine.json, which says all there is to know.

Whether it fits what is here is runtime.engines.store's to say.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from runtime.bundle import sha256_of
from runtime.engines.library import LibraryName
from runtime.engines.profiles import EngineLimits, Profile, ShapeRange
from runtime.engines.proof import Proof
from runtime.engines.worker import PLAN_NAME
from runtime.errors import EngineError, OptionError
from runtime.manifest import Role, read_spec

SCHEMA_MAJOR = 1
SCHEMA_MINOR = 0
ENGINE_NAME = "engine.json"
LOG_NAME = "build.log.gz"

EnginePrecision = Literal["fp16", "int8_fp16"]
ENGINE_PRECISIONS: tuple[EnginePrecision, ...] = get_args(EnginePrecision)


_TYPES = {
    **dict.fromkeys(("version", "target", "onnx_sha256", "plan_sha256"), str),
    **dict.fromkeys(("plan_size", "settings_version"), int),
}
_REBUILD = "it is damaged or unfinished; build the engine again"


@dataclass(frozen=True, kw_only=True)
class EngineFacts:
    """Measured by the build. seconds: of the builder alone. Memory in bytes: activation_bytes and
    gather_bytes (the part of it that the Gather on the caches takes) have a number a profile."""

    seconds: float
    activation_bytes: tuple[int, ...]
    gather_bytes: tuple[int, ...]
    weights_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A built engine. directory: where it lies. limits: of its largest profile."""

    directory: Path
    role: Role
    precision: EnginePrecision
    library: LibraryName
    version: str
    target: str
    limits: EngineLimits
    profiles: tuple[Profile, ...]
    onnx_sha256: str
    plan_sha256: str
    plan_size: int
    settings_version: int
    proof: Proof
    facts: EngineFacts

    @property
    def name(self) -> str:
        """decoder_step int8_fp16 sm89"""
        return f"{self.role} {self.precision} {self.target}"

    @property
    def built_by(self) -> str:
        return f"{self.library.replace('_', '-')} {self.version}"

    def read_plan(self) -> bytes:
        """The plan, once it has been found to be what was built. EngineError when it is not."""
        check_plan(self)
        return (self.directory / PLAN_NAME).read_bytes()

    def to_json(self) -> dict[str, Any]:
        values = {
            "schema": f"{SCHEMA_MAJOR}.{SCHEMA_MINOR}",
            **dataclasses.asdict(self),
            "limits": self.limits.to_json(),
            "proof": self.proof.to_json(),
        }
        del values["directory"]
        as_json: dict[str, Any] = json.loads(json.dumps(values))
        return as_json


def engine_directory_name(role: str, precision: str, target: str, library: str) -> str:
    """decoder_step.int8_fp16.sm89.tensorrt_rtx"""
    return f"{role}.{precision}.{target}.{library}"


def check_precision(precision: str) -> EnginePrecision:
    """Raises OptionError for a precision that engines are not made in."""
    for known in ENGINE_PRECISIONS:
        if precision == known:
            return known
    raise OptionError(
        f"precision is {precision!r}; TensorRT engines are made in "
        f"{' and '.join(ENGINE_PRECISIONS)}"
    )


def read_engine(directory: Path) -> Engine:
    """What engine.json says. EngineError when it is missing, damaged or of a newer schema."""
    path = directory / ENGINE_NAME
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise EngineError(f"{directory} holds no {ENGINE_NAME}: {_REBUILD}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise EngineError(f"{path} can't be read ({error}): {_REBUILD}") from error
    schema = values.get("schema") if isinstance(values, dict) else None
    if str(schema).split(".")[0] != str(SCHEMA_MAJOR):
        raise EngineError(
            f"{path} has schema {schema!r}; this leanseq reads {SCHEMA_MAJOR}.x: {_REBUILD}"
        )
    try:
        engine = _from_json(directory, values)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EngineError(
            f"{path}: a field is missing or malformed ({error!r}): {_REBUILD}"
        ) from error
    expected = engine_directory_name(engine.role, engine.precision, engine.target, engine.library)
    if directory.name != expected:
        raise EngineError(f"{directory} holds the engine of {expected}: {_REBUILD}")
    return engine


def check_plan(engine: Engine) -> None:
    """Raises EngineError unless the plan is what was built."""
    path = engine.directory / PLAN_NAME
    try:
        size = path.stat().st_size
        if size != engine.plan_size:
            raise EngineError(
                f"{path} has {size:,} bytes, expected {engine.plan_size:,}: it is truncated or "
                "altered; build the engine again"
            )
        digest = sha256_of(path)
    except OSError as error:
        raise EngineError(
            f"{path} can't be read ({error.strerror}); build the engine again"
        ) from error
    if digest != engine.plan_sha256:
        raise EngineError(
            f"{path} has SHA-256 {digest[:12]}..., expected {engine.plan_sha256[:12]}...: it was "
            "altered; build the engine again"
        )


def _from_json(directory: Path, values: Mapping[str, Any]) -> Engine:
    known = {field.name for field in dataclasses.fields(Engine)} - {"directory"}
    taken = {name: values[name] for name in known}
    for name, kind in _TYPES.items():
        if type(taken[name]) is not kind:
            raise TypeError(f"{name} is {taken[name]!r}")
    profiles = [
        {name: read_spec(ShapeRange, shapes) for name, shapes in profile.items()}
        for profile in values["profiles"]
    ]
    taken |= {
        "limits": read_spec(EngineLimits, values["limits"]),
        "proof": read_spec(Proof, values["proof"]),
        "facts": read_spec(EngineFacts, values["facts"]),
        "profiles": tuple(profiles),
    }
    lacking = {field.name for field in dataclasses.fields(EngineLimits)} - set(values["limits"])
    if lacking or not profiles:  # the limits have defaults, which would be taken for the engine's
        raise ValueError(f"no {', '.join(sorted(lacking)) or 'profiles'}")
    return Engine(directory=directory, **taken)
