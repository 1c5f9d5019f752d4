"""Parity and measurements of a finished bundle, beside the eager model that it was made from."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measure import Subject, TestSet, measure
from export.parity import ParityReport, check_parity
from model.checkpoint import WEIGHTS, Checkpoint
from model.translation import open_translator
from runtime.bundle import Bundle
from runtime.manifest import Precision
from runtime.options import SearchOptions
from runtime.translator import Translator

logger = logging.getLogger(__name__)

MEASURED: tuple[Precision, ...] = ("fp32", "int8")
"""What ONNX Runtime runs on a CPU; the FP16 files are for GPUs: they are checked, not run."""

PARITY_LINES = 1000


def report_on(
    bundle: Bundle,
    checkpoint: Checkpoint,
    checkpoint_path: Path,
    test_set: TestSet,
    *,
    threads: int,
) -> dict[str, Any]:
    """Checks parity on the test set's lines, then times and scores; what report.json holds.

    Raises ParityError when the graphs do not compute what the eager model computes, within what
    their precision allows (export.parity).
    """
    with _translators(bundle, checkpoint, threads) as (eager, by_precision):
        options = SearchOptions.from_json(bundle.manifest.search_defaults)
        parity = {
            precision: _parity(eager, translator, test_set, options)
            for precision, translator in by_precision.items()
        }
        subjects = [
            Subject(
                name="PyTorch eager",
                translator=eager,
                size_bytes=(checkpoint_path / WEIGHTS).stat().st_size,
                source=f"checkpoint {checkpoint.sha256[:12]}",
            ),
            *(
                Subject(
                    name=f"ONNX Runtime {precision.upper()}",
                    translator=translator,
                    size_bytes=bundle.precision_size(precision),
                    source=f"bundle {bundle.bundle_id[:12]}",
                    parity=parity[precision].to_json(),
                )
                for precision, translator in by_precision.items()
            ),
        ]
        record = measure(subjects, test_set, options=options, bundle=bundle)
    return {**record, "bundle_bytes": bundle.size()}


@contextmanager
def _translators(
    bundle: Bundle, checkpoint: Checkpoint, threads: int
) -> Iterator[tuple[Translator, dict[Precision, Translator]]]:
    with ExitStack() as stack:
        eager = stack.enter_context(open_translator(checkpoint, threads=threads))
        yield (
            eager,
            {
                precision: stack.enter_context(
                    Translator.open(
                        bundle, backend="onnxruntime", precision=precision, threads=threads
                    )
                )
                for precision in MEASURED
                if precision in bundle.precisions()
            },
        )


def _parity(
    eager: Translator, candidate: Translator, test_set: TestSet, options: SearchOptions
) -> ParityReport:
    """Parity on the first lines of the test set that the model reads whole."""
    limit = eager.capabilities.max_source
    sources = [eager.source_tokenizer.encode_source(line) for line in test_set.lines]
    usable = [ids for ids in sources if 1 < len(ids) <= (limit or len(ids))][:PARITY_LINES]
    name = candidate.capabilities.precision.upper()
    logger.info("parity: %s against eager on %d lines ...", name, len(usable))
    report = check_parity(eager.backend, candidate.backend, usable, eager.special_ids, options)
    logger.info("parity: %s: %s", name, report.summary)
    report.require()
    return report
