"""ONNX Runtime sessions as the backend runs them: tensors in a fixed order, each output where it is
wanted, all in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as ort_c

from runtime.errors import BackendError, DeviceMemoryError
from runtime.graph_contract import (
    CANDIDATE_IDS,
    INT8_DISABLED_OPTIMIZERS,
    LOG_PROBS,
    PARENTS,
    SCORES,
    SRC_MASK,
    cross_names,
    graph_inputs,
    graph_outputs,
)
from runtime.manifest import ModelSpec, Precision, Role, TensorSpec
from runtime.placement import HOST, OrtTensor, Placement, check_placed
from runtime.row_graph import row_graph, row_graph_inputs, row_graph_outputs

Observer = Callable[[str, npt.NDArray[Any]], None]
"""Called with the name and the value of every output that a graph has beyond the contract."""

_FATAL = 4  # of ONNX Runtime's log levels
_FOR_HOST = (SCORES, CANDIDATE_IDS, PARENTS)
_RUN_OPTIONS = onnxruntime.RunOptions()
_MEMORY_RAN_OUT = ("out of memory", "Failed to allocate memory")


class GraphSession:
    """The graph of one role. `run` takes and gives tensors in the contract's order.

    Raises BackendError when ONNX Runtime can't load it, or it lacks what the contract names.
    """

    def __init__(
        self,
        role: Role,
        path: Path,
        model: ModelSpec,
        precision: Precision,
        placement: Placement,
        threads: int,
        observer: Observer | None,
    ) -> None:
        self._observer = observer
        options = session_options(threads)
        if role == "encoder":
            # It runs once for many steps: its idle threads must not spin against the steps'.
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        disabled = list(INT8_DISABLED_OPTIMIZERS) if "int8" in precision else None
        self._session = load_session(str(path), path.name, placement, options, disabled)
        self._name = path.name
        inputs, outputs = (f(role, model, precision) for f in (graph_inputs, graph_outputs))
        check_contract(self._session, path.name, role, precision, inputs + outputs)
        self._inputs = [spec.name for spec in inputs]
        contract = [spec.name for spec in outputs]
        self._outputs = [name for name in contract if name != LOG_PROBS]
        self._devices = [HOST if n in _FOR_HOST else placement.device for n in self._outputs]
        found = [output.name for output in self._session.get_outputs()]
        self._extra = [n for n in found if n not in contract] if observer is not None else []

    def run(self, feeds: Sequence[OrtTensor], need_log_probs: bool = False) -> list[OrtTensor]:
        """The outputs, caches on the placement's device, all else on the host; log_probs last."""
        names = [*self._outputs, LOG_PROBS] if need_log_probs else self._outputs
        fetched = [*names, *self._extra]
        devices = self._devices + [HOST] * (len(fetched) - len(self._outputs))
        fetches = _run(self._session, self._name, self._inputs, feeds, fetched, devices)
        if self._observer is not None:
            for index, name in enumerate(self._extra, start=len(names)):
                self._observer(name, fetches[index].numpy())
        return fetches[: len(names)]


class RowSession:
    """Picks sentences of src_mask and the cross keys and values without leaving the device."""

    def __init__(self, model: ModelSpec, precision: Precision, placement: Placement) -> None:
        kept = {SRC_MASK, *cross_names(model.decoder_layers)}
        inputs = graph_inputs("decoder_step", model, precision)
        tensors = [spec for spec in inputs if spec.name in kept]
        self._inputs, self._outputs = row_graph_inputs(tensors), row_graph_outputs(tensors)
        self._devices = [placement.device] * len(self._outputs)
        graph = row_graph(tensors)
        self._session = load_session(graph, "the row graph", placement, session_options(1), None)

    def run(self, feeds: Sequence[OrtTensor]) -> list[OrtTensor]:
        """feeds: rows int32 [R], src_mask, cross_k.0, cross_v.0, ... -> the rows of all but it."""
        return _run(
            self._session, "the row graph", self._inputs, feeds, self._outputs, self._devices
        )


def check_contract(
    session: onnxruntime.InferenceSession,
    name: str,
    role: Role,
    precision: Precision,
    tensors: Sequence[TensorSpec],
) -> None:
    """Raises BackendError for an input or output that is missing or of another type."""
    have = {tensor.name: tensor.type for tensor in session.get_inputs()}
    have |= {tensor.name: tensor.type for tensor in session.get_outputs()}
    for spec in tensors:
        expected = _ORT_TYPES[spec.dtype]
        if have.get(spec.name) != expected:
            raise BackendError(
                f"{name} has {have.get(spec.name, 'nothing')} for {spec.name}, expected "
                f"{expected}: it is no {role} graph in {precision} of this version; build the "
                "bundle again"
            )


def first_line(error: Exception) -> str:
    """What ONNX Runtime says, without its log's decoration."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].removeprefix("[ONNXRuntimeError] : ")


def session_options(threads: int) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _FATAL  # errors are raised, and told in our own words
    # A plan of the memory would be kept for every combination of sizes ever seen.
    options.enable_mem_pattern = False
    return options


def load_session(
    model: str | bytes,
    name: str,
    placement: Placement,
    options: onnxruntime.SessionOptions,
    disabled_optimizers: list[str] | None,
) -> onnxruntime.InferenceSession:
    try:
        session = onnxruntime.InferenceSession(
            model,
            options,
            providers=[(placement.provider, placement.options)],
            disabled_optimizers=disabled_optimizers,
        )
    except Exception as error:  # ONNX Runtime's errors share no root
        raise BackendError(
            f"ONNX Runtime {onnxruntime.__version__} can't load {name} ({first_line(error)}); the "
            "file is damaged, or needs a newer onnxruntime: copy or build the bundle again, or "
            "upgrade onnxruntime"
        ) from error
    check_placed(session, placement)
    return session


def _run(
    session: onnxruntime.InferenceSession,
    name: str,
    inputs: list[str],
    feeds: Sequence[OrtTensor],
    outputs: list[str],
    devices: list[Any],
) -> list[OrtTensor]:
    """devices: where each output is wanted."""
    vector = ort_c.OrtValueVector()
    for tensor in feeds:
        vector.push_back(tensor)
    fetches = ort_c.OrtValueVector()
    try:
        # IOBinding would do the same, but binding tensor by tensor by name costs a tenth of a
        # small step; this is one call.
        session.run_with_ortvaluevector(_RUN_OPTIONS, inputs, vector, outputs, fetches, devices)
    except Exception as error:  # ONNX Runtime's errors share no root
        ran_out = any(text in str(error) for text in _MEMORY_RAN_OUT)
        raise (DeviceMemoryError if ran_out else BackendError)(
            f"ONNX Runtime {onnxruntime.__version__} failed in {name} ({first_line(error)}); if "
            "memory ran out, use smaller batches (--batch-tokens) or fewer beams"
        ) from error
    return [fetches[index] for index in range(len(outputs))]


_ORT_TYPES = {
    "int32": "tensor(int32)",
    "int64": "tensor(int64)",
    "bool": "tensor(bool)",
    "float32": "tensor(float)",
    "float16": "tensor(float16)",
}
