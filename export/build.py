"""The main job: sources, bundle, parity, measurements; each reused if its inputs are the same."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import TestSet
from calibration.calibrate import check_method
from calibration.statistics import (
    DEFAULT_METHOD,
    DEFAULT_PERCENTILE,
    DEFAULT_SENTENCES,
    Method,
)
from export.bundling import BundleRecipe, make_bundle
from export.engines import EngineRecipe, build_engines, engine_record
from export.measuring import report_on
from export.sources import GivenFiles, Sources, from_checkpoint, from_embedded_corpus
from model.corpora.phrases import Target
from runtime.bundle import Bundle, check_replaceable
from runtime.cores import check_threads
from runtime.directory import lock_directory
from runtime.engines.choice import choose_builds
from runtime.engines.library import check_target_name
from runtime.engines.profiles import EngineLimits
from runtime.engines.worker import DEFAULT_TIMEOUT_S, check_timeout
from runtime.errors import BundleError, OptionError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class BuildSettings:
    """One `python -m export build`; its help says what each is."""

    int8: bool = False
    checkpoint: Path | None = None
    out: Path | None = None
    work_dir: Path = Path("build")
    target: Target = "de"
    max_minutes: float | None = None
    calibration_src: Path | None = None
    calibration_sentences: int = DEFAULT_SENTENCES
    method: Method = DEFAULT_METHOD
    percentile: float = DEFAULT_PERCENTILE
    int8_logits: bool | None = None
    src: Path | None = None
    ref: Path | None = None
    engine_targets: tuple[str, ...] = ()
    max_batch: int = EngineLimits.max_batch
    max_beam: int = EngineLimits.max_beam
    max_source: int = EngineLimits.max_source
    max_target: int = EngineLimits.max_target
    engine_timeout: float = DEFAULT_TIMEOUT_S
    threads: int = 1
    remeasure: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        if (self.src is None) != (self.ref is None):
            raise OptionError("--src and --ref belong together; give both, or neither")
        check_method(self.method, self.percentile)
        check_threads(self.threads)
        if self.calibration_sentences < 1:
            raise OptionError(
                f"--calibration-sentences is {self.calibration_sentences}; expected a whole number "
                "of at least 1"
            )
        if self.max_minutes is not None and not 0 < self.max_minutes < math.inf:
            raise OptionError(f"--max-minutes is {self.max_minutes}; expected a number above 0")
        for target in self.engine_targets:
            check_target_name(target)
        check_timeout(self.engine_timeout)
        _ = self.engine_limits

    @property
    def engine_limits(self) -> EngineLimits:
        return EngineLimits(
            max_batch=self.max_batch,
            max_beam=self.max_beam,
            max_source=self.max_source,
            max_target=self.max_target,
        )

    @property
    def bundle_path(self) -> Path:
        return self.work_dir / "bundle" if self.out is None else self.out


def build(settings: BuildSettings) -> dict[str, Any]:
    """Builds the bundle, or finds that it is there, and returns what report.json holds of it; with
    `engines`, the JSON of each, where there are some.

    Raises the errors of the packages it calls; the bundle that was there before stays whole until
    the new one is. Raises DirectoryBusyError while another build writes to the same place.
    """
    path = settings.bundle_path
    builds = choose_builds(settings.engine_targets)  # before minutes of training
    with lock_directory(path):
        check_replaceable(path)  # before minutes of training
        sources = _sources(settings)
        recipe = BundleRecipe(
            int8=settings.int8,
            calibration_lines=sources.calibration_lines,
            method=settings.method,
            percentile=settings.percentile,
            sentences=settings.calibration_sentences,
            int8_logits=settings.int8_logits,
        )
        if settings.force or not _is_current(path, recipe.source(sources.checkpoint.sha256)):
            make_bundle(sources.checkpoint, recipe, path)
        else:
            logger.info("bundle: %s is there and was made from the same inputs, reused", path)
        bundle = Bundle.open(path)
        engines = build_engines(
            bundle,
            EngineRecipe(
                builds=builds,
                limits=settings.engine_limits,
                timeout_s=settings.engine_timeout,
                force=settings.force,
            ),
        )
        report = _report(bundle, sources, settings)
    if not engines:
        return report
    return {**report, "engines": [engine_record(engine) for engine in engines]}


def _sources(settings: BuildSettings) -> Sources:
    files = GivenFiles(calibration_src=settings.calibration_src, src=settings.src, ref=settings.ref)
    if settings.checkpoint is not None:
        return from_checkpoint(settings.checkpoint, files)
    return from_embedded_corpus(
        settings.work_dir,
        settings.target,
        files,
        max_minutes=settings.max_minutes,
        force=settings.force,
    )


def _is_current(path: Path, source: dict[str, Any]) -> bool:
    """Whether the bundle in `path` is whole and was made from these inputs."""
    try:
        bundle = Bundle.open(path)
        bundle.verify()
    except BundleError as error:
        if path.exists():
            logger.warning("bundle: %s", error)
        return False
    return bool(bundle.manifest.source == source)


def _report(bundle: Bundle, sources: Sources, settings: BuildSettings) -> dict[str, Any]:
    """What was measured before on this bundle and these lines, or measured now."""
    report = bundle.read_report()
    wanted = {"threads": settings.threads, "test_set": _sha256(sources.test_set)}
    if report is not None and report.get("measured_with") == wanted and not settings.remeasure:
        logger.info(
            "report: measured on %s, shown again (--remeasure does it anew)", report["date"]
        )
        return report
    report = report_on(bundle, sources.checkpoint_path, sources.test_set, threads=settings.threads)
    report["measured_with"] = wanted
    bundle.write_report(report)
    return report


def _sha256(test_set: TestSet) -> str:
    lines = [list(test_set.lines), list(test_set.references)]
    return hashlib.sha256(json.dumps(lines).encode()).hexdigest()
