"""Parity and measurements of a finished bundle, beside the eager model that it was made from."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

from benchmarks.measure import Subject, TestSet, measure
from benchmarks.subjects import open_subjects
from export.parity import ParityReport, check_parity
from runtime.backend import Backend
from runtime.bundle import Bundle
from runtime.onnxruntime_backend import OnnxRuntimeBackend
from runtime.options import SearchOptions
from runtime.static_contract import VARIANT

logger = logging.getLogger(__name__)

PARITY_LINES = 1000


def report_on(
    bundle: Bundle, checkpoint_path: Path, test_set: TestSet, *, threads: int
) -> dict[str, Any]:
    """Checks parity on the test set's lines, then times and scores; what report.json holds.

    Raises ParityError when the graphs do not compute what the eager model computes, within what
    their precision allows (export.parity).
    """
    options = SearchOptions.from_json(bundle.manifest.search_defaults)
    with open_subjects(bundle, checkpoint_path, threads) as (eager, *others):
        proved = [
            dataclasses.replace(
                subject, parity=_parity(eager, subject, test_set, options).to_json()
            )
            for subject in others
        ]
        others_parity = _portable_parity(eager, bundle, test_set, options, threads)
        record = measure([eager, *proved], test_set, options=options, bundle=bundle)
    loss = record["int8_loss"]
    if loss is not None and not loss["within_budget"]:
        logger.warning(
            "INT8 loses %.2f BLEU and %.1f points of exact match, more than the %.1f and %.1f it "
            "may; try another --method, more --calibration-sentences, or --float-logits",
            loss["bleu"], loss["exact_match_points"],
            loss["bleu_budget"], loss["exact_match_budget"],
        )  # fmt: skip
    return {**record, "portable_parity": others_parity, "bundle_bytes": bundle.size()}


def _portable_parity(
    eager: Subject, bundle: Bundle, test_set: TestSet, options: SearchOptions, threads: int
) -> dict[str, Any]:
    """By precision: parity of portable graphs beside which there are some for CPUs, since those are
    what is opened, proved and measured otherwise."""
    precisions = {graph.precision for graph in bundle.manifest.graphs if graph.variant == VARIANT}
    found: dict[str, Any] = {}
    for precision in sorted(precisions):
        backend = OnnxRuntimeBackend.open(bundle, precision=precision, threads=threads)
        name = f"portable {precision}"
        found[precision] = _backend_parity(eager, backend, name, test_set, options).to_json()
        backend.close()
    return found


def _parity(
    eager: Subject, candidate: Subject, test_set: TestSet, options: SearchOptions
) -> ParityReport:
    backend = candidate.translator.backend
    return _backend_parity(eager, backend, candidate.name, test_set, options)


def _backend_parity(
    eager: Subject, backend: Backend, name: str, test_set: TestSet, options: SearchOptions
) -> ParityReport:
    """Parity on the first lines of the test set that the model reads whole."""
    reference = eager.translator
    limit = reference.capabilities.max_source
    sources = [reference.source_tokenizer.encode_source(line) for line in test_set.lines]
    usable = [ids for ids in sources if 1 < len(ids) <= (limit or len(ids))][:PARITY_LINES]
    logger.info("parity: %s against eager on %d lines ...", name, len(usable))
    report = check_parity(reference.backend, backend, usable, reference.special_ids, options)
    logger.info("parity: %s: %s", name, report.summary)
    report.require()
    return report
