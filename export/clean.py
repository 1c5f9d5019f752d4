"""What becomes of an exported graph before it is written: shorter, named, the same bytes each time.

The exporter's graph carries stack traces, source paths, shape arithmetic and names that change with
its version. Here it is folded, its shape arithmetic is replaced by constants where sizes allow it,
its nodes and values get names that follow from the model, and everything else is removed.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes import common as passes
from onnxscript import optimizer

from runtime.manifest import TensorSpec
from runtime.version import __version__

EXTERNAL_DATA_BYTES = 3 << 29
"""Weights beyond 1.5 GiB leave the file: protobuf ends at 2 GiB."""

IR_VERSION = 10
"""Old enough for every ONNX Runtime and TensorRT that reads opset 20."""

_SCOPES = "pkg.torch.onnx.name_scopes"


def save_graph(
    model: ir.Model,
    path: Path,
    *,
    name: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
) -> None:
    """Cleans an exported model, gives its inputs and outputs the contract's names, writes it."""
    weights = frozenset(model.graph.initializers)
    _fold(model)
    _shorten(model.graph)
    _separate_outputs(model.graph)
    _share_constants(model, weights)
    _name_borders(model.graph, inputs, outputs)
    _name_nodes(model.graph)
    _strip(model, name)
    write_model(model, path)


def write_model(model: ir.Model, path: Path) -> None:
    """Writes a model, its weights into PATH.data beside it where one file can't hold them.

    The bytes follow from the model alone.
    """
    size = sum(value.const_value.nbytes for value in model.graph.initializers.values()
               if value.const_value is not None)  # fmt: skip
    if size > EXTERNAL_DATA_BYTES:
        ir.save(model, path, external_data=f"{path.name}.data", size_threshold_bytes=1024)
    else:
        proto: onnx.ModelProto = ir.to_proto(model)
        path.write_bytes(proto.SerializeToString(deterministic=True))


def _fold(model: ir.Model) -> None:
    """Constant folding and the like, without merging weights that happen to be equal."""
    passes.InlinePass()(model)
    for _ in range(2):
        # A transposed table would be a second copy of it.
        optimizer.fold_constants(
            model, should_fold=lambda node: False if node.op_type == "Transpose" else None
        )
        passes.IdentityEliminationPass()(model)
        passes.CommonSubexpressionEliminationPass()(model)
        passes.RemoveUnusedNodesPass()(model)


def _shorten(graph: ir.Graph) -> None:
    """Our own rules; each leaves what it can't prove."""
    for rule in (
        _bypass_index_casts,
        _constant_reshape_targets,
        _bypass_reshapes,
        _flat_arithmetic,
    ):
        for node in list(graph):
            rule(graph, node)
    for _ in range(2):
        passes.CommonSubexpressionEliminationPass()(ir.Model(graph, ir_version=10))
        passes.RemoveUnusedNodesPass()(ir.Model(graph, ir_version=10))


def _separate_outputs(graph: ir.Graph) -> None:
    """Each output is a value of its own. Layers that project nothing have the same cross keys, and
    equal values have become one."""
    seen: set[int] = set()
    for index, value in enumerate(graph.outputs):
        if id(value) in seen:
            node = ir.node("Identity", [value])
            node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
            graph.append(node)
            graph.outputs[index] = node.outputs[0]
        seen.add(id(value))


def _bypass_index_casts(graph: ir.Graph, node: ir.Node) -> None:
    """Gather takes int32 indices as they are: no Cast to int64, no Reshape to [-1] before it."""
    if node.op_type != "Gather":
        return
    index = node.inputs[1]
    while index is not None and (producer := index.producer()) is not None:
        source = producer.inputs[0]
        if producer.op_type == "Cast" and source is not None:
            index = source
        elif producer.op_type == "Reshape" and source is not None and _rank(source) == 1:
            if _constant(producer.inputs[1]) != [-1]:
                break
            index = source
        else:
            break
    if index is not None and index.dtype == ir.DataType.INT32:
        node.replace_input_with(1, index)


def _constant_reshape_targets(graph: ir.Graph, node: ir.Node) -> None:
    """Reshape to computed sizes becomes Reshape to constants: 0 copies a size, -1 is the rest."""
    if node.op_type != "Reshape" or _constant(node.inputs[1]) is not None:
        return
    source, target = node.inputs[0], node.outputs[0]
    if source is None or source.shape is None or target.shape is None:
        return
    sizes: list[int] = []
    for axis, size in enumerate(target.shape):
        if isinstance(size, int):
            sizes.append(size)
        elif axis < len(source.shape) and _same(source.shape[axis], size):
            sizes.append(0)
        else:
            sizes.append(-1)
    if sizes.count(-1) <= 1:
        node.attributes.pop("allowzero", None)  # with it, 0 would be a size
        node.replace_input_with(1, _insert_constant(graph, node, sizes))


def _bypass_reshapes(graph: ir.Graph, node: ir.Node) -> None:
    """A Reshape to the shape that is there already goes."""
    if node.op_type != "Reshape":
        return
    source, target = node.inputs[0], node.outputs[0]
    if source is None or source.shape is None or target.shape is None:
        return
    sizes = zip(source.shape, target.shape, strict=False)
    if len(source.shape) == len(target.shape) and all(_same(a, b) for a, b in sizes):
        target.replace_all_uses_with(source)


