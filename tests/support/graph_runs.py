"""Graphs in memory, run as they are: what a pass leaves alone and what it changes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime

from runtime.manifest import ModelSpec

Arrays = dict[str, npt.NDArray[Any]]


def load(path: Path) -> ir.Model:
    return ir.load(path)


def run_graph(model: ir.Model, feeds: Mapping[str, npt.NDArray[Any]]) -> Arrays:
    """All outputs by name. Feeds that the graph has no input for are left out."""
    if any(node.domain == "com.microsoft" for node in model.graph):
        model.opset_imports["com.microsoft"] = 1
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(),
        options,
        providers=["CPUExecutionProvider"],
        disabled_optimizers=["CommonSubexpressionElimination", "MatMulAddFusion"],
    )
    names = [output.name for output in session.get_outputs()]
    wanted = {tensor.name for tensor in session.get_inputs()}
    return dict(zip(names, session.run(names, {n: feeds[n] for n in wanted}), strict=True))


def static_feeds(spec: ModelSpec, *, beams: int, position: int = 3, batch: int = 3) -> Arrays:
    """A step of the static contract: random caches of 9 positions, sources of 7 tokens."""
    rng = np.random.default_rng(beams)
    heads, size, room, source = spec.num_heads, spec.head_dim, 9, 7
    indirection = np.zeros((batch, beams, room), dtype=np.int32)
    indirection[:, :, :position] = rng.integers(0, beams, (batch, beams, position))
    feeds: Arrays = {
        "token_ids": rng.integers(4, 40, (batch, beams)).astype(np.int32),
        "position": np.array([position], dtype=np.int32),
        "beam_width": np.array([beams], dtype=np.int32),
        "cache_indirection": indirection,
        "src_mask": np.arange(source) < np.array([[7], [5], [2]])[:batch],
        "sum_log_probs": rng.normal(-5, 2, (batch, beams, 1)).astype(np.float32),
        "num_candidates": np.array([2 * beams]),
        "log_prob_sentences": np.array([batch]),
        "eos_bias": np.zeros(1, dtype=np.float32),
    }
    for layer in range(spec.decoder_layers):
        for kind, shape in (
            ("self", (batch * beams, heads, room, size)),
            ("cross", (batch, heads, source, size)),
        ):
            for part in "kv":
                values = rng.normal(size=shape).astype(np.float32)
                feeds[f"{kind}_{part}.{layer}"] = values
    return feeds


def step_feeds(
    spec: ModelSpec,
    *,
    batch: int = 3,
    beams: int = 4,
    source: int = 7,
    length: int = 5,
    seed: int = 0,
) -> Arrays:
    """Random inputs of the portable step: no two rows alike, padding in all sentences but one."""
    rng = np.random.default_rng(seed)
    rows = batch * beams
    lengths = np.maximum(1, source - np.arange(batch))
    feeds: Arrays = {
        "token_ids": rng.integers(4, spec.vocab_size - 64, (batch, beams)).astype(np.int32),
        "position": np.full((batch, 1), length, dtype=np.int32),
        "beam_indices": rng.permutation(rows).astype(np.int32),
        "src_mask": np.arange(source) < lengths[:, None],
        "sum_log_probs": rng.normal(-5, 2, (batch, beams)).astype(np.float32),
        "eos_bias": np.zeros((batch, 1), dtype=np.float32),
    }
    for layer in range(spec.decoder_layers):
        for kind in ("k", "v"):
            shape = (rows, spec.num_heads, length, spec.head_dim)
            feeds[f"self_{kind}.{layer}"] = rng.standard_normal(shape).astype(np.float32)
            shape = (batch, spec.num_heads, source, spec.head_dim)
            feeds[f"cross_{kind}.{layer}"] = rng.standard_normal(shape).astype(np.float32)
    return feeds


def encoder_feeds(spec: ModelSpec, *, batch: int = 3, source: int = 8) -> Arrays:
    rng = np.random.default_rng(1)
    lengths = np.maximum(1, source - np.arange(batch))
    return {
        "src_ids": rng.integers(4, spec.vocab_size - 64, (batch, source)).astype(np.int32),
        "src_mask": np.arange(source) < lengths[:, None],
    }


def assert_close(found: Arrays, expected: Arrays, tolerance: float) -> None:
    """The same outputs, floats within a tolerance, the rest equal."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].shape == value.shape, name
        if value.dtype == np.float32:
            np.testing.assert_allclose(found[name], value, atol=tolerance, rtol=1e-5, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], value, err_msg=name)


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]
