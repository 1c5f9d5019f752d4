"""Small ONNX graphs made by hand: what calibration must find, and what it must leave alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH, VOCAB = 16, 24


def attention_graph() -> onnx.ModelProto:
    """x [B,S,16] -> q, k, v MatMuls with weights, two products of activations, an output MatMul.

    The output weight is stored [O,I], behind a Transpose; another Transpose makes the output.
    """
    nodes = [
        *_linear("q", "x"),
        *_linear("k", "x"),
        *_linear("v", "x"),
        helper.make_node("Transpose", ["k"], ["k_t"], name="k_t", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "k_t"], ["scores"], name="scores"),
        helper.make_node("Softmax", ["scores"], ["weights"], name="weights", axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["context"], name="context"),
        helper.make_node("Transpose", ["out.weight"], ["out_t"], name="out_t", perm=[1, 0]),
        helper.make_node("MatMul", ["context", "out_t"], ["product"], name="out"),
        helper.make_node("Transpose", ["product"], ["y"], name="y", perm=[0, 1, 2]),
    ]
    weights = [*_weights("q", "k", "v"), ("out.weight", _values(9, WIDTH, WIDTH))]
    return _model(nodes, weights, "y", ["B", "S", WIDTH])


def logits_graph(*, tied: bool = False) -> onnx.ModelProto:
    """x -> one hidden MatMul -> logits MatMul -> log_probs. tied: the table is read twice."""
    nodes = [
        *_linear("hidden", "x"),
        helper.make_node("Transpose", ["table"], ["table_t"], name="table_t", perm=[1, 0]),
        helper.make_node("MatMul", ["hidden", "table_t"], ["logits"], name="logits"),
        helper.make_node("LogSoftmax", ["logits"], ["log_probs"], name="log_softmax", axis=-1),
    ]
    weights = [*_weights("hidden"), ("table", _values(5, VOCAB, WIDTH))]
    model = _model(nodes, weights, "log_probs", ["B", "S", VOCAB])
    if tied:
        ids = numpy_helper.from_array(np.zeros(1, dtype=np.int64), "ids")
        model.graph.initializer.append(ids)
        model.graph.node.append(helper.make_node("Gather", ["table", "ids"], ["row"], name="row"))
        model.graph.output.append(helper.make_tensor_value_info("row", 1, [1, WIDTH]))
    return model


def save(model: onnx.ModelProto, path: Path) -> Path:
    onnx.save(model, path)
    return path


def _linear(name: str, x: str) -> list[onnx.NodeProto]:
    return [
        helper.make_node("MatMul", [x, f"{name}.weight"], [f"{name}.product"], name=name),
        helper.make_node("Add", [f"{name}.product", f"{name}.bias"], [name], name=f"{name}.add"),
    ]


def _weights(*names: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for seed, name in enumerate(names):
        found.append((f"{name}.weight", _values(seed, WIDTH, WIDTH)))
        found.append((f"{name}.bias", _values(seed + 100, WIDTH)))
    return found


def _values(seed: int, *shape: int) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) / 4).astype(np.float32)


def _model(
    nodes: list[onnx.NodeProto], weights: list[tuple[str, Any]], output: str, dims: list[str | int]
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "hand_made",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", "S", WIDTH])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, dims)],
        [numpy_helper.from_array(values, name) for name, values in weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model)
    return model
