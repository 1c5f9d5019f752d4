"""Each pass by itself: the graph computes the same before and after it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import onnx_ir as ir
from support.bundles import Graphs
from support.graph_runs import (
    Arrays,
    assert_close,
    encoder_feeds,
    load,
    operators,
    run_graph,
    static_feeds,
    step_feeds,
)

from export.cpu_static import blockwise_matmul, editing
from export.cpu_static.blockwise_matmul import use_blockwise_matmuls
from export.cpu_static.candidates import group_candidates
from export.cpu_static.convert import rows_of_one_token
from export.cpu_static.cross_attention import fuse_cross_attention
from export.cpu_static.editing import UnfitError, remove_unused
from export.cpu_static.embedding_table import quantize_embedding
from export.cpu_static.encoder_attention import fuse_encoder_attention
from export.cpu_static.integer_matmul import use_integer_matmuls
from export.cpu_static.joined_projections import join_projections
from export.cpu_static.one_beam import use_one_beam
from export.cpu_static.static_caches import use_static_caches
from runtime.manifest import Role

FP32 = 2e-5  # the same sums in another order


@pytest.mark.parametrize("role", ["encoder", "decoder_step"])
def test_integer_matmuls_compute_what_qdq_does(random_graphs: Graphs, role: Role) -> None:
    model = load(random_graphs.path(role, "int8"))
    spec = random_graphs.spec
    feeds = encoder_feeds(spec) if role == "encoder" else step_feeds(spec)
    expected = run_graph(model, feeds)
    before = operators(model)
    count = use_integer_matmuls(model.graph)
    after = operators(model)
    assert count == after.count("MatMulIntegerToFloat") > 10
    assert "DequantizeLinear" not in after
    # One for all MatMuls that read the same.
    assert after.count("QuantizeLinear") < before.count("QuantizeLinear")
    assert_close(run_graph(model, feeds), expected, 1e-4)


@pytest.mark.parametrize("role", ["encoder", "decoder_step"])
def test_joined_projections_compute_the_same_bits(random_graphs: Graphs, role: Role) -> None:
    spec, graph = random_graphs.spec, load(random_graphs.path(role, "int8"))
    use_integer_matmuls(graph.graph)
    if role == "encoder":
        fuse_encoder_attention(graph.graph)
        feeds = encoder_feeds(spec)
    else:
        rows_of_one_token(graph.graph)
        use_static_caches(graph.graph, spec, row_dims=3)
        group_candidates(graph.graph, spec.vocab_size)
        remove_unused(graph.graph)
        feeds = static_feeds(spec, beams=3)
    expected = run_graph(graph, feeds)
    before = operators(graph).count("MatMulIntegerToFloat")
    assert join_projections(graph.graph) == 2
    assert operators(graph).count("MatMulIntegerToFloat") == before - 4
    for name, array in run_graph(graph, feeds).items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


def test_projections_of_different_tensors_stay(random_graphs: Graphs) -> None:
    model = load(random_graphs.path("encoder", "int8"))
    use_integer_matmuls(model.graph)
    fuse_encoder_attention(model.graph)
    products = [node for node in model.graph if str(node.name).endswith("v_proj")]
    other = next(node for node in model.graph if node.op_type == "QuantizeLinear")
    products[1].replace_input_with(0, other.outputs[0])
    assert join_projections(model.graph) == 1


def test_every_scale_is_one_of_the_qdq_graph(random_graphs: Graphs) -> None:
    path = random_graphs.path("decoder_step", "int8")
    scales = {name for name in load(path).graph.initializers if name.endswith("scale")}
    model = load(path)
    use_integer_matmuls(model.graph)
    used = {
        value.name
        for node in model.graph
        if node.op_type in ("MatMulIntegerToFloat", "QuantizeLinear")
        for value in node.inputs
        if value is not None and value.name is not None and value.name.endswith("scale")
    }
    assert used == scales


def test_a_zero_point_other_than_0_is_refused(random_graphs: Graphs) -> None:
    model = load(random_graphs.path("decoder_step", "int8"))
    zero = model.graph.initializers["int8_zero_point"]
    zero.const_value = ir.tensor(np.array(3, dtype=np.int8), name="int8_zero_point")
    with pytest.raises(UnfitError, match="q_proj has a zero point other than 0"):
        use_integer_matmuls(model.graph)


def test_a_dequantize_that_is_left_is_refused(random_graphs: Graphs) -> None:
    model = load(random_graphs.path("decoder_step", "int8"))
    node = next(node for node in model.graph if node.op_type == "DequantizeLinear")
    add = next(node for node in model.graph if str(node.name).endswith("self_residual.add"))
    add.replace_input_with(0, node.outputs[0])
    with pytest.raises(UnfitError, match="dequantizes for something else than a MatMul"):
        use_integer_matmuls(model.graph)


@pytest.mark.parametrize("beams", [1, 3])
def test_cross_attention_fused(random_graphs: Graphs, beams: int) -> None:
    model = load(random_graphs.path("decoder_step"))
    feeds = step_feeds(random_graphs.spec, beams=beams)
    expected = run_graph(model, feeds)
    assert fuse_cross_attention(model.graph, random_graphs.spec, row_dims=2) == 2
    remove_unused(model.graph)
    assert operators(model).count("MultiHeadAttention") == 2
    assert operators(model).count("Softmax") == 2  # self-attention's
    assert_close(run_graph(model, feeds), expected, FP32)


def test_encoder_attention_fused(random_graphs: Graphs) -> None:
    model = load(random_graphs.path("encoder"))
    feeds = encoder_feeds(random_graphs.spec)
    expected = run_graph(model, feeds)
    assert fuse_encoder_attention(model.graph) == 2
    remove_unused(model.graph)
    assert "Softmax" not in operators(model)
    assert_close(run_graph(model, feeds), expected, FP32)


def candidate_feeds(feeds: Arrays) -> Arrays:
    """What the rewritten graph takes for the same step."""
    return feeds | {
        "sum_log_probs": feeds["sum_log_probs"][:, :, None],
        "num_candidates": np.array([2 * feeds["token_ids"].shape[1]]),
        "log_prob_sentences": np.array([len(feeds["token_ids"])]),
        "eos_bias": feeds["eos_bias"][0],
    }


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("beams", [1, 2, 5])
@pytest.mark.parametrize("ban_eos", [False, True])
def test_grouped_candidates(
    random_graphs: Graphs, precision: str, beams: int, ban_eos: bool
) -> None:
    model = load(random_graphs.path("decoder_step", precision))  # type: ignore[arg-type]
    feeds = step_feeds(random_graphs.spec, beams=beams)
    feeds["eos_bias"][:] = -1e9 if ban_eos else 0.0
    feeds["sum_log_probs"][0, 1:] = -np.inf  # the first step of a sentence
    expected = run_graph(model, feeds)
    group_candidates(model.graph, random_graphs.spec.vocab_size)
    remove_unused(model.graph)
    assert_close(run_graph(model, candidate_feeds(feeds)), expected, 1e-5)


def test_grouped_candidates_order_ties_as_the_contract_does(random_graphs: Graphs) -> None:
    """Every row of the table is there some six times, in several groups: as often is every
    logit."""
    model = load(random_graphs.path("decoder_step"))
    size = random_graphs.spec.vocab_size
    name = "decoder.embedding.tokens.weight"
    weight = model.graph.initializers[name]
    assert weight.const_value is not None
    table = weight.const_value.numpy()[8 + np.arange(size) % 70]
    weight.const_value = ir.tensor(table, name=name)
    feeds = step_feeds(random_graphs.spec, beams=3)
    feeds["sum_log_probs"][:, 1] = feeds["sum_log_probs"][:, 0]
    expected = run_graph(model, feeds)
    assert any(len(np.unique(row)) < len(row) for row in expected["scores"])
    group_candidates(model.graph, size)
    remove_unused(model.graph)
    found = run_graph(model, candidate_feeds(feeds))
    for output in ("scores", "candidate_ids", "parents"):
        np.testing.assert_array_equal(found[output], expected[output])


def test_a_vocabulary_that_is_no_multiple_of_a_group_is_refused(random_graphs: Graphs) -> None:
    model = load(random_graphs.path("decoder_step"))
    with pytest.raises(UnfitError, match="the vocabulary has 100 ids, no multiple of 64"):
        group_candidates(model.graph, 100)


def test_a_vocabulary_of_one_group_is_refused(random_graphs: Graphs) -> None:
    """K rows of one group are K groups, and 2K are asked for."""
    model = load(random_graphs.path("decoder_step"))
    with pytest.raises(UnfitError, match="the vocabulary has 64 ids: fewer groups than candidates"):
        group_candidates(model.graph, 64)


@pytest.mark.parametrize(("beams", "length"), [(1, 0), (1, 6), (3, 0), (3, 1), (4, 9)])
def test_static_caches(random_graphs: Graphs, beams: int, length: int) -> None:
    """The rows that beam_indices picks are found by indirection, and one position is written."""
    spec = random_graphs.spec
    model = load(random_graphs.path("decoder_step"))
    feeds = step_feeds(spec, beams=beams, length=length)
    batch = len(feeds["token_ids"])
    rng = np.random.default_rng(2)
    beam_indices = rng.integers(0, beams, (batch, beams))
    feeds["beam_indices"] = (
        (np.arange(batch)[:, None] * beams + beam_indices).astype(np.int32).ravel()
    )
    expected = run_graph(model, feeds)
    use_static_caches(model.graph, spec, row_dims=2)
    remove_unused(model.graph)
    room = length + 4
    static = feeds | {
        "position": np.array([length], dtype=np.int32),
        "beam_width": np.array([beams], dtype=np.int32),
        "cache_indirection": np.repeat(beam_indices[:, :, None], room, axis=2).astype(np.int32),
    }
    for name in [name for name in feeds if name.startswith("self_")]:
        rows, heads, _, head_dim = feeds[name].shape
        static[name] = np.full((rows, heads, room, head_dim), np.nan, dtype=np.float32)
        static[name][:, :, :length] = feeds[name]
    found = run_graph(model, static)
    rows = feeds["beam_indices"]
    for name in [name for name in expected if name.startswith("next_")]:
        cache = found.pop(name)
        np.testing.assert_array_equal(cache[:, :, :length], static[name[5:]][:, :, :length])
        assert np.isnan(cache[:, :, length + 1 :]).all()
        grown = np.concatenate([cache[rows, :, :length], cache[:, :, length : length + 1]], axis=2)
        np.testing.assert_allclose(grown, expected.pop(name), atol=FP32)
    assert_close(found, expected, FP32)


@pytest.mark.parametrize("ban_eos", [False, True])
@pytest.mark.parametrize("ties", [False, True])
def test_one_beam(random_graphs: Graphs, int8_logits: Path, ban_eos: bool, ties: bool) -> None:
    """Bit for bit what the graph for beams computes of one, with far fewer nodes. ties: of every
    logit there are some six."""
    spec = random_graphs.spec
    models = [load(int8_logits), load(int8_logits)]
    for model in models:
        if ties:
            name = "decoder.embedding.tokens.weight.int8"
            weight = model.graph.initializers[name]
            assert weight.const_value is not None
            columns = weight.const_value.numpy()[:, 8 + np.arange(spec.vocab_size) % 70]
            weight.const_value = ir.tensor(columns, name=name)
            name = "decoder.embedding.tokens.weight.scale"
            model.graph.initializers[name].const_value = ir.tensor(
                np.full(spec.vocab_size, 0.01, dtype=np.float32), name=name
            )
        use_integer_matmuls(model.graph)
        rows_of_one_token(model.graph)
        use_static_caches(model.graph, spec, row_dims=3)
        fuse_cross_attention(model.graph, spec, row_dims=3)
        group_candidates(model.graph, spec.vocab_size)
        remove_unused(model.graph)
    use_one_beam(models[1].graph)
    nodes = [operators(model) for model in models]
    assert len(nodes[1]) < len(nodes[0]) - 20
    assert nodes[1].count("TopK") == 1
    feeds = candidate_feeds(step_feeds(spec, beams=1, length=4))
    feeds["eos_bias"] = np.full(1, -1e9 if ban_eos else 0.0, dtype=np.float32)
    feeds |= {
        "position": np.array([3], dtype=np.int32),
        "beam_width": np.array([1], dtype=np.int32),
        "cache_indirection": np.zeros((len(feeds["token_ids"]), 1, 4), dtype=np.int32),
    }
    expected, found = (run_graph(model, feeds) for model in models)
    if ties:
        assert (expected["scores"][:, 0] == expected["scores"][:, 1]).any()
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_the_embedding_table_is_int8_and_the_logits_read_it(
    random_graphs: Graphs, int8_logits: Path
) -> None:
    """The same as with a float table that holds what the int8 one stands for."""
    model, reference = load(int8_logits), load(int8_logits)
    use_integer_matmuls(model.graph)
    use_integer_matmuls(reference.graph)
    table = quantize_embedding(model.graph)
    assert table is not None
    assert table.const_value is not None
    name = "decoder.embedding.tokens.weight"
    scales = reference.graph.initializers[f"{name}.scale"].const_value
    assert scales is not None
    rounded = table.const_value.numpy().astype(np.float32) * scales.numpy()[:, None]
    reference.graph.initializers[name].const_value = ir.tensor(rounded, name=name)
    remove_unused(model.graph)
    tables = [v for v in model.graph.initializers.values() if _size(v) == rounded.size]
    assert [value.name for value in tables] == [f"{name}.int8_rows"]
    feeds = step_feeds(random_graphs.spec)
    assert_close(run_graph(model, feeds), run_graph(reference, feeds), 1e-4)


def test_blockwise_products_are_those_of_the_same_weights(
    random_graphs: Graphs, int8_logits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Activations are rounded elsewhere; the weights, the table and their scales are the same. By
    the float products of the same weights they err no more than the integer products do."""
    monkeypatch.setattr(blockwise_matmul, "BLOCK", 32)
    exact, static, blockwise = load(int8_logits), load(int8_logits), load(int8_logits)
    for node in list(exact.graph):  # float products of the rounded weights
        if node.op_type == "MatMul" and str(node.name) + ".weight_dequantized" in {
            str(made.name) for made in exact.graph
        }:
            quantize = editing.made_by(
                editing.made_by(node.inputs[0], "DequantizeLinear").inputs[0], "QuantizeLinear"
            )
            node.replace_input_with(0, quantize.inputs[0])
    remove_unused(exact.graph)
    use_integer_matmuls(static.graph)
    count = use_integer_matmuls(blockwise.graph)
    quantize_embedding(blockwise.graph)
    quantize_embedding(static.graph)
    quantize_embedding_of(exact, static)
    assert use_blockwise_matmuls(blockwise.graph) == count == 17
    found = operators(blockwise)
    assert found.count("MatMulNBits") == count
    assert not {"MatMulIntegerToFloat", "QuantizeLinear"} & set(found)
    feeds = step_feeds(random_graphs.spec)
    expected = run_graph(exact, feeds)["log_probs"]
    errors = [
        np.abs(run_graph(model, feeds)["log_probs"] - expected).mean()
        for model in (blockwise, static)
    ]
    assert 0 < errors[0] <= errors[1]


