"""Graphs for CPUs as files: one table for both, the contract, the count, and what is left out."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import onnx
import onnx_ir as ir
from support.bundles import ROLES, Graphs
from support.static_graphs import quantize_all

from export.check import check_graph
from export.cpu_static import files
from export.cpu_static.files import write_static_graphs
from export.errors import ExportError
from export.graphs import OPSET
from runtime.manifest import Role


@pytest.fixture(scope="module")
def qdq(random_graphs: Graphs, tmp_path_factory: pytest.TempPathFactory) -> dict[Role, Path]:
    return quantize_all(random_graphs, tmp_path_factory.mktemp("qdq"))


def test_both_graphs_refer_to_one_table(
    random_graphs: Graphs, qdq: dict[Role, Path], tmp_path: Path
) -> None:
    specs = write_static_graphs(qdq, tmp_path, random_graphs.spec, "int8", opset=OPSET)
    weights = "weights.int8.cpu_static.onnx.data"
    assert [spec.files for spec in specs] == [
        (f"{role}.int8.cpu_static.onnx", weights) for role in ROLES
    ]
    size = random_graphs.spec.vocab_size * random_graphs.model.config.d_model
    content = (tmp_path / weights).read_bytes()
    table = ir.load(tmp_path / specs[0].files[0]).graph.initializers
    rows = table["encoder.embedding.tokens.weight.int8_rows"].const_value
    assert rows is not None
    assert content.count(rows.tobytes()) == 1
    for spec in specs:
        assert spec.variant == "cpu_static"
        assert spec.requires == ("com.microsoft",)
        model = onnx.load(tmp_path / spec.files[0], load_external_data=False)
        assert all(len(t.raw_data) < size for t in model.graph.initializer)
    assert [spec.int8_matmuls for spec in specs] == [12, 13]


def test_the_same_bytes_each_time(
    random_graphs: Graphs, qdq: dict[Role, Path], tmp_path: Path
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_static_graphs(qdq, tmp_path / name, random_graphs.spec, "int8", opset=OPSET)
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()


def test_a_form_that_does_not_fit_is_told_of_and_left_out(
    random_graphs: Graphs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = ir.load(random_graphs.path("decoder_step"))
    softmax = next(node for node in model.graph if node.op_type == "Softmax")
    softmax.op_type = "Hardmax"
    sources: dict[Role, Path] = {
        "encoder": random_graphs.path("encoder"),
        "decoder_step": tmp_path / "odd.onnx",
    }
    ir.save(model, sources["decoder_step"])
    (tmp_path / "out").mkdir()
    found = write_static_graphs(sources, tmp_path / "out", random_graphs.spec, "fp32", opset=OPSET)
    assert found == []
    assert list((tmp_path / "out").iterdir()) == []
    assert "cpu_static: no graphs in fp32" in caplog.text
    assert "is read by Hardmax, not by one Softmax" in caplog.text
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_matmul_that_does_not_run_in_int8_is_an_error(
    random_graphs: Graphs, qdq: dict[Role, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "count_fused_int8", lambda *_, **__: 15)
    with pytest.raises(ExportError, match="runs 15 MatMuls in INT8, the file holds 12, expected"):
        write_static_graphs(qdq, tmp_path, random_graphs.spec, "int8", opset=OPSET)


def test_a_portable_graph_is_not_of_this_variant(random_graphs: Graphs) -> None:
    path = random_graphs.path("decoder_step")
    with pytest.raises(ExportError, match="beam_width"):
        check_graph(
            path, "decoder_step", "fp32", random_graphs.spec, opset=OPSET, variant="cpu_static"
        )


def test_weights_and_scales_are_those_of_the_qdq_graph(
    random_graphs: Graphs, qdq: dict[Role, Path], tmp_path: Path
) -> None:
    """Nothing is quantized a second time: int8 weights and scales are the very same bytes."""
    write_static_graphs(qdq, tmp_path, random_graphs.spec, "int8", opset=OPSET)
    for role in ROLES:
        before = ir.load(qdq[role]).graph.initializers
        after = ir.load(tmp_path / f"{role}.int8.cpu_static.onnx").graph.initializers
        kept = [name for name in after if name.endswith((".weight.int8", ".scale"))]
        assert len(kept) > 20
        for name in kept:
            # Those of q, k and v lie beside each other.
            parts = [name.replace("qkv_proj", f"{part}_proj") for part in "qkv"]
            old = [content(before[part]) for part in dict.fromkeys(parts)]
            joined = np.concatenate(old, axis=-1) if len(old) > 1 else old[0]
            np.testing.assert_array_equal(joined, content(after[name]))


def content(value: ir.Value) -> np.ndarray:
    assert value.const_value is not None
    return value.const_value.numpy()
