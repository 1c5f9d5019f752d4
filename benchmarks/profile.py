"""Where the time of one decoder step goes, from ONNX Runtime's own profiler. CPU only."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.bundle import Bundle
from runtime.errors import MissingExtraError
from runtime.graph_contract import INT8_DISABLED_OPTIMIZERS, LOG_PROBS
from runtime.manifest import ModelSpec, Precision

_FLOAT_MATMULS = frozenset({"MatMul", "FusedMatMul", "Gemm", "FusedGemm"})
_INT8_MATMULS = frozenset({"MatMulIntegerToFloat", "QLinearMatMul", "MatMulInteger", "QGemm"})
_QUANTIZERS = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
_DTYPES: dict[str, Any] = {
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
    "tensor(float)": np.float32,
}


@dataclass(frozen=True, kw_only=True)
class StepProfile:
    """Microseconds of one decoder step, all nodes counted, the time between them not.

    matmul_us: the MatMuls with a weight, logits apart: those that INT8 replaces. logits_us: the
    projection to the vocabulary. quantize_us: nodes that only change the number format.
    """

    step_us: float
    matmul_us: float
    logits_us: float
    quantize_us: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class StepShape:
    """The step that is profiled: B sentences, K beams, S source tokens, T target tokens so far."""

    batch: int = 1
    beam_size: int = 4
    source_length: int = 12
    target_length: int = 8
    repeats: int = 50


def profile_bundle(bundle: Bundle, shape: StepShape | None = None) -> dict[str, Any]:
    """{"fp32": ..., "int8": ..., "d_model": ...}: both decoder steps of a bundle, one thread."""
    model = bundle.manifest.model
    found: dict[str, Any] = {"d_model": model.num_heads * model.head_dim}
    precisions: tuple[Precision, ...] = ("fp32", "int8")
    for precision in precisions:
        path = bundle.graph_path(bundle.graph("decoder_step", precision))
        found[precision] = profile_step(path, model, precision, shape).to_json()
    return found


def profile_step(
    path: Path, model: ModelSpec, precision: Precision, shape: StepShape | None = None
) -> StepProfile:
    """Runs the decoder-step graph at `path` on random caches and sums up the profiler's times.

    Raises MissingExtraError without onnxruntime.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError("onnxruntime", "cpu", "profiling a graph") from error
    shape = shape or StepShape()
    with tempfile.TemporaryDirectory() as directory:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(directory) / "profile")
        session = onnxruntime.InferenceSession(
            str(path),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=list(INT8_DISABLED_OPTIMIZERS) if precision == "int8" else None,
        )
        feeds = _feeds(session, shape)
        outputs = [output.name for output in session.get_outputs() if output.name != LOG_PROBS]
        for _ in range(shape.repeats):
            session.run(outputs, feeds)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    return summarize(events, vocab_size=model.vocab_size)


def summarize(events: list[dict[str, Any]], *, vocab_size: int) -> StepProfile:
    """Sums the profiler's node events by what the nodes do: of each node its median run."""
    durations: dict[tuple[str, str], list[float]] = {}
    for node, args, node_us in node_runs(events):
        durations.setdefault((_kind(args, vocab_size), node), []).append(node_us)
    totals = dict.fromkeys(("matmul", "logits", "quantize", "other"), 0.0)
    for (kind, _), times in durations.items():
        totals[kind] += float(np.median(times))
    return StepProfile(
        step_us=sum(totals.values()),
        matmul_us=totals["matmul"],
        logits_us=totals["logits"],
        quantize_us=totals["quantize"],
    )


def node_runs(events: Iterable[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any], float]]:
    """Which node ran, what the profiler tells of it, and microseconds: of each run, in order."""
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            args = event["args"]
            yield f"{args['node_index']} {event['name']}", args, float(event["dur"])


def _kind(args: dict[str, Any], vocab_size: int) -> str:
    """A packed weight is no input to the profiler; attention's second input has four dimensions."""
    operator = args["op_name"]
    if operator in _QUANTIZERS:
        return "quantize"
    inputs, outputs = (
        [next(iter(entry.values())) for entry in args.get(name, [])]
        for name in ("input_type_shape", "output_type_shape")
    )
    has_weight = operator in _INT8_MATMULS or (
        operator in _FLOAT_MATMULS and (len(inputs) < 2 or len(inputs[1]) < 3)
    )
    if not has_weight:
        return "other"
    return "logits" if outputs and outputs[0][-1] == vocab_size else "matmul"


def _feeds(session: Any, shape: StepShape) -> dict[str, npt.NDArray[Any]]:
    """Random caches, ones elsewhere: in range for every id and index of the contract."""
    rows = shape.batch * shape.beam_size
    sizes = {
        "B": shape.batch, "K": shape.beam_size, "N": rows, "P": rows,
        "S": shape.source_length, "T": shape.target_length,
    }  # fmt: skip
    generator = np.random.default_rng(0)
    feeds: dict[str, npt.NDArray[Any]] = {}
    for tensor in session.get_inputs():
        dims = [sizes[dim] if isinstance(dim, str) else dim for dim in tensor.shape]
        dtype = _DTYPES[tensor.type]
        random = generator.standard_normal(dims).astype(np.float32)
        feeds[tensor.name] = random if dtype is np.float32 else np.ones(dims, dtype=dtype)
    return feeds
