"""The engines of a bundle: built for some GPUs, or found there, and a line about each."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.bundle import Bundle
from runtime.engines.choice import BuildFor
from runtime.engines.engine import ENGINE_PRECISIONS, Engine
from runtime.engines.profiles import EngineLimits
from runtime.engines.store import ROLES, ensure_engine
from runtime.engines.worker import DEFAULT_TIMEOUT_S

logger = logging.getLogger(__name__)

_MB = 1e6


@dataclass(frozen=True, kw_only=True)
class EngineRecipe:
    """What engines to build, by what, how large, and for how long at most (seconds each)."""

    builds: tuple[BuildFor, ...]
    limits: EngineLimits
    timeout_s: float = DEFAULT_TIMEOUT_S
    force: bool = False


def build_engines(bundle: Bundle, recipe: EngineRecipe) -> list[Engine]:
    """Both graphs in every precision of the bundle that engines are made in, for every GPU.

    An engine that was made from the same inputs is used again. Raises EngineError at the first that
    can't be built or proved; those built before it stay.
    """
    engines = []
    for build in recipe.builds:
        for precision in ENGINE_PRECISIONS:
            if precision not in bundle.precisions():
                continue
            for role in ROLES:
                engine, built = ensure_engine(
                    bundle,
                    role,
                    precision,
                    library=build.library,
                    target=build.target,
                    limits=recipe.limits,
                    timeout_s=recipe.timeout_s,
                    force=recipe.force,
                )
                logger.info("engine: %s%s", engine_line(engine), "" if built else ", reused")
                engines.append(engine)
    return engines


def engine_line(engine: Engine) -> str:
    """decoder_step int8_fp16 sm89: 1.5 s, plan 13.9 MB, activations 8.5 + 16.9 MB (...), ..."""
    facts = engine.facts
    activations = " / ".join(_megabytes(size) for size in facts.activation_bytes)
    gathered = max(facts.gather_bytes, default=0)
    share = f" ({_megabytes(gathered)} MB of it the cache Gather)" if gathered else ""
    return (
        f"{engine.name} by {engine.built_by}: {facts.seconds:.1f} s, plan "
        f"{_megabytes(engine.plan_size)} MB, activations {activations} MB{share}, "
        f"{int8_text(engine)}"
    )


def int8_text(engine: Engine) -> str:
    """32 of 33 weight MatMuls compiled as INT8"""
    proof = engine.proof
    if not proof.proved:
        return f"INT8 not proved ({proof.reason})"
    weights = len(proof.int8) + len(proof.float_weights)
    return f"{len(proof.int8)} of {weights} weight MatMuls compiled as INT8"


def engine_record(engine: Engine) -> dict[str, Any]:
    """The JSON of an engine, and where it lies."""
    return {**engine.to_json(), "directory": str(engine.directory)}


def engine_table(records: Sequence[Mapping[str, Any]]) -> str:
    """What `export build` prints of its engines: a line for each of `engine_record`."""
    batch = max(record["limits"]["max_batch"] for record in records)
    header = (
        "engine", "precision", "GPU", "built by", "s", "plan MB", "weights MB",
        "act. MB, batch 1", f"up to {batch}", "cache Gather", "INT8 MatMuls",
    )  # fmt: skip
    rows = [header, *(_row(record) for record in records)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    lines = [
        "  ".join(
            cell.ljust(width) if column < 4 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    notes = (
        "act.: activation memory of a profile, scratch included; cache Gather: the part of the "
        "largest that\nreordering the caches takes. INT8 MatMuls: compiled as INT8, of all with a "
        "weight, by the builder's log;\nkernels are chosen on the GPU."
    )
    return "\n".join([*(line.rstrip() for line in lines), notes])


def _row(record: Mapping[str, Any]) -> tuple[str, ...]:
    facts, proof = record["facts"], record["proof"]
    weights = len(proof["int8"]) + len(proof["float_weights"])
    activations = facts["activation_bytes"] or [None]
    return (
        record["role"],
        record["precision"],
        record["target"],
        f"{record['library'].replace('_', '-')} {record['version']}",
        f"{facts['seconds']:.1f}",
        _megabytes(record["plan_size"]),
        _megabytes(facts["weights_bytes"]),
        _megabytes(activations[0]),
        _megabytes(activations[-1]),
        _megabytes(max(facts["gather_bytes"], default=0)),
        f"{len(proof['int8'])}/{weights}" if proof["proved"] else "not proved",
    )


def _megabytes(size: int | None) -> str:
    return "?" if size is None else f"{size / _MB:.1f}"
