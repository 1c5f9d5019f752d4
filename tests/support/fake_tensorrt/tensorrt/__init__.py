"""Stands in for `tensorrt` where a build must hang, crash, or go wrong in some other way.

It has the names that leanseq uses. What a build does is the content of the file that
LEANSEQ_FAKE_BUILD names: python, run in place of the builder, with `config` and `log` at hand; a
value left in `plan` is the plan. Every network is taken to be one quantized MatMul, `fc`.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

__version__ = "11.4.0.106"

ProfilingVerbosity = SimpleNamespace(DETAILED="detailed")
TensorIOMode = SimpleNamespace(INPUT="input", OUTPUT="output")
DataType = SimpleNamespace(BOOL=0, FLOAT=1, HALF=2, INT32=3, INT64=4, INT8=5)
LayerType = SimpleNamespace(
    CONSTANT="constant",
    DEQUANTIZE="dequantize",
    IDENTITY="identity",
    MATRIX_MULTIPLY="matmul",
    SHUFFLE="shuffle",
    SQUEEZE="squeeze",
    UNSQUEEZE="unsqueeze",
)


class _Tensor:
    def __init__(self, name: str) -> None:
        self.name, self.shape, self.dtype = name, (4, 4), SimpleNamespace(itemsize=1)


class ITensor(_Tensor):
    name = shape = dtype = None


class ILayer:
    name = type = None

    def __init__(self, name: str, kind: str, inputs: list[str], output: str) -> None:
        self.name, self.type = name, kind
        self._inputs, self._output = [_Tensor(i) for i in inputs], _Tensor(output)
        self.num_inputs, self.num_outputs = len(inputs), 1

    num_inputs = num_outputs = 0

    def get_input(self, place: int) -> _Tensor:
        return self._inputs[place]

    def get_output(self, place: int) -> _Tensor:
        return self._output


class ILogger:
    VERBOSE = INFO = WARNING = ERROR = INTERNAL_ERROR = 0

    def log(self, severity: Any, message: str) -> None: ...


class IProgressMonitor:
    def phase_start(self, *a: Any) -> None: ...

    def phase_finish(self, *a: Any) -> None: ...

    def step_complete(self, *a: Any) -> bool:
        return True


class INetworkDefinition:
    layers = (
        ILayer("w", "constant", [], "w"),
        ILayer("dq", "dequantize", ["x"], "x_dq"),
        ILayer("dq_w", "dequantize", ["w"], "w_dq"),
        ILayer("fc", "matmul", ["x_dq", "w_dq"], "y"),
    )
    num_layers = len(layers)

    def get_layer(self, place: int) -> ILayer:
        return self.layers[place]


class IBuilderConfig:
    profiling_verbosity = progress_monitor = max_aux_streams = None
    profiles = 0

    def add_optimization_profile(self, profile: Any) -> int:
        self.profiles += 1
        return int(os.environ.get("LEANSEQ_FAKE_PROFILE", self.profiles - 1))


class IOptimizationProfile:
    def set_shape(self, *a: Any) -> None:
        if "LEANSEQ_FAKE_SHAPE" in os.environ:
            raise ValueError(os.environ["LEANSEQ_FAKE_SHAPE"])


class Builder:
    def __init__(self, logger: Any) -> None:
        self.logger = logger

    def create_network(self, flags: int) -> INetworkDefinition:
        return INetworkDefinition()

    def create_builder_config(self) -> IBuilderConfig:
        return IBuilderConfig()

    def create_optimization_profile(self) -> IOptimizationProfile:
        return IOptimizationProfile()

    def build_serialized_network(self, network: Any, config: Any) -> bytes | None:
        def log(text: str, severity: str = "INFO") -> None:
            self.logger.log(SimpleNamespace(name=severity), text)

        values: dict[str, Any] = {"plan": None, "config": config, "log": log}
        exec(Path(os.environ["LEANSEQ_FAKE_BUILD"]).read_text(encoding="utf-8"), values)
        return values["plan"]


class ParserError:
    def desc(self) -> str:
        return "no such operator\nin a second line"


class OnnxParser:
    num_errors = 1

    def __init__(self, network: Any, logger: Any) -> None: ...

    def parse_from_file(self, path: str) -> bool:
        return "LEANSEQ_FAKE_PARSE" not in os.environ

    def get_error(self, place: int) -> ParserError:
        return ParserError()


def _add_the_other_names() -> None:
    """Of what leanseq uses, all that no build needs."""
    from runtime.engines.library import USED

    for kind, members in USED.items():
        found = globals().setdefault(kind, SimpleNamespace())
        for member in members:
            if not hasattr(found, member):
                setattr(found, member, None)


_add_the_other_names()
