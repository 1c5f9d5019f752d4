"""The Q/DQ graph: its structure, its size, its arithmetic, and what it refuses."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from support.hand_made_graphs import WIDTH, attention_graph, logits_graph, save

from calibration import quantize
from calibration.errors import CalibrationError
from calibration.fused import count_fused_int8
from calibration.graph_file import graph_sha256
from calibration.matmuls import find_weight_matmuls, role_of
from calibration.quantize import quantize_graph, quantize_weight
from calibration.ranges import Ranges
from runtime.graph_contract import INT8_DISABLED_OPTIMIZERS


def ranges_of(path: Path, **bounds: float) -> Ranges:
    role = role_of(onnx.load(path))
    return Ranges(
        method="minmax",
        percentile=None,
        sentences=1,
        sources_sha256="",
        search={},
        graphs={role: graph_sha256(path)},
        bounds={role: bounds},
    )


def attention(tmp_path: Path) -> tuple[Path, Ranges]:
    path = save(attention_graph(), tmp_path / "fp32.onnx")
    return path, ranges_of(path, x=4.0, context=8.0)


def run(path: Path, x: np.ndarray) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        str(path),
        options,
        providers=["CPUExecutionProvider"],
        disabled_optimizers=list(INT8_DISABLED_OPTIMIZERS),
    )
    return session.run(None, {"x": x})[0]


def inputs(seed: int = 0, rows: int = 3) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal((rows, 5, WIDTH)).astype(np.float32)
    return np.clip(values, -4, 4)


def test_weight_scales_are_per_output_column_and_symmetric():
    weight = np.array([[1.0, -20.0, 0.0], [-2.0, 5.0, 0.0]], dtype=np.float32)
    quantized, scales = quantize_weight(weight)
    assert quantized.tolist() == [[64, -127, 0], [-127, 32, 0]]  # 63.5 and 31.75 rounded
    np.testing.assert_allclose(scales, [2 / 127, 20 / 127, 1], rtol=1e-6)


def test_weights_agree_with_onnxruntime_quantization():
    quant_utils = pytest.importorskip("onnxruntime.quantization.quant_utils")
    weight = np.random.default_rng(0).standard_normal((32, 8)).astype(np.float32)
    quantized, scales = quantize_weight(weight)
    for column in range(8):
        _, scale, theirs = quant_utils.quantize_data(weight[:, column], onnx.TensorProto.INT8, True)
        assert scales[column] == pytest.approx(float(scale), rel=1e-6)
        assert np.abs(quantized[:, column].astype(int) - theirs.astype(int)).max() == 0


def test_every_weight_is_int8_behind_its_own_pair(tmp_path: Path):
    path, ranges = attention(tmp_path)
    report = quantize_graph(path, tmp_path / "int8.onnx", ranges)
    model = onnx.load(tmp_path / "int8.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert report.int8_matmuls == ("q", "k", "v", "out")
    assert report.float_matmuls == {}
    makers = {name: node for node in model.graph.node for name in node.output}
    tensors = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    seen = set()
    for name in report.int8_matmuls:
        matmul = next(node for node in model.graph.node if node.name == name)
        dequantize, weight = (makers[tensor] for tensor in matmul.input)
        quantize = makers[dequantize.input[0]]
        assert (quantize.op_type, dequantize.op_type) == ("QuantizeLinear", "DequantizeLinear")
        assert quantize.name not in seen
        seen.add(quantize.name)
        assert quantize.input[1:] == dequantize.input[1:]
        assert tensors[quantize.input[2]].dtype == np.int8
        assert tensors[quantize.input[2]] == 0
        assert weight.op_type == "DequantizeLinear"
        assert len(weight.input) == 2  # no zero point: it is 0
        assert weight.attribute[0].name == "axis"
        assert weight.attribute[0].i == 1
        assert tensors[weight.input[0]].dtype == np.int8
        assert tensors[weight.input[1]].shape == (tensors[weight.input[0]].shape[1],)
    assert not any(name in tensors for name in ("q.weight", "out.weight"))
    assert "q.bias" in tensors
    assert "out.weight.int8" in tensors
    assert model.opset_import[0].version == 20
    assert [n.op_type for n in model.graph.node].count("Transpose") == 2  # of the keys and of y


def test_computes_what_rounding_by_hand_computes(tmp_path: Path):
    path = save(logits_graph(), tmp_path / "fp32.onnx")
    ranges = ranges_of(path, x=2.0, hidden=9.0)
    quantize_graph(path, tmp_path / "int8.onnx", ranges, quantize_logits=True)
    tensors = {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}

    def linear(x: np.ndarray, weight: np.ndarray, bound: float) -> np.ndarray:
        whole, scales = quantize_weight(weight)
        rounded = np.clip(np.rint(x / (bound / 127)), -128, 127)
        return rounded.astype(np.int32) @ whole.astype(np.int32) * (scales * bound / 127)

    x = inputs()
    hidden = linear(x, tensors["hidden.weight"], 2.0) + tensors["hidden.bias"]
    logits = linear(hidden, tensors["table"].T, 9.0)
    expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    np.testing.assert_allclose(run(tmp_path / "int8.onnx", x), expected, atol=0.02)


def test_is_close_to_the_float_graph(tmp_path: Path):
    path, ranges = attention(tmp_path)
    quantize_graph(path, tmp_path / "int8.onnx", ranges)
    expected, found = run(path, inputs()), run(tmp_path / "int8.onnx", inputs())
    assert np.abs(expected - found).mean() < 0.05 * np.abs(expected).mean()
    assert np.abs(expected - found).max() > 0


def test_logits_stay_float_unless_asked(tmp_path: Path):
    path = save(logits_graph(), tmp_path / "fp32.onnx")
    ranges = ranges_of(path, x=4.0, hidden=9.0)
    plain = quantize_graph(path, tmp_path / "plain.onnx", ranges)
    assert plain.int8_matmuls == ("hidden",)
    assert plain.float_matmuls == {"logits": "it makes the logits"}
    asked = quantize_graph(path, tmp_path / "asked.onnx", ranges, quantize_logits=True)
    assert asked.int8_matmuls == ("hidden", "logits")


def test_logits_of_a_large_vocabulary_are_quantized(tmp_path: Path, monkeypatch):
    path = save(logits_graph(), tmp_path / "fp32.onnx")
    ranges = ranges_of(path, x=4.0, hidden=9.0)
    name = find_weight_matmuls(onnx.load(path))[-1].weight
    weights = next(t for t in onnx.load(path).graph.initializer if t.name == name)
    monkeypatch.setattr(quantize, "LARGE_LOGITS", math.prod(weights.dims))
    large = quantize_graph(path, tmp_path / "large.onnx", ranges)
    assert large.int8_matmuls == ("hidden", "logits")
    refused = quantize_graph(path, tmp_path / "refused.onnx", ranges, quantize_logits=False)
    assert refused.int8_matmuls == ("hidden",)
    monkeypatch.setattr(quantize, "LARGE_LOGITS", math.prod(weights.dims) + 1)
    assert quantize_graph(path, tmp_path / "small.onnx", ranges).int8_matmuls == ("hidden",)


def test_a_table_that_is_also_looked_up_stays_beside_its_int8_copy(tmp_path: Path):
    path = save(logits_graph(tied=True), tmp_path / "fp32.onnx")
    ranges = ranges_of(path, x=4.0, hidden=9.0)
    quantize_graph(path, tmp_path / "int8.onnx", ranges, quantize_logits=True)
    names = {t.name for t in onnx.load(tmp_path / "int8.onnx").graph.initializer}
    assert {"table", "table.int8"} <= names
    assert "hidden.weight" not in names


def test_keep_float_names_matmuls_that_stay(tmp_path: Path):
    path, ranges = attention(tmp_path)
    report = quantize_graph(path, tmp_path / "int8.onnx", ranges, keep_float=["out"])
    assert report.int8_matmuls == ("q", "k", "v")
    assert report.float_matmuls == {"out": "kept float by choice"}
    assert count_fused_int8(tmp_path / "int8.onnx") == 3


def test_two_runs_give_the_same_bytes(tmp_path: Path):
    path, ranges = attention(tmp_path)
    for name in ("a", "b"):
        quantize_graph(path, tmp_path / name, ranges)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_size_counts_scales(tmp_path: Path):
    path, ranges = attention(tmp_path)
    report = quantize_graph(path, tmp_path / "int8.onnx", ranges)
    weights = 4 * WIDTH * WIDTH
    assert report.weight_bytes_fp32 == 4 * weights
    assert report.weight_bytes_int8 == weights + 4 * WIDTH * 4 + 2 * 4 + 1
    assert report.to_json()["weight_bytes_fp32"] == 4 * weights


def test_all_zero_activations_and_weights_stay_finite(tmp_path: Path):
    model = logits_graph()
    weight = next(t for t in model.graph.initializer if t.name == "hidden.weight")
    weight.CopyFrom(numpy_helper.from_array(np.zeros((WIDTH, WIDTH), np.float32), weight.name))
    path = save(model, tmp_path / "fp32.onnx")
    quantize_graph(path, tmp_path / "int8.onnx", ranges_of(path, x=0.0, hidden=0.0))
    assert np.isfinite(run(tmp_path / "int8.onnx", inputs())).all()


def test_fusion_needs_common_subexpression_elimination_off(tmp_path: Path):
    """With it on, the Quantize nodes of q, k and v become one, and only `out` is fused."""
    path, ranges = attention(tmp_path)
    quantize_graph(path, tmp_path / "int8.onnx", ranges)
    assert count_fused_int8(tmp_path / "int8.onnx") == 4
    assert count_fused_int8(tmp_path / "int8.onnx", disabled_optimizers=()) == 1
    assert count_fused_int8(path) == 0


def test_rows_do_not_depend_on_their_neighbours(tmp_path: Path):
    path, ranges = attention(tmp_path)
    quantize_graph(path, tmp_path / "int8.onnx", ranges)
    x = inputs(rows=7)
    x[3] *= 10
    together = run(tmp_path / "int8.onnx", x)
    alone = np.concatenate([run(tmp_path / "int8.onnx", x[i : i + 1]) for i in range(7)])
    np.testing.assert_array_equal(together, alone)


def test_refuses_ranges_of_another_graph(tmp_path: Path):
    path, _ = attention(tmp_path)
    other = save(logits_graph(), tmp_path / "other.onnx")
    with pytest.raises(CalibrationError, match=r"not measured on .* another encoder graph"):
        quantize_graph(path, tmp_path / "int8.onnx", ranges_of(other, x=1.0))


def test_refuses_ranges_that_miss_a_tensor(tmp_path: Path):
    path, _ = attention(tmp_path)
    with pytest.raises(CalibrationError, match="no bound for tensor 'context' of the encoder"):
        quantize_graph(path, tmp_path / "int8.onnx", ranges_of(path, x=1.0))


def test_refuses_to_keep_what_is_not_there_or_everything(tmp_path: Path):
    path, ranges = attention(tmp_path)
    with pytest.raises(CalibrationError, match="names 'nope', which is no MatMul with a weight"):
        quantize_graph(path, tmp_path / "int8.onnx", ranges, keep_float=["nope"])
    with pytest.raises(CalibrationError, match="every MatMul of the graph is kept float"):
        quantize_graph(path, tmp_path / "int8.onnx", ranges, keep_float=["q", "k", "v", "out"])


def test_refuses_a_file_that_is_not_onnx(tmp_path: Path):
    path, ranges = attention(tmp_path)
    with pytest.raises(CalibrationError, match="can't be read"):
        quantize_graph(tmp_path / "missing.onnx", tmp_path / "int8.onnx", ranges)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CalibrationError, match="is not a whole ONNX graph"):
        quantize_graph(path, tmp_path / "int8.onnx", ranges)
    with pytest.raises(CalibrationError, match=r"can't load .*; build it again"):
        count_fused_int8(path)


def test_large_weights_go_to_a_file_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, ranges = attention(tmp_path)
    expected = tmp_path / "inline.onnx"
    quantize_graph(path, expected, ranges)
    monkeypatch.setattr("calibration.graph_file.MAX_INLINE_BYTES", 100)
    monkeypatch.setattr("calibration.graph_file.EXTERNAL_FROM_BYTES", 100)
    quantize_graph(path, tmp_path / "int8.onnx", ranges)
    assert (tmp_path / "int8.onnx.data").stat().st_size > 0
    np.testing.assert_array_equal(run(tmp_path / "int8.onnx", inputs()), run(expected, inputs()))
    before = graph_sha256(tmp_path / "int8.onnx")
    data = bytearray((tmp_path / "int8.onnx.data").read_bytes())
    data[0] ^= 1
    (tmp_path / "int8.onnx.data").write_bytes(data)
    assert graph_sha256(tmp_path / "int8.onnx") != before
