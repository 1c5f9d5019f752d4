"""What `python -m benchmarks engines` builds and shows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.engines import rtx

pytest.importorskip("torch")

from benchmarks.engines import render
from runtime.console import run


def row(role: str, precision: str, weights: int, found: int, quantized: int) -> dict[str, Any]:
    return {
        "preset": "base",
        "role": role,
        "precision": precision,
        "target": "sm89",
        "seconds": 1.5,
        "plan_bytes": 3_000_000,
        "weights_bytes": weights,
        "activation_bytes": [1_000_000, 9_000_000],
        "gather_bytes": [500_000, 8_000_000],
        "quantized": quantized,
        "proof": {"proved": True, "int8": ["x"] * found},
    }


def test_the_table() -> None:
    record = {
        "engines": [
            row("encoder", "fp32", 100, 0, 0),
            row("decoder_step", "fp32", 100, 0, 0),
            row("encoder", "int8_fp16", 30, 48, 48),
            row("decoder_step", "int8_fp16", 50, 47, 48),
        ],
        "limits": {"max_batch": 32},
        "library": "tensorrt-rtx 1.7",
        "machine": {"cpu": "a CPU"},
        "date": "today",
    }
    text = render(record)
    assert "weights of both graphs, INT8+FP16 against FP32: base 0.400" in text
    assert "47/48" in text
    assert "tensorrt-rtx 1.7, sm89; a CPU, today" in text
    assert "Limits: max_batch 32." in text


@pytest.mark.slow
def test_engines_of_a_preset(capsys: pytest.CaptureFixture[str]) -> None:
    rtx()
    command = ["engines", "--preset", "tiny", "--target", "sm89", "--json"]
    assert run("benchmarks.cli:cli", command) == 0
    record = json.loads(capsys.readouterr().out)
    assert len(record["engines"]) == 2 * 3
    weights = {row["precision"]: row["weights_bytes"] for row in record["engines"]}
    assert weights["int8_fp16"] < 0.4 * weights["fp32"]
    for found in record["engines"]:
        assert len(found["proof"]["int8"]) == found["quantized"]
    assert "32/32" in render(record)


def test_an_unknown_preset(capsys: pytest.CaptureFixture[str]) -> None:
    rtx()
    assert run("benchmarks.cli:cli", ["engines", "--preset", "huge"]) == 2
    assert "unknown preset 'huge'" in capsys.readouterr().err
