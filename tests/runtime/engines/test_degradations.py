"""What TensorRT drops silently, planted one by one into a real graph, built, and caught by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from support.bundles import Graphs
from support.degraded_graphs import activation_only, fused_qkv, scale_on_wrong_axis, weight_only
from support.engines import build_and_prove, rtx

from runtime.errors import ProofError

ATTENTION = "encoder.layers.0.self_attention"
SQUARE = f"{ATTENTION}.out_proj"
MATMULS = 2 * 6 + 2 * 2  # of the encoder: its layers', and cross k and v of each decoder layer

Degrade = Callable[[Path, Path], Path]


def degraded(function: Any, **arguments: Any) -> Degrade:
    return partial(function, **arguments)


CAUGHT = {
    "scale_on_wrong_axis": (
        degraded(scale_on_wrong_axis, matmul=SQUARE),
        MATMULS,
        rf"MatMul {SQUARE} is quantized but not compiled as INT8 in profile 0: it is in \S*Fc",
    ),
    "activation_only": (
        degraded(activation_only, matmul=SQUARE),
        MATMULS,
        rf"MatMul {SQUARE} has no Q/DQ on its weight",
    ),
    "weight_only": (
        degraded(weight_only, matmul=SQUARE),
        MATMULS,
        rf"MatMul {SQUARE} has no Q/DQ on its activation",
    ),
    "fused_qkv": (
        degraded(fused_qkv, attention=ATTENTION, layout="reshaped"),
        MATMULS - 2,
        r"MatMul qkv is quantized but not compiled as INT8 in profile 0: .* inputs Half",
    ),
    "batched_qkv": (
        degraded(fused_qkv, attention=ATTENTION, layout="batched"),
        MATMULS - 2,
        r"MatMul qkv is quantized but not compiled as INT8 in profile 1: .* constants Float",
    ),
    "another_number_than_promised": (
        degraded(fused_qkv, attention=ATTENTION, layout="columns"),
        MATMULS,
        rf"has {MATMULS - 2} quantized MatMuls as TensorRT reads it, expected {MATMULS}",
    ),
}


@pytest.mark.parametrize("name", CAUGHT)
def test_a_silent_degradation_is_caught(name: str, random_graphs: Graphs, tmp_path: Path) -> None:
    rtx()
    degrade, expected, text = CAUGHT[name]
    path = degrade(random_graphs.path("encoder", "int8_fp16"), tmp_path / "encoder.onnx")
    build = tmp_path / "build"
    build.mkdir()
    with pytest.raises(ProofError, match=text):
        build_and_prove(path, "encoder", random_graphs.spec, build, expected=expected)
    assert (build / "plan").stat().st_size > 0  # TensorRT itself was content


def test_a_fusion_that_keeps_int8_is_not_caught(random_graphs: Graphs, tmp_path: Path) -> None:
    rtx()
    source = random_graphs.path("encoder", "int8_fp16")
    path = fused_qkv(source, tmp_path / "encoder.onnx", ATTENTION, "columns")
    build = tmp_path / "build"
    build.mkdir()
    proof = build_and_prove(path, "encoder", random_graphs.spec, build, expected=MATMULS - 2)
    assert "qkv" in proof.int8
