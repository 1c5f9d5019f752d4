"""What is compared: the eager model of a checkpoint, and the precisions of a bundle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.measure import Subject
from runtime.bundle import Bundle
from runtime.errors import OptionError
from runtime.manifest import Precision
from runtime.registry import BACKENDS
from runtime.translator import Translator

DEFAULT_BACKENDS = ("onnxruntime",)
_BACKEND_LABELS = {
    "tensorrt": "TensorRT",
    "onnxruntime-cuda": "ONNX Runtime CUDA",
    "onnxruntime": "ONNX Runtime",
}
# In the order in which they are shown.
_PRECISION_LABELS: dict[Precision, str] = {
    "fp32": "FP32",
    "fp16": "FP16",
    "int8": "INT8",
    "int8_fp16": "INT8+FP16",
}


@contextmanager
def open_subjects(
    bundle: Bundle,
    checkpoint: Path | None,
    threads: int,
    backends: Sequence[str] = DEFAULT_BACKENDS,
) -> Iterator[list[Subject]]:
    """The eager model first, if there is one, then for each backend all precisions of the bundle
    that it runs, FP32 before INT8.

    Each has what report.json says of its parity. Raises OptionError for backends of which the
    bundle has no precision, and what opening them raises.
    """
    report = bundle.read_report() or {}
    parity = {found["name"]: found.get("parity") for found in report.get("subjects", [])}
    with ExitStack() as stack:
        subjects = []
        if checkpoint is not None:
            subjects.append(stack.enter_context(_eager_subject(checkpoint, threads)))
        for backend, precision in _chosen(bundle, backends):
            name = f"{_BACKEND_LABELS[backend]} {_PRECISION_LABELS[precision]}"
            translator = Translator.open(
                bundle, backend=backend, precision=precision, threads=threads
            )
            subjects.append(
                Subject(
                    name=name,
                    translator=stack.enter_context(translator),
                    size_bytes=bundle.precision_size(precision),
                    source=f"bundle {bundle.bundle_id[:12]}",
                    parity=parity.get(name),
                )
            )
        yield subjects


def _chosen(bundle: Bundle, backends: Sequence[str]) -> list[tuple[str, Precision]]:
    """(backend, precision) of what is compared."""
    chosen = []
    for backend in dict.fromkeys(backends):
        if backend not in BACKENDS:
            raise OptionError(f"backend is {backend!r}; expected one of {', '.join(BACKENDS)}")
        usable = set(BACKENDS[backend].precisions) & set(bundle.precisions())
        if not usable:
            raise OptionError(
                f"{bundle.path} holds no graphs for {backend}; it has: "
                f"{', '.join(bundle.precisions()) or 'none'}. Leave that backend out, or build the "
                "bundle again"
            )
        chosen += [(backend, precision) for precision in _PRECISION_LABELS if precision in usable]
    return chosen


@contextmanager
def _eager_subject(path: Path, threads: int) -> Iterator[Subject]:
    from model.checkpoint import TOKENIZER, WEIGHTS, load_checkpoint
    from model.translation import open_translator

    checkpoint = load_checkpoint(path)
    with open_translator(checkpoint, threads=threads) as translator:
        yield Subject(
            name="PyTorch eager",
            translator=translator,
            size_bytes=sum((path / name).stat().st_size for name in (WEIGHTS, TOKENIZER)),
            source=f"checkpoint {checkpoint.sha256[:12]}",
        )
