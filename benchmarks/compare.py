"""Compares the precisions of a bundle, and the eager model of a checkpoint, on two files."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import warn_without_kernels
from benchmarks.measure import Effort, TestSet, measure
from benchmarks.subjects import DEFAULT_BACKENDS, open_subjects
from model.corpora.files import read_lines
from runtime.bundle import Bundle
from runtime.options import SearchOptions

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What to compare. backends: names of `runtime.registry`. families: a file with a group's name
    for each line. limit: first lines only; None takes all. beam_size None takes the bundle's
    default. target_language: such as "zh", for BLEU's tokenizer."""

    bundle: Path
    src: Path
    ref: Path
    checkpoint: Path | None = None
    backends: tuple[str, ...] = DEFAULT_BACKENDS
    families: Path | None = None
    limit: int | None = None
    beam_size: int | None = None
    threads: int = 1
    rounds: int = 2
    target_language: str | None = None


def compare(comparison: Comparison) -> dict[str, Any]:
    """Measures every precision of the bundle that the backends run, and the checkpoint's eager
    model, on the CPU.

    Returns the record of `benchmarks.measure`. Raises BundleError, CheckpointError, DataError,
    OptionError, MissingExtraError or BackendError for what can't be opened or used.
    """
    bundle = Bundle.open(comparison.bundle)
    test_set = read_test_set(comparison)
    if "onnxruntime" in comparison.backends:
        warn_without_kernels()
    with open_subjects(
        bundle, comparison.checkpoint, comparison.threads, comparison.backends
    ) as subjects:
        options = search_options(subjects[-1].translator.defaults, comparison.beam_size)
        return measure(
            subjects,
            test_set,
            options=options,
            effort=Effort(rounds=comparison.rounds),
            bundle=bundle,
        )


def search_options(defaults: SearchOptions, beam_size: int | None) -> SearchOptions:
    """The defaults, with another beam size where one is given."""
    if beam_size is None:
        return defaults
    return SearchOptions.from_json({**defaults.to_json(), "beam_size": beam_size})


def read_test_set(comparison: Comparison) -> TestSet:
    """The lines, references and families, each file plain or gzip, cut to the limit."""
    lines, references = read_lines(comparison.src), read_lines(comparison.ref)
    families = None if comparison.families is None else read_lines(comparison.families)
    whole = TestSet(
        lines=lines,
        references=references,
        families=families,
        target_language=comparison.target_language,
        name=comparison.src.name,
    )
    if comparison.limit is None:
        return whole
    return TestSet(
        lines=lines[: comparison.limit],
        references=references[: comparison.limit],
        families=None if families is None else families[: comparison.limit],
        target_language=whole.target_language,
        name=whole.name,
    )
