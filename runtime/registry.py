"""Which backend runs a bundle: chosen by name, imported only when chosen."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from runtime.backend import Backend
from runtime.bundle import Bundle
from runtime.cores import check_threads
from runtime.errors import (
    EngineError,
    LeanseqError,
    MissingExtraError,
    OptionError,
    UnavailableError,
)
from runtime.manifest import Precision

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One backend.

    factory: "module:name" of a callable (bundle, *, precision, threads), which also takes `build`
    where builds is set. check: "module:name" of a callable that raises LeanseqError when the
    backend can't run on this machine, whatever the bundle; empty where its package is all it needs.
    """

    factory: str
    package: str
    extra: str
    precisions: tuple[Precision, ...]  # the first that the bundle holds is the default
    check: str = ""
    builds: bool = False


# In the order in which "auto" tries them.
BACKENDS: dict[str, Entry] = {
    "tensorrt": Entry(
        factory="runtime.tensorrt_backend:TensorRtBackend.open",
        package="tensorrt",
        extra="trt",
        precisions=("fp16", "int8_fp16"),
        check="runtime.tensorrt_check:check_tensorrt",
        builds=True,
    ),
    "onnxruntime-cuda": Entry(
        factory="runtime.onnxruntime_backend:OnnxRuntimeBackend.open_cuda",
        package="onnxruntime",
        extra="gpu",
        precisions=("fp16", "fp32"),
        check="runtime.placement:check_cuda",
    ),
    "onnxruntime": Entry(
        factory="runtime.cpu_variant:open_on_cpu",
        package="onnxruntime",
        extra="cpu",
        precisions=("int8", "fp32"),
    ),
}
BACKEND_NAMES = ("auto", *BACKENDS)


def open_backend(
    bundle: Bundle,
    backend: str = "auto",
    *,
    precision: str | None = None,
    threads: int | None = None,
    build: bool = True,
) -> Backend:
    """The backend of that name over the bundle's graphs.

    "auto" takes the first that runs here, and logs which (at INFO), and why none before it (at
    DEBUG; `doctor` tells it too).
    precision None takes the backend's favourite among those the bundle holds. build: whether
    TensorRT engines may be built where none fits; without that, "tensorrt" goes on with ONNX
    Runtime, and warns.
    Raises OptionError for a name or precision that there is not, MissingExtraError when its package
    is not installed, UnavailableError when the machine lacks something, BackendError when it can't
    run.
    """
    check_threads(threads)
    if backend not in BACKEND_NAMES:
        hint = "; checkpoints run with `python -m model translate`" if backend == "eager" else ""
        raise OptionError(
            f"backend is {backend!r}; expected one of {', '.join(BACKEND_NAMES)}{hint}"
        )
    opening = _Opening(bundle, precision, threads, build)
    if backend == "auto":
        return opening.first_of(BACKENDS)
    try:
        return opening.open(backend)
    except EngineError as error:
        if build:
            raise
        log.warning("%s; nothing is built (--no-build): going on with ONNX Runtime", error)
        return opening.first_of(name for name, entry in BACKENDS.items() if not entry.builds)


def choose_precision(entry: Entry, bundle: Bundle, precision: str | None) -> Precision:
    """The precision asked for, or the entry's favourite in the bundle. OptionError if neither.

    int8 is int8_fp16 where all that is not INT8 is computed in FP16.
    """
    usable = [p for p in entry.precisions if p in bundle.precisions()]
    wanted = "int8_fp16" if precision == "int8" and "int8" not in entry.precisions else precision
    for candidate in usable:
        if wanted in (None, candidate):
            return candidate
    raise OptionError(
        f"precision is {precision or 'not given'}; of this bundle {entry.package} can run: "
        f"{', '.join(usable) or 'nothing'}. Choose one of these, or build the bundle again with "
        "the precision (`python -m export build --int8` adds INT8)"
    )


def check_backend(entry: Entry) -> None:
    """Raises what keeps a backend from running on this machine, before any bundle is read."""
    if entry.check:
        _load(entry, entry.check)()
    load_factory(entry)


def load_factory(entry: Entry) -> Callable[..., Backend]:
    """Imports the backend. Raises MissingExtraError when its package is not installed."""
    factory: Callable[..., Backend] = _load(entry, entry.factory)
    return factory


def short_reason(name: str, error: LeanseqError, precision: str | None = None) -> str:
    """Why the backend of that name was passed over, in a few words where the error has them."""
    if isinstance(error, UnavailableError):
        return error.short
    if isinstance(error, MissingExtraError):
        return "not installed" if error.package == name else f"{error.package} is not installed"
    if isinstance(error, OptionError):
        return f"it can't run {precision or 'any precision'} of this bundle"
    return "it failed"


# What a machine or a bundle may well lack; anything else is worth a warning.
_EXPECTED = (MissingExtraError, UnavailableError, OptionError)


@dataclass(frozen=True)
class _Opening:
    """What is opened, whichever backend it will be."""

    bundle: Bundle
    precision: str | None
    threads: int | None
    build: bool

    def open(self, name: str) -> Backend:
        entry = BACKENDS[name]
        if entry.check:
            _load(entry, entry.check)()
        factory = load_factory(entry)
        options: dict[str, Any] = {"build": self.build} if entry.builds else {}
        precision = choose_precision(entry, self.bundle, self.precision)
        return factory(self.bundle, precision=precision, threads=self.threads, **options)

    def first_of(self, names: Iterable[str]) -> Backend:
        """The first that opens; raises the last one's error if none does."""
        *others, last = names
        passed: list[str] = []
        for name in others:
            try:
                return _told(name, self.open(name), passed)
            except LeanseqError as error:
                if not isinstance(error, _EXPECTED):
                    log.warning("the %s backend can't be used: %s", name, error)
                passed.append(f"{name}: {short_reason(name, error, self.precision)}")
        try:
            return _told(last, self.open(last), passed)
        except LeanseqError:
            if passed:
                log.info("backends passed over: %s", "; ".join(passed))
            raise


def _told(name: str, backend: Backend, passed: list[str]) -> Backend:
    found = backend.capabilities
    log.info("backend: %s on %s, %s", name, found.device, found.precision)
    if passed:
        log.debug("backends passed over: %s", "; ".join(passed))
    return backend


def _load(entry: Entry, dotted: str) -> Any:
    module_name, _, attribute = dotted.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] == entry.package:
            raise MissingExtraError(
                entry.package, entry.extra, f"the {entry.package} backend"
            ) from error
        raise
    return attrgetter(attribute)(module)