def _flat_arithmetic(graph: ir.Graph, node: ir.Node) -> None:
    """Sizes stay [1] where the exporter squeezes them and shapes them back.

    Reshape(Squeeze(x), [-1]) with x [1] becomes x, Reshape(Mul(constant, Squeeze(x)), [-1]) becomes
    Mul(constant, x).
    """
    if node.op_type != "Reshape" or node.inputs[0] is None or _rank(node.inputs[0]) != 0:
        return
    product = node.inputs[0].producer()
    if product is not None and product.op_type == "Squeeze" and product.inputs[0] is not None:
        node.outputs[0].replace_all_uses_with(product.inputs[0])
        return
    if product is None or product.op_type != "Mul":
        return
    for constant, scalar in (product.inputs, reversed(product.inputs)):
        factor = _constant(constant)
        assert not isinstance(factor, list)  # the product is a scalar
        squeeze = None if scalar is None else scalar.producer()
        if factor is not None and squeeze is not None and squeeze.op_type == "Squeeze":
            flat = squeeze.inputs[0]
            assert flat is not None
            shorter = ir.node("Mul", [_insert_constant(graph, node, [factor]), flat])
            shorter.outputs[0].shape = ir.Shape([1])
            graph.insert_before(node, shorter)
            node.outputs[0].replace_all_uses_with(shorter.outputs[0])
            return


def _rank(value: ir.Value) -> int | None:
    return None if value.shape is None else len(value.shape)


def _same(one: int | ir.SymbolicDim, other: int | ir.SymbolicDim) -> bool:
    if isinstance(one, int) or isinstance(other, int):
        return one == other
    return one.value is not None and one.value == other.value


def _constant(value: ir.Value | None) -> int | list[int] | None:
    """The value of a small integer constant."""
    if value is None:
        return None
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.dtype != ir.DataType.INT64 or tensor.size > 8:
        return None
    numbers: int | list[int] = tensor.numpy().tolist()
    return numbers


def _insert_constant(graph: ir.Graph, before: ir.Node, sizes: Sequence[int]) -> ir.Value:
    node = ir.node("Constant", [], {"value": ir.tensor(np.array(sizes, dtype=np.int64))})
    graph.insert_before(before, node)
    return node.outputs[0]


def _share_constants(model: ir.Model, weights: frozenset[str]) -> None:
    """Constants become initializers named by their order; equal ones become one."""
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    first: dict[tuple[object, ...], ir.Value] = {}
    for node in list(model.graph):
        for value in node.inputs:
            if value is None or value.name in weights or value.const_value is None:
                continue
            tensor = value.const_value
            key = (tensor.dtype, tuple(tensor.shape), tensor.tobytes())
            if first.setdefault(key, value) is not value:
                value.replace_all_uses_with(first[key])
    passes.RemoveUnusedNodesPass()(model)
    for index, value in enumerate(first.values()):
        value.name = f"constant.{index}"


def _name_borders(
    graph: ir.Graph, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> None:
    """Inputs and outputs get the names and sizes of the contract, which export.check holds."""
    for values, specs in ((graph.inputs, inputs), (graph.outputs, outputs)):
        for value, spec in zip(values, specs, strict=True):
            value.name = spec.name
            value.shape = ir.Shape(spec.dims)


def _name_nodes(graph: ir.Graph) -> None:
    """Names that follow from the model: a weight's module, else the scope and the operator."""
    borders = {id(value) for value in graph.outputs}
    used: Counter[str] = Counter()
    for node in graph:
        base = _weight_module(node) or f"{_scope(node)}{node.op_type.lower()}"
        used[base] += 1
        node.name = base if used[base] == 1 else f"{base}.{used[base]}"
        for index, value in enumerate(node.outputs):
            if id(value) not in borders:
                value.name = f"{node.name}:{index}"
                value.type = value.shape = None  # its sizes bear the tracer's names


def _weight_module(node: ir.Node) -> str | None:
    """`decoder.layers.0.ffn.in_proj` for the MatMul, the same with .bias for the Add."""
    kind = {"MatMul": ".weight", "Add": ".bias", "LayerNormalization": ".weight"}
    suffix = kind.get(node.op_type)
    if suffix is None:
        return None
    for value in _weights(node):
        if value.name is not None and value.name.endswith(suffix):
            module = value.name.removesuffix(suffix)
            if module.endswith("embedding.tokens"):
                return "output"
            return f"{module}.bias" if suffix == ".bias" else module
    return None


def _weights(node: ir.Node) -> Iterator[ir.Value]:
    for value in node.inputs[1:]:
        if value is None:
            continue
        producer = value.producer()
        if producer is not None and producer.op_type == "Transpose" and producer.inputs[0]:
            value = producer.inputs[0]
        if value.is_initializer():
            yield value


def _scope(node: ir.Node) -> str:
    scopes = ast.literal_eval(node.metadata_props.get(_SCOPES, "['', '']"))
    inner = [scope for scope in scopes[:-1] if scope and not scope.startswith("_")]
    return f"{inner[-1]}." if inner else ""


def _strip(model: ir.Model, name: str) -> None:
    """Nothing of the machine, the exporter or the moment stays."""
    passes.ClearMetadataAndDocStringPass()(model)
    passes.RemoveUnusedFunctionsPass()(model)
    passes.RemoveUnusedOpsetsPass()(model)
    model.graph.name = name
    model.ir_version = IR_VERSION
    model.metadata_props.clear()
    model.graph.metadata_props.clear()
    for value in [*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values()]:
        value.metadata_props.clear()
    model.producer_name, model.producer_version = "leanseq", __version__
    model.domain, model.model_version, model.doc_string = None, None, None
