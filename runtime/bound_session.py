"""ONNX Runtime sessions whose inputs and outputs are bound to numpy's memory once and run often."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as ort_c

from runtime.errors import BackendError
from runtime.heap import trim_heap
from runtime.huge_pages import look_at_memory, use_huge_pages
from runtime.manifest import ModelSpec, Precision, Role
from runtime.native_kernels import use_native_kernels
from runtime.ort_session import check_contract, first_line, load_session, session_options
from runtime.placement import CPU, OrtTensor
from runtime.static_contract import static_inputs, static_outputs

_RUN_OPTIONS = onnxruntime.RunOptions()
_SHRINK = onnxruntime.RunOptions()
_SHRINK.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
"""Frees the session's memory after the run."""

Tensors = Mapping[str, OrtTensor]


def borrow(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, OrtTensor]:
    """Tensors in the memory of contiguous arrays, which the caller keeps alive."""
    return {name: CPU.tensor(array) for name, array in arrays.items()}


class BoundSession:
    """The graph of one role, on the CPU. profile: the beginning of a file's name, into which ONNX
    Runtime's profiler writes. Raises BackendError as GraphSession does."""

    def __init__(
        self,
        role: Role,
        path: Path,
        model: ModelSpec,
        precision: Precision,
        threads: int,
        *,
        profile: Path | None = None,
    ) -> None:
        before = look_at_memory()
        options = session_options(threads)
        # Sizes are few here, since caches do not grow: planning the memory once for each saves 7%
        # of a small step, and costs 3 KB.
        options.enable_mem_pattern = True
        if role == "encoder":
            # It runs once for many steps: its idle threads must not spin against the steps'.
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        use_native_kernels(options)
        if profile is not None:
            options.enable_profiling = True
            options.profile_file_prefix = str(profile)
        session = load_session(str(path), path.name, CPU, options, None)
        inputs = static_inputs(role, model, precision)
        outputs = static_outputs(role, model, precision)
        check_contract(session, path.name, role, precision, inputs + outputs)
        self.name = path.name
        self.session: Any = session._sess  # what an IOBinding of ONNX Runtime's own is made for
        self.inputs = [tensor.name for tensor in inputs]
        self._some_output = [outputs[0].name]
        trim_heap()  # what folding and packing the weights took
        use_huge_pages(before)

    def shrink(self, feeds: Mapping[str, npt.NDArray[Any]]) -> None:
        """Gives back the memory of its runs, at the end of one more: of these inputs."""
        self.session.run(self._some_output, dict(feeds), _SHRINK)

    def bind(self, inputs: Tensors, outputs: Tensors) -> Binding:
        """Ties tensors to the graph. More inputs may be given than it has. Outputs that are not
        named are computed and dropped."""
        return Binding(self, inputs, outputs)


class Binding:
    """What a session reads and writes. Arrays that the tensors borrow must outlive it."""

    def __init__(self, session: BoundSession, inputs: Tensors, outputs: Tensors) -> None:
        self._session = session
        self._binding = ort_c.SessionIOBinding(session.session)
        for name in session.inputs:
            self._binding.bind_ortvalue_input(name, inputs[name])
        for name, tensor in outputs.items():
            self._binding.bind_ortvalue_output(name, tensor)

    def run(self) -> None:
        """Reads the inputs as they are now, writes the outputs. Raises BackendError."""
        session = self._session
        try:
            session.session.run_with_iobinding(self._binding, _RUN_OPTIONS)
        except Exception as error:  # ONNX Runtime's errors share no root
            raise BackendError(
                f"ONNX Runtime {onnxruntime.__version__} failed in {session.name} "
                f"({first_line(error)}); if memory ran out, use smaller batches (--batch-tokens) "
                "or fewer beams"
            ) from error
