"""What the exported files hold, and what exporting leaves alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

pytest.importorskip("torch")

import torch
from support.bundles import ROLES, Graphs, add_half, fp32_graphs
from support.tiny_model import random_transformer

from export import clean
from export import graphs as graphs_module
from export.check import check_graph, graph_spec
from export.errors import ExportError
from export.graphs import OPSET, export_decoder_step, export_encoder
from model.config import StackConfig
from runtime.manifest import Precision, Role
from runtime.options import SearchOptions
from runtime.search import search

ROOT = Path(__file__).parents[2]
SMALL = StackConfig(num_layers=1, num_heads=2, ffn_dim=16)


def initializers(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    model = onnx.load(path)
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8", "int8_fp16"])
@pytest.mark.parametrize("role", ROLES)
def test_graphs_keep_the_contract(random_graphs: Graphs, role: Role, precision: Precision) -> None:
    path = random_graphs.path(role, precision)
    spec = check_graph(path, role, precision, random_graphs.spec, opset=OPSET)
    assert spec.files == (path.name,)
    assert spec.requires == ()
    weights = {"encoder": 2 * 6 + 2 * 2, "decoder_step": 2 * 8}[role]
    assert spec.int8_matmuls == (weights if "int8" in precision else 0)
    assert spec == graph_spec(path, role, precision, int8_matmuls=spec.int8_matmuls)


def test_initializers_keep_their_names_and_values(random_graphs: Graphs) -> None:
    """Weights lie transposed; q's carry the attention scale; the tied table is there once."""
    state = random_graphs.model.state_dict()
    scale = random_graphs.model.config.scale_of_attention
    for role, needed in (("encoder", "encoder."), ("decoder_step", "decoder.")):
        found = initializers(random_graphs.path(role))
        for name, tensor in state.items():
            expected = tensor.numpy()
            if ".weight" in name and expected.ndim == 2 and "embedding" not in name:
                expected = expected.T
            if ".q_proj." in name:
                expected = expected * np.float32(scale)
            if name in found:
                np.testing.assert_array_equal(found[name], expected)
            elif name.startswith(needed):
                cross = role == "decoder_step" and (".k_proj." in name or ".v_proj." in name)
                assert cross, f"{role} lacks {name}"
        size = random_graphs.spec.vocab_size * random_graphs.model.config.d_model
        tables = [name for name, value in found.items() if value.size == size]
        assert tables == [f"{needed}embedding.tokens.weight"]


def test_matmuls_are_named_by_their_weights(random_graphs: Graphs) -> None:
    model = onnx.load(random_graphs.path("decoder_step"))
    by_name = {node.name: node for node in model.graph.node}
    assert len(by_name) == len(model.graph.node)
    for layer in range(2):
        for module in ("self_attention.q_proj", "cross_attention.out_proj", "ffn.in_proj"):
            node = by_name[f"decoder.layers.{layer}.{module}"]
            assert node.op_type == "MatMul"
            assert node.input[1] == f"decoder.layers.{layer}.{module}.weight"
    assert by_name["output"].op_type == "MatMul"


def test_decoder_step_is_short(random_graphs: Graphs) -> None:
    """42 nodes a layer and some 30 around them: each costs a microsecond at batch 1."""
    nodes = onnx.load(random_graphs.path("decoder_step")).graph.node
    assert len(nodes) <= 2 * 42 + 32
    shapes = [node for node in nodes if node.op_type in ("Shape", "Expand", "Squeeze", "Slice")]
    assert len(shapes) <= 2


def test_exporting_leaves_the_model_alone(tmp_path: Path) -> None:
    model = random_transformer(seed=2, encoder=SMALL, decoder=SMALL).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    export_encoder(model, tmp_path / "encoder.onnx")
    assert model.training
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert model.decoder.embedding.tokens.weight is model.encoder.embedding.tokens.weight


_EXPORT = """
import sys
from pathlib import Path
from support.tiny_model import random_transformer
from export.graphs import export_decoder_step, export_encoder
from model.config import StackConfig
small = StackConfig(num_layers=1, num_heads=2, ffn_dim=16)
model = random_transformer(encoder=small, decoder=small)
export_encoder(model, Path(sys.argv[1]))
export_decoder_step(model, Path(sys.argv[2]))
"""


@pytest.mark.slow
def test_two_exports_give_the_same_bytes(tmp_path: Path) -> None:
    """In one process and in another; and no path of the machine is in them."""
    model = random_transformer(encoder=SMALL, decoder=SMALL)
    paths = {role: tmp_path / f"{role}.onnx" for role in ROLES}
    exports = {"encoder": export_encoder, "decoder_step": export_decoder_step}
    written: dict[Role, bytes] = {}
    for role, path in paths.items():
        exports[role](model, path)
        written[role] = path.read_bytes()
    exports["decoder_step"](model, paths["decoder_step"])
    assert paths["decoder_step"].read_bytes() == written["decoder_step"]
    others = [str(tmp_path / f"other.{role}.onnx") for role in ROLES]
    subprocess.run(
        [sys.executable, "-c", _EXPORT, *others],
        check=True,
        cwd=tmp_path,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "PYTHONHASHSEED": "7", "PATH": "/usr/bin"},
    )
    for role, other in zip(ROLES, others, strict=True):
        assert Path(other).read_bytes() == written[role]
        for leftover in (b"site-packages", b".py", b"/home", str(ROOT).encode(), b"fx_node"):
            assert leftover not in written[role]


def test_large_weights_lie_beside_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, random_graphs: Graphs
) -> None:
    monkeypatch.setattr(clean, "EXTERNAL_DATA_BYTES", 1000)
    graphs = fp32_graphs(random_graphs.model, tmp_path)
    add_half(graphs, "fp32", "fp16")
    for role in ROLES:
        for precision in ("fp32", "fp16"):
            path = graphs.path(role, precision)
            spec = check_graph(path, role, precision, graphs.spec, opset=OPSET)
            assert spec.files == (path.name, f"{path.name}.data")
            assert path.stat().st_size < (tmp_path / spec.files[1]).stat().st_size
    options, sources = SearchOptions(max_length=8), [[5, 9, 30, 3], [77, 3]]
    found = search(graphs.open(), sources, options, graphs.special_ids)
    assert found == search(random_graphs.backend(), sources, options, graphs.special_ids)


def test_a_failing_exporter_is_told_in_plain_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, random_graphs: Graphs
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("no such operator\nand a long trace")

    monkeypatch.setattr(graphs_module.torch.export, "export", fail)
    with pytest.raises(
        ExportError,
        match=r"could not export the encoder graph: RuntimeError: no such operator; check",
    ):
        export_encoder(random_graphs.model, tmp_path / "encoder.onnx")
