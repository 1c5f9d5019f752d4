"""Which MatMuls of a graph become INT8: those that multiply activations by a constant weight.

Products of activations (attention scores and contexts) have no weight and stay float. So do
LayerNorm, softmax and the residual adds: they are not MatMuls.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from calibration.errors import CalibrationError
from runtime.graph_contract import LOG_PROBS
from runtime.manifest import Role


@dataclass(frozen=True, kw_only=True)
class WeightMatMul:
    """activation [...,I] x weight [I,O] -> [...,O].

    name: the node's. activation, weight: names of a tensor and of an initializer. transposed: the
    initializer is [O,I] and a Transpose stands between. is_logits: it makes the logits.
    """

    name: str
    activation: str
    weight: str
    transposed: bool
    is_logits: bool


def role_of(model: onnx.ModelProto) -> Role:
    """Which of the two graphs this is."""
    outputs = {output.name for output in model.graph.output}
    return "decoder_step" if LOG_PROBS in outputs else "encoder"


def find_weight_matmuls(model: onnx.ModelProto) -> tuple[WeightMatMul, ...]:
    """In graph order. Raises CalibrationError when there is none, or when two share a name."""
    initializers = {tensor.name for tensor in model.graph.initializer}
    makers = {name: node for node in model.graph.node for name in node.output}
    logits = _logits_node(model, makers, initializers)
    found = []
    for node in model.graph.node:
        weight = _weight_of(node, makers, initializers)
        if weight is not None:
            found.append(
                WeightMatMul(
                    name=node.name,
                    activation=node.input[0],
                    weight=weight[0],
                    transposed=weight[1],
                    is_logits=node.output[0] == logits,
                )
            )
    names = {matmul.name for matmul in found}
    if not found:
        raise CalibrationError(
            "the graph has no MatMul with a constant weight; expected a float graph made by "
            "`python -m export build`, not one that is quantized or optimized already"
        )
    if len(names) < len(found) or "" in names:
        raise CalibrationError(
            "some MatMuls of the graph share a name or have none; expected one name each, as "
            "`python -m export build` gives them"
        )
    return tuple(found)


def _weight_of(
    node: onnx.NodeProto, makers: dict[str, onnx.NodeProto], initializers: set[str]
) -> tuple[str, bool] | None:
    """(initializer, transposed) if this is a MatMul of an activation and a constant weight."""
    if node.op_type != "MatMul" or node.domain or node.input[0] in initializers:
        return None
    second = node.input[1]
    if second in initializers:
        return second, False
    maker = makers.get(second)
    if maker is not None and maker.op_type == "Transpose" and maker.input[0] in initializers:
        perm = next((list(a.ints) for a in maker.attribute if a.name == "perm"), [1, 0])
        if perm == [1, 0]:
            return maker.input[0], True
    return None


def _logits_node(
    model: onnx.ModelProto, makers: dict[str, onnx.NodeProto], initializers: set[str]
) -> str | None:
    """The output of the first weight MatMul met on the way back from log_probs."""
    if role_of(model) == "encoder":
        return None
    waiting, seen = [LOG_PROBS], set()
    while waiting:
        name = waiting.pop(0)
        node = makers.get(name)
        if node is None or node.op_type == "Gemm" or name in seen:
            continue
        seen.add(name)
        if _weight_of(node, makers, initializers) is not None:
            return name
        waiting.extend(node.input)
    return None
