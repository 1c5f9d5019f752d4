"""Calls of fused operators: what they say they compute is what the nodes before them computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import onnx
import onnx_ir as ir
import onnxruntime
from support.bundles import Graphs
from support.graph_runs import Arrays, assert_close, encoder_feeds, load, static_feeds
from support.static_graphs import quantize_all, write_static

from export.cpu_static import blockwise_matmul
from export.cpu_static.convert import convert_encoder, convert_greedy, convert_step
from export.cpu_static.fused_operators import use_fused_operators
from runtime.manifest import Precision
from runtime.native_kernels import DOMAIN, use_native_kernels, why_not


def calls(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in model.graph if node.domain == DOMAIN)


def run(model: ir.Model, feeds: Mapping[str, np.ndarray], *, native: bool) -> Arrays:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if native:
        assert use_native_kernels(options)
    return run_with(ir.to_proto(model), feeds, options)


def run_with(
    model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], options: onnxruntime.SessionOptions
) -> Arrays:
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    wanted = {tensor.name for tensor in session.get_inputs()}
    found = session.run(names, {name: feeds[name].copy() for name in wanted})
    return dict(zip(names, found, strict=True))


@pytest.fixture(scope="module")
def qdq(random_graphs: Graphs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quantize_all(random_graphs, tmp_path_factory.mktemp("qdq"))["decoder_step"]


EXPECTED = {
    "fp32": {"SelfAttention": 2, "CrossAttention": 2, "AddNorm": 6, "BestCandidates": 1},
    "int8": {
        "EmbeddingQuantize": 1, "PackedSelfAttentionQuantize": 2, "CrossAttentionQuantize": 2,
        "AddNormQuantize": 6, "ReluQuantize": 2, "BestContinuations": 1,
    },
    "greedy": {
        "Embedding": 1, "PackedSelfAttention": 2, "CrossAttention": 2, "AddNorm": 6,
        "BestCandidates": 1,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", ["fp32", "int8", "greedy"])
def test_a_step_of_fused_operators_computes_the_same(
    random_graphs: Graphs, qdq: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blockwise_matmul, "BLOCK", 32)  # the model is small
    path = random_graphs.path("decoder_step") if kind == "fp32" else qdq
    step = convert_step(path, random_graphs.spec)
    if kind == "greedy":
        step = convert_greedy(step)
    fused = step.with_fused_operators()
    assert calls(fused) == EXPECTED[kind]
    assert not calls(step.model)  # it is left as it was
    feeds = static_feeds(random_graphs.spec, beams=1 if kind == "greedy" else 4)
    plain = run(step.model, feeds, native=False)
    inlined = run(fused, feeds, native=False)
    for name, array in plain.items():
        np.testing.assert_array_equal(inlined[name], array, err_msg=name)
    if not why_not():
        # In INT8 an activation may round the other way.
        assert_close(run(fused, feeds, native=True), plain, 2e-5 if kind == "fp32" else 0.05)


def test_a_processor_without_the_kernel_of_the_logits_has_that_of_the_candidates(
    random_graphs: Graphs, qdq: Path, tmp_path: Path
) -> None:
    """BestContinuations is put in the place of its call, and what it calls in its turn is run."""
    if why_not():
        pytest.skip(why_not())
    step = convert_step(qdq, random_graphs.spec)
    proto = ir.to_proto(step.with_fused_operators())
    for named in (*proto.functions, *proto.graph.node):
        for field in ("name", "op_type"):
            if getattr(named, field, "") == "BestContinuations":
                setattr(named, field, "BestContinuationsElsewhere")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 4
    assert use_native_kernels(options)
    feeds = static_feeds(random_graphs.spec, beams=4)
    found = run_with(proto, feeds, options)
    nodes = onnx.load(tmp_path / "optimized.onnx").graph.node
    operators = [node.op_type for node in nodes]
    assert "BestCandidates" in operators
    assert operators.count("MatMulIntegerToFloat") == step.int8_matmuls
    assert_close(found, run(step.model, feeds, native=False), 0.05)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_an_encoder_of_fused_operators_computes_the_same(
    random_graphs: Graphs, precision: Precision
) -> None:
    encoder = convert_encoder(random_graphs.path("encoder", precision))
    fused = encoder.with_fused_operators()
    quantized = "Quantize" if precision == "int8" else ""
    attention = "PackedEncoderAttentionQuantize" if quantized else "EncoderAttention"
    assert calls(fused)[attention] == 2
    assert calls(fused)[f"AddNorm{quantized}"] == 4
    assert calls(fused)["SplitHeads"] == 4
    feeds = encoder_feeds(random_graphs.spec)
    plain = run(encoder.model, feeds, native=False)
    inlined = run(fused, feeds, native=False)
    for name, array in plain.items():
        np.testing.assert_array_equal(inlined[name], array, err_msg=name)
    if not why_not():
        native = run(fused, feeds, native=True)
        assert_close(native, plain, 2e-5 if precision == "fp32" else 0.05)


def test_a_call_that_would_compute_something_else_stays(random_graphs: Graphs) -> None:
    """All layers share a function; here one masks with another value."""
    step = convert_step(random_graphs.path("decoder_step"), random_graphs.spec)
    odd = [node for node in step.model.graph if node.op_type == "MultiHeadAttention"][1]
    odd.attributes["mask_filter_value"] = ir.AttrFloat32("mask_filter_value", -50.0)
    use_fused_operators(step.model, flat_rows=True)
    assert calls(step.model)["CrossAttention"] == 1
    assert odd in list(step.model.graph)


def test_each_layer_has_an_epsilon_of_its_own(random_graphs: Graphs) -> None:
    step = convert_step(random_graphs.path("decoder_step"), random_graphs.spec)
    norms = [node for node in step.model.graph if node.op_type == "LayerNormalization"]
    norms[1].attributes["epsilon"] = ir.AttrFloat32("epsilon", 0.5)
    fused = step.with_fused_operators()
    assert calls(fused)["AddNorm"] == len(norms)
    feeds = static_feeds(random_graphs.spec, beams=2)
    plain = run(step.model, feeds, native=False)
    for native in (False, True) if not why_not() else (False,):
        assert_close(run(fused, feeds, native=native), plain, 2e-5)


def test_files_need_no_operators_but_onnx_runtimes(random_graphs: Graphs, tmp_path: Path) -> None:
    """The domain is defined in the file, so nobody has to have it."""
    for spec in write_static(random_graphs, tmp_path, "fp32"):
        assert spec.requires == ("com.microsoft",)
        model = load(tmp_path / spec.files[0])
        assert {domain for domain, _, _ in model.functions} == {DOMAIN}
