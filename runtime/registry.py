"""Which backend runs a bundle: chosen by name, imported only when chosen."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from runtime.backend import Backend
from runtime.bundle import Bundle
from runtime.cores import check_threads
from runtime.errors import LeanseqError, MissingExtraError, OptionError
from runtime.manifest import Precision


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One backend: `factory` is "module:name" of a callable (bundle, *, precision, threads)."""

    factory: str
    package: str
    extra: str
    precisions: tuple[Precision, ...]  # the first that the bundle holds is the default


BACKENDS: dict[str, Entry] = {
    "onnxruntime": Entry(
        factory="runtime.onnxruntime_backend:OnnxRuntimeBackend.open",
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
) -> Backend:
    """The backend of that name over the bundle's graphs.

    "auto" takes the first that runs here. precision None takes the backend's favourite among those
    the bundle holds. Raises OptionError for a name or precision that there is not,
    MissingExtraError when its package is not installed, BackendError when it can't run.
    """
    check_threads(threads)
    if backend not in BACKEND_NAMES:
        hint = "; checkpoints run with `python -m model translate`" if backend == "eager" else ""
        raise OptionError(
            f"backend is {backend!r}; expected one of {', '.join(BACKEND_NAMES)}{hint}"
        )
    entries = list(BACKENDS.values()) if backend == "auto" else [BACKENDS[backend]]
    for entry in entries[:-1]:
        try:
            return _open(entry, bundle, precision, threads)
        except LeanseqError:
            continue
    return _open(entries[-1], bundle, precision, threads)


def choose_precision(entry: Entry, bundle: Bundle, precision: str | None) -> Precision:
    """The precision asked for, or the entry's favourite in the bundle. OptionError if neither."""
    usable = [p for p in entry.precisions if p in bundle.precisions()]
    for candidate in usable:
        if precision in (None, candidate):
            return candidate
    raise OptionError(
        f"precision is {precision or 'not given'}; of this bundle {entry.package} can run: "
        f"{', '.join(usable) or 'nothing'}. Choose one of these, or build the bundle again with "
        "the precision (`python -m export build --int8` adds INT8)"
    )


def _open(entry: Entry, bundle: Bundle, precision: str | None, threads: int | None) -> Backend:
    factory = load_factory(entry)
    return factory(bundle, precision=choose_precision(entry, bundle, precision), threads=threads)


def load_factory(entry: Entry) -> Callable[..., Backend]:
    """Imports the backend. Raises MissingExtraError when its package is not installed."""
    module_name, _, attribute = entry.factory.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] == entry.package:
            raise MissingExtraError(
                entry.package, entry.extra, f"the {entry.package} backend"
            ) from error
        raise
    factory: Callable[..., Backend] = attrgetter(attribute)(module)
    return factory
