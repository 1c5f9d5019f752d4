"""An ONNX file to a plan, in this process: runtime.engines.worker calls it in one of its own.

The library keeps the first logger that it is given for as long as the process lives, and its
builder can crash; both are reasons for a process for each build.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.engines.library import Library
from runtime.engines.profiles import Profile
from runtime.engines.proof import NetworkFacts
from runtime.errors import EngineError

SETTINGS_VERSION = 1
"""Of what this module asks of the builder: raised with every change, so that engines made with
other settings are built again."""

MAX_AUX_STREAMS = 0
"""Streams that the builder may add to run layers side by side. With its own choice (some) a layer's
cache Gathers run ahead of time, and all layers' gathered caches live at once: 426 MB of activations
instead of 68 for the base preset at the default limits (docs/decisions/0007-engines.md)."""

Report = Callable[[str, int, int], None]
"""Called with a phase's name, how many of its steps are done, and how many there are."""

# What the parser puts between a weight's DequantizeLinear and its MatMul.
_PASSED_THROUGH = ("SHUFFLE", "SQUEEZE", "UNSQUEEZE", "IDENTITY")


@dataclass(frozen=True, kw_only=True)
class BuiltPlan:
    """A serialized engine. seconds: of the build alone, parsing and loading not counted."""

    plan: bytes
    network: NetworkFacts
    seconds: float


def build_plan(
    library: Library,
    onnx_path: Path,
    profiles: Sequence[Profile],
    target: str | None,
    *,
    log: Callable[[str, str], None],
    report: Report,
) -> BuiltPlan:
    """Builds for a GPU such as "sm89"; None is the GPU here.

    log: called with severity and text of every message of the library. Raises EngineError with the
    library's last error when the graph can't be parsed or built.
    """
    trt = library.module
    errors: list[str] = []

    def keep(severity: str, text: str) -> None:
        if "ERROR" in severity:
            errors.append(text)
        log(severity, text)

    logger = _make_logger(trt, keep)
    builder = trt.Builder(logger)
    network = builder.create_network(_network_flags(trt))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(onnx_path)):
        found = [parser.get_error(place).desc() for place in range(parser.num_errors)]
        raise EngineError(
            f"{library.label} can't read {onnx_path.name}: {_first_line(found or errors)}; build "
            "the bundle again with this version of leanseq"
        )
    facts = read_network(trt, network)
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.max_aux_streams = MAX_AUX_STREAMS
    monitor = _make_monitor(trt, report)  # must outlive the build
    config.progress_monitor = monitor
    if target is not None and library.targets:
        config.num_compute_capabilities = 1
        if not config.set_compute_capability(getattr(trt.ComputeCapability, target.upper()), 0):
            raise EngineError(
                f"{library.label} refuses to build for {target}; it names as possible: "
                f"{', '.join(library.targets)}"
            )
    for profile in profiles:
        _add_profile(builder, config, profile, onnx_path.name)
    start = time.perf_counter()
    plan = builder.build_serialized_network(network, config)
    seconds = time.perf_counter() - start
    if plan is None:
        raise EngineError(
            f"{library.label} can't build {onnx_path.name} for {target or 'the GPU here'}: "
            f"{_first_line(errors[-1:])}"
        )
    return BuiltPlan(plan=bytes(plan), network=facts, seconds=seconds)


def read_network(trt: Any, network: Any) -> NetworkFacts:
    """Which MatMuls a parsed network has, and what feeds them."""
    layers = [network.get_layer(place) for place in range(network.num_layers)]
    makers = {
        layer.get_output(place).name: layer
        for layer in layers
        for place in range(layer.num_outputs)
    }
    passed = {getattr(trt.LayerType, name) for name in _PASSED_THROUGH}

    def source(layer: Any, place: int) -> Any:
        """The layer that makes an input, looked for through reshapes; None is a graph's input."""
        maker = makers.get(layer.get_input(place).name)
        while maker is not None and maker.type in passed:
            maker = makers.get(maker.get_input(0).name)
        return maker

    quantized, half, floats, products = [], {}, [], []
    constant_bytes = 0
    for layer in layers:
        if layer.type == trt.LayerType.CONSTANT:
            constant_bytes += _bytes_of(layer.get_output(0))
        if layer.type != trt.LayerType.MATRIX_MULTIPLY:
            continue
        types = [
            None if maker is None else maker.type for maker in (source(layer, 0), source(layer, 1))
        ]
        dequantized = [kind == trt.LayerType.DEQUANTIZE for kind in types]
        if all(dequantized):
            quantized.append(layer.name)
        elif any(dequantized):
            half[layer.name] = "weight" if dequantized[0] else "activation"
        elif types[1] == trt.LayerType.CONSTANT:
            floats.append(layer.name)
        else:
            products.append(layer.name)
    return NetworkFacts(
        quantized=tuple(quantized),
        half_quantized=half,
        float_weights=tuple(floats),
        products=tuple(products),
        constant_bytes=constant_bytes,
    )


def _network_flags(trt: Any) -> int:
    """Strongly typed: TensorRT 11 always is and may have lost the flag, 10 must be told."""
    flags = getattr(trt, "NetworkDefinitionCreationFlag", None)
    flag = getattr(flags, "STRONGLY_TYPED", None)
    return 0 if flag is None else 1 << int(flag)


def _add_profile(builder: Any, config: Any, profile: Profile, graph: str) -> None:
    optimization = builder.create_optimization_profile()
    try:
        for name, shapes in profile.items():
            optimization.set_shape(name, shapes.min, shapes.opt, shapes.max)
    except (RuntimeError, ValueError) as error:
        raise EngineError(f"{graph}: the sizes of an input are refused ({error})") from error
    if config.add_optimization_profile(optimization) < 0:
        raise EngineError(f"{graph}: an optimization profile is refused; build the bundle again")


def _make_logger(trt: Any, log: Callable[[str, str], None]) -> Any:
    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            log(severity.name, message)

    return Logger()


def _make_monitor(trt: Any, report: Report) -> Any:
    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        """Phases nest; a phase is told of when it starts and at each of its steps."""

        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self._steps: dict[str, int] = {}

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self._steps[phase_name] = num_steps
            report(phase_name, 0, num_steps)

        def phase_finish(self, phase_name: str) -> None:
            self._steps.pop(phase_name, None)

        def step_complete(self, phase_name: str, step: int) -> bool:
            report(phase_name, step + 1, self._steps.get(phase_name, step + 1))
            return True  # go on

    return Monitor()


def _bytes_of(tensor: Any) -> int:
    count = 1
    for size in tensor.shape:
        count *= size
    return count * int(tensor.dtype.itemsize)


def _first_line(messages: Sequence[str]) -> str:
    text = messages[0].strip() if messages else ""
    return text.splitlines()[0] if text else "it gave no reason; see the build log"