def quantize_embedding_of(model: ir.Model, other: ir.Model) -> None:
    """Gives a graph with a float embedding the rounded one of another."""
    name = "decoder.embedding.tokens.weight"
    rows = other.graph.initializers[f"{name}.int8_rows"].const_value
    scales = model.graph.initializers[f"{name}.scale"].const_value
    assert rows is not None
    assert scales is not None
    rounded = rows.numpy().astype(np.float32) * scales.numpy()[:, None]
    model.graph.initializers[name].const_value = ir.tensor(rounded, name=name)


def test_sizes_that_are_no_multiple_of_a_block_are_refused(int8_logits: Path) -> None:
    model = load(int8_logits)
    use_integer_matmuls(model.graph)
    with pytest.raises(UnfitError, match="q_proj sums over 32 products, no multiple of 64"):
        use_blockwise_matmuls(model.graph)


def test_a_table_that_makes_float_logits_stays_float(random_graphs: Graphs) -> None:
    model = load(random_graphs.path("decoder_step", "int8"))
    use_integer_matmuls(model.graph)
    assert quantize_embedding(model.graph) is None


def test_what_is_not_there_is_named(random_graphs: Graphs) -> None:
    graph = load(random_graphs.path("encoder")).graph
    with pytest.raises(UnfitError, match="there is no input position"):
        editing.input_named(graph, "position")
    with pytest.raises(UnfitError, match="there is no output scores"):
        editing.output_index(graph, "scores")
    with pytest.raises(UnfitError, match="src_ids is not constant"):
        editing.array_of(editing.input_named(graph, "src_ids"))
    with pytest.raises(UnfitError, match="src_ids is made by nothing, not by Add"):
        editing.made_by(editing.input_named(graph, "src_ids"), "Add")
    with pytest.raises(UnfitError, match="src_ids is read by Gather, not by one Add"):
        editing.used_by(editing.input_named(graph, "src_ids"), "Add")


def _size(value: ir.Value) -> int:
    return 0 if value.const_value is None else value.const_value.size
