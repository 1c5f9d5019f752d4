"""Graphs of variant cpu_static, made of a model's portable ones, and backends over them."""

from __future__ import annotations

from pathlib import Path

from support.bundles import ROLES, Graphs

from calibration.calibrate import calibrate
from calibration.quantize import quantize_graph
from export.cpu_static.files import write_static_graphs
from export.graphs import OPSET
from runtime.bundle import graph_file_name
from runtime.manifest import GraphSpec, Precision, Role
from runtime.static_backend import StaticBackend

SOURCES = [[5, 9, 30, 3], [47, 3], [8, 8, 60, 61, 62, 50, 3], [40, 41, 3]]


def quantize_all(graphs: Graphs, directory: Path) -> dict[Role, Path]:
    """Q/DQ graphs whose logits are in INT8 as well, of which the INT8 variant is made."""
    directory.mkdir(parents=True, exist_ok=True)
    ranges = calibrate(
        graphs.path("encoder"),
        graphs.path("decoder_step"),
        graphs.spec,
        graphs.special_ids,
        SOURCES,
        threads=1,
    )
    paths: dict[Role, Path] = {role: directory / graph_file_name(role, "int8") for role in ROLES}
    for role, path in paths.items():
        quantize_graph(graphs.path(role), path, ranges, quantize_logits=True)
    return paths


def write_static(graphs: Graphs, directory: Path, precision: Precision) -> list[GraphSpec]:
    """Writes the graphs into the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    sources: dict[Role, Path] = {role: graphs.path(role) for role in ROLES}
    if precision == "int8":
        sources = quantize_all(graphs, directory / "qdq")
    return write_static_graphs(sources, directory, graphs.spec, precision, opset=OPSET)


def open_static(
    graphs: Graphs, directory: Path, precision: Precision, threads: int | None = 1
) -> StaticBackend:
    """A backend over what write_static wrote."""
    encoder, step = (graph_file_name(role, precision, "cpu_static") for role in ROLES)
    greedy = directory / graph_file_name("decoder_step", precision, "cpu_static_greedy")
    return StaticBackend(
        directory / encoder,
        directory / step,
        graphs.spec,
        graphs.special_ids,
        precision,
        threads,
        greedy_path=greedy if greedy.exists() else None,
    )
