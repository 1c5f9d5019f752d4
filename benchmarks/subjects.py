"""What is compared: the eager model of a checkpoint, and the precisions of a bundle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.measure import Subject
from runtime.bundle import Bundle
from runtime.manifest import Precision
from runtime.translator import Translator

CPU_PRECISIONS: tuple[Precision, ...] = ("fp32", "int8")
"""What ONNX Runtime runs on a CPU; FP16 graphs are for GPUs."""


@contextmanager
def open_subjects(bundle: Bundle, checkpoint: Path | None, threads: int) -> Iterator[list[Subject]]:
    """The eager model first, if there is one, then the bundle's precisions, FP32 before INT8.

    Each has what report.json says of its parity. Raises what opening either raises.
    """
    report = bundle.read_report() or {}
    parity = {found["name"]: found.get("parity") for found in report.get("subjects", [])}
    with ExitStack() as stack:
        subjects = []
        if checkpoint is not None:
            subjects.append(stack.enter_context(_eager_subject(checkpoint, threads)))
        for precision in CPU_PRECISIONS:
            if precision not in bundle.precisions():
                continue
            name = f"ONNX Runtime {precision.upper()}"
            translator = Translator.open(
                bundle, backend="onnxruntime", precision=precision, threads=threads
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
