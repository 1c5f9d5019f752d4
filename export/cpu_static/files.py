"""The graphs of variant `cpu_static` as files of a bundle, one embedding table for both."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

from calibration.fused import count_fused_int8
from export.check import check_graph
from export.clean import write_model
from export.cpu_static.convert import StaticGraph, convert_encoder, convert_step
from export.cpu_static.editing import UnfitError
from export.errors import ExportError
from runtime.bundle import graph_file_name, table_file_name
from runtime.manifest import GraphSpec, ModelSpec, Precision, Role
from runtime.static_contract import VARIANT

logger = logging.getLogger(__name__)


def write_static_graphs(
    sources: Mapping[Role, Path],
    directory: Path,
    model: ModelSpec,
    precision: Precision,
    *,
    opset: int,
) -> dict[Role, GraphSpec]:
    """Writes both graphs, made of the portable ones (for INT8: with Q/DQ); what the manifest says
    of them. Nothing, and a warning that says why, where a pass finds a graph that it can't rewrite.

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
        return {}
    _share_table(graphs, directory / table_file_name(precision, VARIANT))
    specs: dict[Role, GraphSpec] = {}
    for role, graph in graphs.items():
        path = directory / graph_file_name(role, precision, VARIANT)
        write_model(graph.model, path)
        specs[role] = _checked(path, role, precision, model, graph.int8_matmuls, opset)
    return specs


def _checked(
    path: Path, role: Role, precision: Precision, model: ModelSpec, int8_matmuls: int, opset: int
) -> GraphSpec:
    spec = check_graph(path, role, precision, model, opset=opset, variant=VARIANT)
    fused = count_fused_int8(path, disabled_optimizers=())
    if not int8_matmuls == spec.int8_matmuls == fused:
        raise ExportError(
            f"{path.name}: ONNX Runtime runs {fused} MatMuls in INT8, the file holds "
            f"{spec.int8_matmuls}, expected {int8_matmuls}; this version of onnxruntime does not "
            "take what leanseq writes: install the one in constraints.txt"
        )
    return spec


def _share_table(graphs: Mapping[Role, StaticGraph], path: Path) -> None:
    """Where both graphs hold the same int8 table, its bytes go to a file that both refer to."""
    values = [g.model.graph.initializers[g.table] for g in graphs.values() if g.table is not None]
    tensors = [value.const_value for value in values if value.const_value is not None]
    if len(tensors) < 2 or tensors[0].tobytes() != tensors[1].tobytes():
        return
    content = tensors[0].tobytes()
    path.write_bytes(content)
    for value, tensor in zip(values, tensors, strict=True):
        value.const_value = ir.ExternalTensor(
            location=path.name,
            offset=0,
            length=len(content),
            dtype=tensor.dtype,
            shape=tensor.shape,
            name=str(value.name),
            base_dir=path.parent,
        )
