"""The score functions of the history, as graphs: FP32 and INT8 against the eager model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np
import onnx
import pytest
from support.bundles import ROLES, Graphs, add_half, add_int8, fp32_graphs
from support.steps import assert_same_steps, some_sources
from support.tiny_model import random_transformer

from calibration.fused import count_fused_int8
from export.check import check_graph
from export.graphs import OPSET
from export.parity import check_parity
from model.config import CrossScore, StackConfig
from runtime.manifest import Precision
from runtime.options import SearchOptions
from runtime.search import search

NAMES: list[CrossScore] = [name for name in get_args(CrossScore) if name != "scaled_dot"]
STEP_MATMULS = {"dot": 7, "general": 7, "concat": 8, "additive": 8}  # a layer
ENCODER_MATMULS = {"dot": 1, "general": 2, "concat": 2, "additive": 2}  # cross, a decoder layer


@dataclass(frozen=True)
class Exported:
    """Graphs of 1+2 layers, d 32, in all four precisions."""

    name: CrossScore
    graphs: Graphs


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=[pytest.mark.slow] if name in ("general", "concat") else [])
        for name in NAMES
    ],
)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    model = random_transformer(
        seed=3,
        cross_score=request.param,
        norm="pre",
        encoder=StackConfig(num_layers=1, num_heads=4, ffn_dim=40),
        decoder=StackConfig(num_layers=2, num_heads=4, ffn_dim=40),
    )
    graphs = fp32_graphs(model, tmp_path_factory.mktemp(request.param))
    add_int8(graphs, some_sources(np.random.default_rng(0), [4, 2, 7, 5, 9, 3, 12, 6], 300))
    add_half(graphs, "fp32", "fp16")
    add_half(graphs, "int8", "int8_fp16")
    return Exported(request.param, graphs)


def test_onnxruntime_matches_eager_every_step(exported: Exported) -> None:
    graphs = exported.graphs
    for lengths in ([5], [4, 1, 12, 7]):
        sources = some_sources(np.random.default_rng(1), lengths, 300)
        assert_same_steps(graphs.eager(), graphs.backend(), steps=9, sources=sources)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8", "int8_fp16"])
def test_graphs_keep_the_contract(exported: Exported, precision: Precision) -> None:
    matmuls = {
        "encoder": 6 + 2 * ENCODER_MATMULS[exported.name],
        "decoder_step": 2 * STEP_MATMULS[exported.name],
    }
    for role in ROLES:
        path = exported.graphs.path(role, precision)
        spec = check_graph(path, role, precision, exported.graphs.spec, opset=OPSET)
        assert spec.int8_matmuls == (matmuls[role] if "int8" in precision else 0)


def test_every_weight_matmul_runs_in_int8(exported: Exported) -> None:
    for role, layers in (("encoder", ENCODER_MATMULS), ("decoder_step", STEP_MATMULS)):
        expected = 2 * layers[exported.name] + (6 if role == "encoder" else 0)
        assert count_fused_int8(exported.graphs.path(role, "int8")) == expected


def test_onnxruntime_int8_matches_eager_searches(exported: Exported) -> None:
    """As close as a build asks for; of random weights the model is not sure of anything."""
    graphs = exported.graphs
    sources = some_sources(np.random.default_rng(2), [3, 8, 5, 11, 2, 6], 300)
    options = SearchOptions(max_length=12)
    report = check_parity(
        graphs.eager(), graphs.backend("int8"), sources, graphs.special_ids, options=options
    )
    assert report.passed, report.problems


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_onnxruntime_rows_are_the_same_in_any_batch(
    exported: Exported, precision: Precision
) -> None:
    """Alone, and beside one of the model's limit: bit for bit."""
    graphs, generator = exported.graphs, np.random.default_rng(4)
    sources = some_sources(generator, [1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64], 300)
    options = SearchOptions(beam_size=3, min_length=6, max_length=10)
    backend = graphs.backend(precision)
    together = search(backend, sources, options, graphs.special_ids)
    alone = [search(backend, [source], options, graphs.special_ids)[0] for source in sources]
    assert together == alone


def test_the_source_side_is_multiplied_once_a_sentence(exported: Exported) -> None:
    """What stands beside h is in the encoder's graph, the rest in the step's."""
    weights = {
        role: {tensor.name for tensor in onnx.load(exported.graphs.path(role)).graph.initializer}
        for role in ROLES
    }
    score = "decoder.layers.1.cross_attention.score."
    found = {
        role: {name.removeprefix(score) for name in names if name.startswith(score)}
        for role, names in weights.items()
    }
    tanh = {"v", "query_proj.weight", "query_proj.bias"}
    expected: dict[CrossScore, tuple[set[str], set[str]]] = {
        "dot": (set(), set()),
        "general": ({"key_proj.weight"}, set()),
        "concat": ({"key_proj.weight"}, tanh),
        "additive": ({"key_proj.weight"}, tanh),
    }
    assert (found["encoder"], found["decoder_step"]) == expected[exported.name]
