"""From engines on disk to engines that run: found, built where there are none, deserialized."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

from runtime.bundle import Bundle
from runtime.device import Device
from runtime.engine_pair import EnginePair
from runtime.engines.engine import Engine
from runtime.engines.library import Library
from runtime.engines.profiles import EngineLimits
from runtime.engines.store import ROLES, Here, Mismatch, ensure_engine, find
from runtime.errors import EngineError
from runtime.manifest import Precision, Role

log = logging.getLogger(__name__)


def load_engines(
    bundle: Bundle, precision: Precision, library: Library, device: Device, *, build: bool = True
) -> EnginePair:
    """Both engines of a bundle, in that precision, on that device.

    build: whether an engine is built where there is none that fits, or that TensorRT takes.
    Raises EngineError when there is none and it may not, or can't, be built.
    """
    device.use()
    here = Here.of(library, device.target)
    found = {role: find(bundle, role, precision, here) for role in ROLES}
    built_before = [engine for engine in found.values() if isinstance(engine, Engine)]
    # Two engines with different limits would take the smaller of each.
    limits = built_before[0].limits if built_before else EngineLimits()
    loader = _Loader(bundle, precision, library, device, limits, build)
    engines = {role: loader.load(role, engine) for role, engine in found.items()}
    return EnginePair(
        trt=library.module,
        encoder=engines["encoder"],
        decoder_step=engines["decoder_step"],
        model=bundle.manifest.model,
        precision=precision,
        last_words=_engine_log(library.module).last_words,
    )


class _Loader:
    def __init__(
        self,
        bundle: Bundle,
        precision: Precision,
        library: Library,
        device: Device,
        limits: EngineLimits,
        build: bool,
    ) -> None:
        self._bundle, self._precision, self._library = bundle, precision, library
        self._device, self._limits, self._build = device, limits, build
        self._log = _engine_log(library.module)
        self._runtime = library.module.Runtime(self._log.logger)

    def load(self, role: Role, found: Engine | Mismatch) -> Any:
        """The ICudaEngine of a graph."""
        if isinstance(found, Engine):
            try:
                return self._deserialize(found)
            except EngineError as error:
                why = str(error)
        else:
            why = found.why
        if not self._build:
            raise EngineError(why)
        log.warning("%s. It is built now, which may take minutes", why.rstrip("."))
        engine, _ = ensure_engine(
            self._bundle,
            role,
            self._precision,
            library=self._library,
            target=self._device.target,
            limits=self._limits,
            force=isinstance(found, Engine),
        )
        return self._deserialize(engine)

    def _deserialize(self, engine: Engine) -> Any:
        plan = engine.read_plan()
        self._log.last_words()  # not of what went before
        valid, reasons = _validity(self._library.module, self._runtime, plan)
        loaded = self._runtime.deserialize_cuda_engine(plan) if valid else None
        if loaded is None:
            words = ", ".join(reasons) or self._log.last_words() or "it does not say why"
            raise EngineError(
                f"TensorRT can't load the engine {engine.name} ({words}); it was built by "
                f"{engine.built_by} for {engine.target}, and here is {self._library.label} on "
                f"{self._device.name} ({self._device.target}): build it again here, or use the "
                "onnxruntime backend"
            )
        return loaded


class _EngineLog:
    """What TensorRT says: warnings and errors reach our log; the last error is kept."""

    def __init__(self, trt: Any) -> None:
        self._last = ""

        def tell(severity: str, text: str) -> None:
            if "ERROR" in severity:
                self._last = text.strip().splitlines()[0] if text.strip() else severity
            if severity in ("WARNING", "ERROR", "INTERNAL_ERROR"):
                log.debug("TensorRT: %s", text)

        class Logger(trt.ILogger):  # type: ignore[misc]
            def __init__(self) -> None:
                trt.ILogger.__init__(self)

            def log(self, severity: Any, message: str) -> None:
                tell(severity.name, message)

        self.logger = Logger()

    def last_words(self) -> str:
        """The last error since this was asked; empty if there was none."""
        words, self._last = self._last, ""
        return words


@cache
def _engine_log(trt: Any) -> _EngineLog:
    """One for the process: TensorRT goes on using the first logger that it was given."""
    return _EngineLog(trt)


def _validity(trt: Any, runtime: Any, plan: bytes) -> tuple[bool, list[str]]:
    """Whether the library takes a plan, and if not, why, as far as it can tell before loading."""
    if not hasattr(runtime, "get_engine_validity"):
        return True, []
    validity, diagnostics = runtime.get_engine_validity(plan)
    if validity != trt.EngineValidity.INVALID:
        return True, []
    found = trt.EngineInvalidityDiagnostics.__members__.items()
    names = [name for name, bit in found if int(diagnostics) & int(bit)]
    return False, [_REASONS.get(name, name) for name in names]


_REASONS = {
    "VERSION_MISMATCH": "it was built by another version of TensorRT",
    "UNSUPPORTED_CC": "it was built for another kind of GPU",
    "OLD_CUDA_DRIVER": "the NVIDIA driver is too old for it",
    "OLD_CUDA_RUNTIME": "the CUDA runtime is too old for it",
    "INSUFFICIENT_GPU_MEMORY": "the GPU has too little memory for it",
    "MALFORMED_ENGINE": "it is damaged",
    "CUDA_ERROR": "CUDA failed",
}
