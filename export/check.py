"""Is a graph file what the contract says: read from the file, trusting nothing that made it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, ValueInfoProto

from export.errors import ExportError
from runtime.graph_contract import graph_inputs, graph_outputs
from runtime.manifest import GraphSpec, ModelSpec, Precision, Role, TensorSpec, Variant
from runtime.static_contract import static_inputs, static_outputs

_Tensors = Callable[[Role, ModelSpec, Precision], tuple[TensorSpec, ...]]

_STANDARD_DOMAINS = ("", "ai.onnx")


def graph_spec(
    path: Path,
    role: Role,
    precision: Precision,
    variant: Variant = "portable",
    *,
    int8_matmuls: int | None = None,
) -> GraphSpec:
    """What the manifest says of a graph file: names, types, sizes, opset, quantized MatMuls.

    Raises ExportError when the file is not an ONNX model, or when it holds another number of
    quantized MatMuls than int8_matmuls.
    """
    model = _read(path)
    quantized = _count_quantized_matmuls(model)
    if int8_matmuls is not None and quantized != int8_matmuls:
        raise ExportError(
            f"{path.name} holds {quantized} quantized MatMuls, expected {int8_matmuls}; "
            "quantize it again"
        )
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    own = {*_STANDARD_DOMAINS, *(function.domain for function in model.functions)}
    return GraphSpec(
        role=role,
        precision=precision,
        variant=variant,
        files=(path.name, *_external_files(model)),
        inputs=tuple(_tensor_spec(value) for value in model.graph.input),
        outputs=tuple(_tensor_spec(value) for value in model.graph.output),
        opset=next((opsets[domain] for domain in _STANDARD_DOMAINS if domain in opsets), 0),
        requires=tuple(sorted(domain for domain in opsets if domain not in own)),
        int8_matmuls=quantized,
    )


def check_graph(
    path: Path,
    role: Role,
    precision: Precision,
    model: ModelSpec,
    *,
    opset: int,
    variant: Variant = "portable",
) -> GraphSpec:
    """Checks a graph file against ONNX and against the contract; gives its GraphSpec.

    Raises ExportError with all that is wrong: the full ONNX checker's text, then names, types and
    sizes of inputs and outputs, unused inputs, opset, operators of other domains, leftovers of the
    exporter (documentation, metadata), external data outside the file's directory.
    """
    spec = graph_spec(path, role, precision, variant)
    inputs, outputs, domains = _contract(variant)
    try:
        onnx.checker.check_model(path, full_check=True)
    except Exception as error:  # the checker raises several kinds
        raise ExportError(
            f"{path.name} is not a valid ONNX model: {str(error).strip().splitlines()[0]}; "
            "rebuild it"
        ) from error
    wrong = [
        *_compare("input", spec.inputs, inputs(role, model, precision)),
        *_compare("output", spec.outputs, outputs(role, model, precision)),
    ]
    if spec.opset != opset:
        wrong.append(f"opset {spec.opset}, expected {opset}")
    foreign = [domain for domain in spec.requires if domain not in domains]
    if foreign:
        wrong.append(
            f"operators of {', '.join(foreign)}, expected {' and '.join(['plain ONNX', *domains])}"
        )
    wrong += _leftovers(_read(path))
    if wrong:
        raise ExportError(
            f"{path.name} is not the {role} graph of the contract: {'; '.join(wrong)}; "
            "rebuild it with this version of leanseq"
        )
    return spec


def _contract(variant: Variant) -> tuple[_Tensors, _Tensors, tuple[str, ...]]:
    """What gives a variant's inputs and outputs, and the domains whose operators it may use."""
    if variant == "portable":
        return graph_inputs, graph_outputs, ()
    return static_inputs, static_outputs, ("com.microsoft",)


def matmul_names(path: Path) -> tuple[str, ...]:
    """The names of all MatMul nodes of a graph file, in order. Raises ExportError as graph_spec."""
    return tuple(node.name for node in _read(path).graph.node if node.op_type == "MatMul")


def _read(path: Path) -> onnx.ModelProto:
    """The model without the content of external files."""
    try:
        return onnx.load(path, load_external_data=False)
    except OSError as error:
        raise ExportError(f"{path} can't be read ({error.strerror}); expected a graph") from error
    except Exception as error:  # protobuf's errors share no root with onnx's
        raise ExportError(f"{path} is not an ONNX model; rebuild it") from error


def _external_files(model: onnx.ModelProto) -> list[str]:
    names = {
        entry.value
        for tensor in model.graph.initializer
        if tensor.data_location == TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return sorted(names)


def _tensor_spec(value: ValueInfoProto) -> TensorSpec:
    tensor = value.type.tensor_type
    dims = tuple(
        dim.dim_param or "?" if not dim.HasField("dim_value") else dim.dim_value
        for dim in tensor.shape.dim
    )
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)).name
    return TensorSpec(name=value.name, dtype=dtype, dims=dims)


def _count_quantized_matmuls(model: onnx.ModelProto) -> int:
    """MatMuls whose weight comes out of a DequantizeLinear, transposed or not, and those that ONNX
    Runtime would make of them, in functions too."""
    integer = ("MatMulIntegerToFloat", "MatMulNBits")
    inside = {
        function.name: sum(node.op_type in integer for node in function.node)
        for function in model.functions
    }
    producers = {name: node for node in model.graph.node for name in node.output}
    count = 0
    for node in model.graph.node:
        count += inside.get(node.op_type, node.op_type in integer)
        if node.op_type != "MatMul":
            continue
        weight = producers.get(node.input[1])
        if weight is not None and weight.op_type == "Transpose":
            weight = producers.get(weight.input[0])
        count += weight is not None and weight.op_type == "DequantizeLinear"
    return count


def _compare(
    kind: str, found: tuple[TensorSpec, ...], expected: tuple[TensorSpec, ...]
) -> list[str]:
    names, expected_names = [t.name for t in found], [t.name for t in expected]
    if names != expected_names:
        missing = [name for name in expected_names if name not in names]
        extra = [name for name in names if name not in expected_names]
        return [f"{kind}s lack {missing}, have {extra} too many, or stand in another order"]
    return [
        f"{kind} {one.name} is {one.dtype} {list(one.dims)}, expected {two.dtype} {list(two.dims)}"
        for one, two in zip(found, expected, strict=True)
        if one != two
    ]


def _leftovers(model: onnx.ModelProto) -> list[str]:
    graph = model.graph
    used = {name for node in graph.node for name in node.input}
    unused = [value.name for value in graph.input if value.name not in used]
    wrong = [f"input {name} is used by no node" for name in unused]
    documented = [graph, *graph.node, *graph.initializer, *graph.input, *graph.output]
    if model.doc_string or any(item.doc_string for item in documented):
        wrong.append("documentation texts of the exporter are left")
    if model.metadata_props or any(item.metadata_props for item in documented):
        wrong.append("metadata of the exporter is left")
    for name in _external_files(model):
        if Path(name).name != name:
            wrong.append(f"external data {name!r} lies elsewhere")
    return wrong
