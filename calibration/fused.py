"""Whether ONNX Runtime really computes the quantized MatMuls in INT8.

Q/DQ nodes only ask for it. Where the optimizer finds no pattern it knows, it runs a float MatMul
and dequantizes the weight at every call: right, but slower than FP32.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import onnxruntime

from calibration.errors import CalibrationError
from calibration.graph_file import load_graph
from runtime.graph_contract import INT8_DISABLED_OPTIMIZERS

INT8_OPERATORS = frozenset(
    {
        "MatMulIntegerToFloat",
        "QLinearMatMul",
        "MatMulInteger",
        "DynamicQuantizeMatMul",
        "QGemm",
        "MatMulNBits",
    }
)


def count_fused_int8(
    path: Path, *, disabled_optimizers: Sequence[str] = INT8_DISABLED_OPTIMIZERS
) -> int:
    """How many INT8 MatMuls there are once ONNX Runtime has optimized the graph for this CPU.

    Raises CalibrationError when it can't load the graph.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns that the optimized file is for this CPU only
    options.intra_op_num_threads = 1
    with tempfile.TemporaryDirectory() as directory:
        optimized = Path(directory) / "optimized.onnx"
        options.optimized_model_filepath = str(optimized)
        try:
            onnxruntime.InferenceSession(
                str(path),
                options,
                providers=["CPUExecutionProvider"],
                disabled_optimizers=list(disabled_optimizers),
            )
        except Exception as error:  # ONNX Runtime's own kinds have no common root
            raise CalibrationError(
                f"ONNX Runtime {onnxruntime.__version__} can't load {path} ({error}); build it "
                "again"
            ) from error
        nodes = load_graph(optimized, weights=False).graph.node
    return sum(node.op_type in INT8_OPERATORS for node in nodes)
