"""The graphs of variant `cpu_static` as files of a bundle, that refer to one file of weights."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

import onnx_ir as ir

from calibration.fused import count_fused_int8
from export.check import check_graph
from export.clean import write_model
from export.cpu_static.convert import StaticGraph, convert_encoder, convert_greedy, convert_step
from export.cpu_static.editing import UnfitError
from export.errors import ExportError
from runtime.bundle import graph_file_name, weights_file_name
from runtime.manifest import GraphSpec, ModelSpec, Precision, Role
from runtime.static_contract import GREEDY, VARIANT

logger = logging.getLogger(__name__)

PAGE = 4096
"""Bytes: where tensors begin in the file, which is mapped into memory, and the least worth it."""


def write_static_graphs(
    sources: Mapping[Role, Path],
    directory: Path,
    model: ModelSpec,
    precision: Precision,
    *,
    opset: int,
) -> list[GraphSpec]:
    """Writes both graphs, made of the portable ones (for INT8: with Q/DQ), and of INT8 the step for
    beam 1 too; what the manifest says of them. Nothing, and a warning that says why, where a pass
    finds a graph that it can't rewrite.

    Raises ExportError where ONNX Runtime doesn't compute in INT8 what should be, or a graph isn't
    what the contract says.
    """
    try:
        graphs: dict[Role, StaticGraph] = {
            "encoder": convert_encoder(sources["encoder"]),
            "decoder_step": convert_step(sources["decoder_step"], model),
        }
    except UnfitError as error:
        logger.warning(
            "cpu_static: no graphs in %s (%s); CPUs run the portable ones", precision, error
        )
        return []
    _share_weights(graphs.values(), directory / weights_file_name(precision, VARIANT))
    specs = []
    for role, graph in graphs.items():
        path = directory / graph_file_name(role, precision, VARIANT)
        write_model(graph.with_fused_operators(), path)
        spec = check_graph(path, role, precision, model, opset=opset, variant=VARIANT)
        specs.append(_counted(path, spec, graph.int8_matmuls))
    step = graphs["decoder_step"]
    if step.int8_matmuls:
        specs += _greedy(directory, step, precision, model, opset)
    return specs


def _greedy(
    directory: Path, step: StaticGraph, precision: Precision, model: ModelSpec, opset: int
) -> list[GraphSpec]:
    """The step for beam 1, made of the other, which is written and not used any more."""
    try:
        graph = convert_greedy(step)
    except UnfitError as error:
        logger.info("cpu_static: beam 1 has no graph of its own (%s)", error)
        return []
    path = directory / graph_file_name("decoder_step", precision, GREEDY)
    write_model(graph.with_fused_operators(), path)
    spec = check_graph(path, "decoder_step", precision, model, opset=opset, variant=GREEDY)
    return [_counted(path, spec, graph.int8_matmuls)]


def _counted(path: Path, spec: GraphSpec, int8_matmuls: int) -> GraphSpec:
    fused = count_fused_int8(path, disabled_optimizers=())
    if not int8_matmuls == spec.int8_matmuls == fused:
        raise ExportError(
            f"{path.name}: ONNX Runtime runs {fused} MatMuls in INT8, the file holds "
            f"{spec.int8_matmuls}, expected {int8_matmuls}; this version of onnxruntime does not "
            "take what leanseq writes: install the one in constraints.txt"
        )
    return spec


def _share_weights(graphs: Iterable[StaticGraph], path: Path) -> None:
    """Large tensors go to a file that the graphs refer to, equal ones once: the tables of encoder
    and step, the weights of both steps."""
    places: dict[bytes, tuple[int, int]] = {}
    with path.open("wb") as file:
        for value in [v for g in graphs for v in g.model.graph.initializers.values()]:
            tensor = value.const_value
            if tensor is None or tensor.nbytes < PAGE:
                continue
            content = tensor.tobytes()
            key = hashlib.sha256(content).digest()
            if key not in places:
                places[key] = (file.tell(), len(content))
                file.write(content + bytes(-len(content) % PAGE))
            offset, length = places[key]
            value.const_value = ir.ExternalTensor(
                location=path.name,
                offset=offset,
                length=length,
                dtype=tensor.dtype,
                shape=tensor.shape,
                name=str(value.name),
                base_dir=path.parent,
            )
    if not places:
        path.unlink()
