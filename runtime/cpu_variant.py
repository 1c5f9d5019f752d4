"""Which variant of a bundle's graphs a CPU runs: the one made for CPUs where it is there."""

from __future__ import annotations

import logging

from runtime.backend import Backend
from runtime.bundle import Bundle
from runtime.errors import BackendError
from runtime.manifest import Precision
from runtime.native_kernels import why_not
from runtime.onnxruntime_backend import OnnxRuntimeBackend
from runtime.static_backend import StaticBackend
from runtime.static_contract import VARIANT

log = logging.getLogger(__name__)


def open_on_cpu(
    bundle: Bundle, *, precision: Precision = "fp32", threads: int | None = None
) -> Backend:
    """ONNX Runtime on the CPU over the graphs of variant `cpu_static`, or, where the bundle has
    none or this onnxruntime can't load them, over the portable ones; says which at DEBUG,
    and warns where one is there and can't be loaded.

    Raises BundleError when the bundle has neither in that precision, BackendError when ONNX Runtime
    can load neither.
    """
    roles = {graph.role for graph in bundle.graphs_of(precision) if graph.variant == VARIANT}
    if roles == {"encoder", "decoder_step"}:
        try:
            backend = StaticBackend.open(bundle, precision=precision, threads=threads)
        except BackendError as error:
            log.warning("the cpu_static graphs can't be used (%s): taking the portable ones", error)
        else:
            reason = why_not()
            kernels = f"ONNX Runtime's ({reason})" if reason else "leanseq's own"
            log.debug("graphs: cpu_static, %s; kernels: %s", precision, kernels)
            return backend
    else:
        log.debug("graphs: portable, %s (this bundle has none for CPUs alone)", precision)
    return OnnxRuntimeBackend.open(bundle, precision=precision, threads=threads)
