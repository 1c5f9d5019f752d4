from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.profile import StepShape, profile_bundle, profile_step, summarize
from runtime.bundle import Bundle
from runtime.errors import MissingExtraError

GOLDEN = Path(__file__).parents[1] / "golden" / "bundle-schema-1"


def event(
    node: int, operator: str, duration: int, inputs: list[list[int]], output: list[int]
) -> dict[str, object]:
    return {
        "cat": "Node",
        "name": f"node{node}_kernel_time",
        "dur": duration,
        "args": {
            "op_name": operator,
            "node_index": str(node),
            "input_type_shape": [{"float": shape} for shape in inputs],
            "output_type_shape": [{"float": output}],
        },
    }


def test_nodes_are_told_apart_and_each_counts_its_median() -> None:
    events: list[dict[str, object]] = []
    for slow in (1, 1, 50):  # the machine paused in the third run
        events += [
            event(0, "MatMul", 10 * slow, [[1, 4, 16]], [1, 4, 16]),  # a packed weight is no input
            event(1, "MatMul", 7, [[1, 4, 16], [16, 16]], [1, 4, 16]),
            event(2, "MatMul", 5, [[4, 2, 1, 8], [4, 2, 8, 9]], [4, 2, 1, 9]),  # attention
            event(3, "MatMul", 100, [[1, 4, 16]], [1, 4, 320]),
            event(4, "MatMulIntegerToFloat", 3, [[1, 4, 16], [16, 16]], [1, 4, 16]),
            event(5, "QuantizeLinear", 2, [[1, 4, 16]], [1, 4, 16]),
            event(6, "Softmax", 4, [[4, 2, 1, 9]], [4, 2, 1, 9]),
            {"cat": "Session", "name": "model_run", "dur": 1000, "args": {}},
        ]
    found = summarize(events, vocab_size=320)
    assert found.matmul_us == 10 + 7 + 3
    assert found.logits_us == 100
    assert found.quantize_us == 2
    assert found.step_us == 10 + 7 + 5 + 100 + 3 + 2 + 4


def test_profile_of_a_bundle_finds_its_matmuls() -> None:
    bundle = Bundle.open(GOLDEN)
    found = profile_bundle(bundle, StepShape(repeats=3))
    assert found["d_model"] == 16
    for precision in ("fp32", "int8"):
        values = found[precision]
        assert 0 < values["matmul_us"] < values["step_us"]
        assert values["logits_us"] > 0
    assert found["fp32"]["quantize_us"] == 0
    assert found["int8"]["quantize_us"] > 0


def test_without_onnxruntime_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    bundle = Bundle.open(GOLDEN)
    with pytest.raises(MissingExtraError, match=r"needs the package onnxruntime.*'\.\[cpu\]"):
        profile_step(GOLDEN / "decoder_step.fp32.onnx", bundle.manifest.model, "fp32")
