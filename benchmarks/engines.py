"""What TensorRT engines of a preset cost and hold: built here for other GPUs, never run.

Random weights: they change neither sizes, nor memory, nor what is compiled as INT8.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe_machine, now
from benchmarks.table import align
from calibration.calibrate import calibrate
from calibration.quantize import quantize_graph
from export.graphs import export_decoder_step, export_encoder, model_spec, special_token_ids
from export.half import convert_to_fp16
from model.checkpoint import random_model
from runtime.bundle import graph_file_name
from runtime.engines.choice import BuildFor, choose_builds
from runtime.engines.layers import read_log
from runtime.engines.profiles import EngineLimits, engine_profiles
from runtime.engines.proof import gather_bytes, prove
from runtime.engines.worker import BuildRequest, run_build
from runtime.graph_contract import graph_inputs
from runtime.manifest import ModelSpec, Precision, Role
from runtime.options import SearchOptions

logger = logging.getLogger(__name__)

TARGETS = ("sm75", "sm80", "sm86", "sm89", "sm120")
PRESETS = ("tiny", "small", "base")
ROLES: tuple[Role, Role] = ("encoder", "decoder_step")
_BUILT: tuple[Precision, ...] = ("fp16", "int8_fp16")
_FIRST_ID = 4  # past the special ids
_MB = 1e6


@dataclass(frozen=True, kw_only=True)
class EngineRun:
    """Presets to build, GPUs to build for, and the limits of the engines."""

    presets: tuple[str, ...] = PRESETS
    targets: tuple[str, ...] = TARGETS
    limits: EngineLimits = field(default_factory=EngineLimits)


def measure_engines(run: EngineRun) -> dict[str, Any]:
    """Builds and proves both graphs in FP16 and INT8+FP16 for every preset and target, and in FP32,
    for its weights alone, for the last target (FP32 has no kernels on SM75).

    Raises MissingExtraError without tensorrt-rtx, ConfigError for an unknown preset, and ProofError
    for an engine in which a quantized MatMul is not INT8.
    """
    builds = choose_builds(run.targets)
    rows = []
    for preset in run.presets:
        with tempfile.TemporaryDirectory(prefix="leanseq-") as name:
            rows += _measure_preset(preset, builds, run.limits.within, Path(name))
    return {
        "engines": rows,
        "limits": run.limits.to_json(),
        "library": builds[0].library.label,
        "machine": describe_machine(),
        "date": now(),
    }


def _measure_preset(
    preset: str, builds: Sequence[BuildFor], limits_of: Any, directory: Path
) -> list[dict[str, Any]]:
    model, int8 = _write_graphs(preset, directory)
    limits: EngineLimits = limits_of(model)
    rows = []
    for build in builds:
        precisions = ("fp32", *_BUILT) if build is builds[-1] else _BUILT
        for precision in precisions:
            for role in ROLES:
                expected = int8[role] if precision == "int8_fp16" else 0
                row = _build(build, role, precision, model, limits, directory, expected)
                logger.info(
                    "%s %s %s %s: %.1f s", preset, role, precision, build.target, row["seconds"]
                )
                rows.append({"preset": preset, **row})
    return rows


def _build(
    build: BuildFor,
    role: Role,
    precision: Precision,
    model: ModelSpec,
    limits: EngineLimits,
    directory: Path,
    expected: int,
) -> dict[str, Any]:
    profiles = engine_profiles(graph_inputs(role, model, precision), limits)
    request = BuildRequest(
        name=f"{role} {precision} {build.target}",
        library=build.library.name,
        onnx_path=directory / graph_file_name(role, precision),
        profiles=profiles,
        target=build.target,
    )
    with tempfile.TemporaryDirectory(dir=directory) as name:
        result = run_build(request, Path(name))
        log = read_log(result.log_path.read_text(encoding="utf-8").split("\n"))
        proof = prove(
            log, result.network, expected=expected, profiles=len(profiles), graph=request.name
        )
        return {
            "role": role,
            "precision": precision,
            "target": build.target,
            "seconds": result.seconds,
            "plan_bytes": result.plan_path.stat().st_size,
            "weights_bytes": log.weights_bytes,
            "activation_bytes": log.activation_bytes,
            "gather_bytes": gather_bytes(log, profiles),
            "quantized": expected,
            "proof": asdict(proof),
        }


def _write_graphs(preset: str, directory: Path) -> tuple[ModelSpec, dict[Role, int]]:
    """Writes FP32, FP16 and INT8+FP16 files as `export build` makes them; and how many MatMuls of
    each graph are quantized."""
    model = random_model(preset)
    logger.info("%s: exporting and quantizing", preset)
    paths = {role: directory / graph_file_name(role, "fp32") for role in ROLES}
    export_encoder(model, paths["encoder"])
    export_decoder_step(model, paths["decoder_step"])
    spec, special_ids = model_spec(model.config), special_token_ids(model.config)
    numbers = np.random.default_rng(0).integers(_FIRST_ID, spec.vocab_size, (3, 5))
    ranges = calibrate(
        paths["encoder"],
        paths["decoder_step"],
        spec,
        special_ids,
        [[*ids, special_ids.eos] for ids in numbers.tolist()],
        options=SearchOptions(min_length=4, max_length=4),
    )
    quantized: dict[Role, int] = {}
    for role, path in paths.items():
        convert_to_fp16(path, directory / graph_file_name(role, "fp16"))
        int8 = directory / graph_file_name(role, "int8")
        quantized[role] = len(
            quantize_graph(path, int8, ranges, quantize_logits=False).int8_matmuls
        )
        convert_to_fp16(int8, directory / graph_file_name(role, "int8_fp16"))
    return spec, quantized


def render(record: dict[str, Any]) -> str:
    """A line for each graph and precision, over all targets, and what the columns are."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in record["engines"]:
        groups.setdefault((row["preset"], row["role"], row["precision"]), []).append(row)
    fp32 = {key[:2]: rows[0]["weights_bytes"] for key, rows in groups.items() if key[2] == "fp32"}
    header = [
        ("", "", "seconds", "INT8 MatMuls", "plan", "weights", "", "activations, MB", "", "cache"),
        ("", "proved", "all", "found", "MB", "MB", "of FP32", "batch 1", "largest", "Gather"),
    ]
    rows = [
        (
            " ".join(key),
            str(sum(row["proof"]["proved"] for row in group)),
            f"{sum(row['seconds'] for row in group):.1f}",
            _found(group),
            _largest(group, "plan_bytes"),
            _largest(group, "weights_bytes"),
            f"{group[0]['weights_bytes'] / fp32[key[:2]]:.3f}",
            f"{max(row['activation_bytes'][0] for row in group) / _MB:.1f}",
            f"{max(row['activation_bytes'][-1] for row in group) / _MB:.1f}",
            f"{max(row['gather_bytes'][-1] for row in group) / _MB:.1f}",
        )
        for key, group in groups.items()
    ]
    limits = ", ".join(f"{name} {value}" for name, value in record["limits"].items())
    notes = [
        _totals(groups),
        f"INT8 MatMuls found: compiled as INT8 by the builder's log, of those quantized. Limits: "
        f"{limits}.",
        "activations: memory of a profile, in MB, scratch included; cache Gather: the part of the "
        "largest that it takes.",
        f"{record['library']}, {', '.join(dict.fromkeys(r['target'] for r in record['engines']))}; "
        f"{record['machine']['cpu']}, {record['date']}",
    ]
    return "\n".join([*align(header, rows), "", *notes])


def _found(group: Sequence[dict[str, Any]]) -> str:
    found = min(len(row["proof"]["int8"]) for row in group)
    return f"{found}/{group[0]['quantized']}" if group[0]["quantized"] else "-"


def _largest(group: Sequence[dict[str, Any]], name: str) -> str:
    return f"{max(row[name] for row in group) / _MB:.1f}"


def _totals(groups: dict[tuple[str, str, str], list[dict[str, Any]]]) -> str:
    """Both graphs together: weights of INT8+FP16 against FP32."""
    parts = []
    for preset in dict.fromkeys(key[0] for key in groups):
        sums = {
            precision: sum(groups[preset, role, precision][0]["weights_bytes"] for role in ROLES)
            for precision in ("fp32", "int8_fp16")
        }
        parts.append(f"{preset} {sums['int8_fp16'] / sums['fp32']:.3f}")
    return f"weights of both graphs, INT8+FP16 against FP32: {', '.join(parts)}"
