"""Every way in which a file can fail to be the graph that the contract describes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

pytest.importorskip("torch")

from support.bundles import Graphs

from export.check import check_graph, graph_spec
from export.errors import ExportError


def rename_input(model: onnx.ModelProto) -> None:
    model.graph.input[0].name = "ids"
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            if name == "src_ids":
                node.input[index] = "ids"


def retype_output(model: onnx.ModelProto) -> None:
    model.graph.output[1].type.tensor_type.shape.dim[3].dim_value = 0
    model.graph.output[1].type.tensor_type.shape.dim[3].dim_param = "Dh"


def raise_opset(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 21


def add_domain(model: onnx.ModelProto) -> None:
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))


def document_node(model: onnx.ModelProto) -> None:
    model.graph.node[3].doc_string = "File somewhere.py, line 3"


def add_metadata(model: onnx.ModelProto) -> None:
    model.graph.node[3].metadata_props.add(key="trace", value="File somewhere.py")


def orphan_input(model: onnx.ModelProto) -> None:
    """src_mask is read by nothing: a constant stands where it was used."""
    mask = helper.make_tensor("always", TensorProto.BOOL, [1, 1], [True])
    model.graph.initializer.append(mask)
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            if name == "src_mask":
                node.input[index] = "always"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (rename_input, r"inputs lack \['src_ids'\], have \['ids'\] too many"),
        (retype_output, r"output cross_v.0 is float32 \['B', 4, 'S', 'Dh'\], expected float32"),
        (raise_opset, "opset 21, expected 20"),
        (add_domain, "operators of com.microsoft, expected plain ONNX"),
        (document_node, "documentation texts of the exporter are left"),
        (add_metadata, "metadata of the exporter is left"),
        (orphan_input, "input src_mask is used by no node"),
    ],
)
def test_what_differs_from_the_contract_is_named(
    random_graphs: Graphs,
    tmp_path: Path,
    change: Callable[[onnx.ModelProto], None],
    text: str,
) -> None:
    model = onnx.load(random_graphs.path("encoder"))
    change(model)
    path = tmp_path / "encoder.fp32.onnx"
    onnx.save(model, path)
    with pytest.raises(ExportError, match=text) as caught:
        check_graph(path, "encoder", "fp32", random_graphs.spec, opset=20)
    assert "encoder.fp32.onnx is not the encoder graph of the contract" in str(caught.value)
    assert "rebuild it" in str(caught.value)


def test_an_invalid_model_is_refused(random_graphs: Graphs, tmp_path: Path) -> None:
    model = onnx.load(random_graphs.path("encoder"))
    model.graph.node[5].op_type = "NoSuchOperator"
    path = tmp_path / "bad.onnx"
    onnx.save(model, path)
    with pytest.raises(ExportError, match=r"bad.onnx is not a valid ONNX model: .*; rebuild it"):
        check_graph(path, "encoder", "fp32", random_graphs.spec, opset=20)


def test_external_data_elsewhere_is_refused(random_graphs: Graphs, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    model = onnx.load(random_graphs.path("encoder"))
    onnx.save(model, inner / "plain.onnx")
    onnx.save_model(
        model, inner / "encoder.onnx", save_as_external_data=True, location="weights.bin"
    )
    (inner / "data").mkdir()
    (inner / "weights.bin").rename(inner / "data" / "weights.bin")
    text = (inner / "encoder.onnx").read_bytes()
    moved = onnx.load_from_string(text)
    for tensor in moved.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "data/weights.bin"
    (inner / "encoder.onnx").write_bytes(moved.SerializeToString())
    with pytest.raises(ExportError, match=r"external data 'data/weights.bin' lies elsewhere"):
        check_graph(inner / "encoder.onnx", "encoder", "fp32", random_graphs.spec, opset=20)


def test_what_is_no_graph_is_refused(tmp_path: Path, random_graphs: Graphs) -> None:
    with pytest.raises(ExportError, match=r"can't be read \(No such file or directory\)"):
        graph_spec(tmp_path / "absent.onnx", "encoder", "fp32")
    path = tmp_path / "text.onnx"
    path.write_text("hello, I am no graph")
    with pytest.raises(ExportError, match=r"text.onnx is not an ONNX model; rebuild it"):
        graph_spec(path, "encoder", "fp32")
    path.write_bytes(random_graphs.path("encoder").read_bytes()[:5000])
    with pytest.raises(ExportError, match=r"is not an ONNX model; rebuild it"):
        graph_spec(path, "encoder", "fp32")


def test_another_number_of_quantized_matmuls_is_refused(random_graphs: Graphs) -> None:
    with pytest.raises(ExportError, match="holds 16 quantized MatMuls, expected 15; quantize it"):
        graph_spec(random_graphs.path("encoder", "int8"), "encoder", "int8", int8_matmuls=15)
