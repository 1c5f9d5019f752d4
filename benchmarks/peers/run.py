"""The whole comparison, from files or a preset to one record."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine, now, warn_without_kernels
from benchmarks.peers.bars import judge
from benchmarks.peers.cost import measure_cost
from benchmarks.peers.equality import Equality, compare_tokens, differing_lines
from benchmarks.peers.materials import RANDOM_SOURCE, Prepared, prepare, prepare_random
from benchmarks.peers.memory import measure_footprint
from benchmarks.peers.rounds import Effort, Timing, ratio, take_turns
from benchmarks.peers.settings import Setting, compute_types
from benchmarks.peers.subjects import (
    OURS,
    PEER,
    SUBJECTS,
    Found,
    Subject,
    Threads,
    choose_subjects,
    import_libraries,
)
from benchmarks.peers.tuning import tune
from benchmarks.peers.worker import Worker
from benchmarks.peers.workloads import WORKLOADS, Workload
from model.corpora.files import read_lines
from model.eager import EagerBackend
from model.evaluation.metrics import check_aligned, evaluate
from runtime.bundle import Bundle
from runtime.cores import check_threads, usable_cpus
from runtime.errors import OptionError

logger = logging.getLogger(__name__)

SCHEMA = 1
_FOOTPRINT_SINGLES = 8
_COST_LINES = 3
_ONE = Threads(count=1)
NO_FP32 = "the bundle holds no FP32 graphs"


@dataclass(frozen=True, kw_only=True)
class PeersRun:
    """What is compared: a bundle with its checkpoint on the lines of a file, or a preset with
    random weights on random lines, every search of `steps` tokens.

    subjects, workloads: names; all that fit where none are given. threads: numbers of threads;
    empty is 1, and all cores as leanseq picks them. limit: first lines only.
    """

    bundle: Path | None = None
    checkpoint: Path | None = None
    src: Path | None = None
    ref: Path | None = None
    limit: int | None = None
    target_language: str = ""
    preset: str | None = None
    steps: int = 24
    subjects: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    threads: tuple[int, ...] = ()
    effort: Effort = field(default_factory=Effort)
    cost: bool = False

    @property
    def random(self) -> bool:
        return self.preset is not None

    def chosen_workloads(self) -> list[Workload]:
        """Random lines are no file: they have one length and no end of their own."""
        return [
            workload
            for name, workload in WORKLOADS.items()
            if (name in self.workloads if self.workloads else name != "file" or not self.random)
        ]

    def chosen_threads(self) -> list[Threads]:
        """Raises OptionError for numbers that no machine can start."""
        for count in self.threads:
            check_threads(count)
        cores = len(usable_cpus())
        return [
            Threads(count=count, all_cores=count == cores > 1)
            for count in dict.fromkeys(self.threads or (1, cores))
        ]


def measure_peers(run: PeersRun) -> dict[str, Any]:
    """Prepares, proves equality, and measures; returns the record.

    A bundle that was packed without FP32 can't be compared in it: that is said instead.

    Raises BackendError where CTranslate2 and leanseq differ in FP32 or a process ends, ConfigError
    for a model that CTranslate2 can't express, MissingExtraError without the extra `peers`, and
    what opening bundle, checkpoint and files raises.
    """
    warn_without_kernels()
    threads, workloads = run.chosen_threads(), run.chosen_workloads()
    for given in run.workloads:
        if given not in WORKLOADS:
            raise OptionError(
                f"workload {given!r} is unknown; expected one of {', '.join(WORKLOADS)}"
            )
    for name in (*PEER.values(), *OURS.values()):
        import_libraries(name)  # complains before minutes of building
    with tempfile.TemporaryDirectory(prefix="leanseq-") as name:
        prepared, subjects = _prepare(run, Path(name))
        steps = run.steps if run.random else None
        comparison = _Comparison(run=run, prepared=prepared, subjects=subjects, steps=steps)
        record: dict[str, Any] = {
            "schema": SCHEMA,
            "date": now(),
            "machine": describe_machine(),
            "what": comparison.describe(),
            "equality": comparison.describe_equality(workloads),
            "threads": [comparison.measure(each, workloads) for each in threads],
        }
        record["subjects"] = comparison.describe_subjects()
        if run.cost:
            record["cost"] = comparison.measure_cost()
    record["bars"] = [verdict.to_json() for verdict in judge(record)]
    return record


@dataclass(kw_only=True)
class _Comparison:
    """settings: CTranslate2's, chosen for the last workload; found: translations of the file."""

    run: PeersRun
    prepared: Prepared
    subjects: list[Subject]
    steps: int | None
    settings: dict[str, Setting] = field(default_factory=dict)
    found: dict[str, list[Found]] = field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        """What a number of this run is told with."""
        prepared, run = self.prepared, self.run
        return {
            "shape": run.preset or "trained",
            "bundle": prepared.bundle.bundle_id,
            "checkpoint": prepared.checkpoint.sha256,
            "model": prepared.checkpoint.config.to_json(),
            "lines": len(prepared.lines),
            "source": f"{RANDOM_SOURCE} random tokens" if run.src is None else run.src.name,
            "steps": self.steps,
            "search": prepared.defaults.to_json(),
            "rounds": run.effort.rounds,
            "slow_rounds": run.effort.slow_rounds,
        }

    def describe_equality(self, workloads: Sequence[Workload]) -> list[dict[str, Any]]:
        """What `prove` found; that nothing was, where the bundle holds no FP32 graphs."""
        if "fp32" in self.prepared.bundle.precisions():
            return [found.to_json() | {"summary": found.summary} for found in self.prove(workloads)]
        logger.warning("%s: that both compute the same in FP32 is not checked", NO_FP32)
        return [{"summary": f"not checked, since {NO_FP32}"}]

    def prove(self, workloads: Sequence[Workload]) -> list[Equality]:
        """That both give the same best tokens in FP32 for every number of beams that is timed."""
        peer, ours = PEER["fp32"], OURS["fp32"]
        eager = EagerBackend(self.prepared.checkpoint.model)
        settings = {peer: Setting(compute_type="float32", max_batch_size=32)}
        proven = []
        with self._workers((peer, ours), _ONE) as workers:
            for workload in {workload.beam_size: workload for workload in workloads}.values():
                options = workload.options(self.prepared.defaults, self.steps)
                found = {}
                for name, worker in workers.items():
                    timed = worker.translate(
                        self.prepared.lines, options, settings.get(name), want_found=True
                    )
                    found[name] = list(timed.found or ())
                differing = differing_lines(found[ours], found[peer])
                for place in differing:
                    for name, worker in workers.items():
                        line = [self.prepared.lines[place]]
                        timed = worker.translate(line, options, settings.get(name), want_found=True)
                        found[name][place : place + 1] = timed.found or ()
                equality = compare_tokens(
                    found[ours],
                    found[peer],
                    self.prepared.sources(),
                    eager,
                    self.prepared.bundle.manifest.special_ids,
                    options,
                    alone=len(differing) - len(differing_lines(found[ours], found[peer])),
                )
                logger.info("the same best tokens in FP32, %s", equality.summary)
                equality.require()
                proven.append(equality)
        return proven

    def measure(self, threads: Threads, workloads: Sequence[Workload]) -> dict[str, Any]:
        """All workloads, every subject in a process of its own, all open at once."""
        measured = {}
        with self._workers([subject.name for subject in self.subjects], threads) as workers:
            for workload in workloads:
                measured[workload.name] = self._measure_workload(workers, threads, workload)
            picked = {
                name: worker.open(self.settings.get(name)).description
                for name, worker in workers.items()
            }
        return {
            "label": threads.label,
            "count": threads.count,
            "all_cores": threads.all_cores,
            "picked": picked,
            "workloads": measured,
        }

    def describe_subjects(self) -> dict[str, Any]:
        """Memory, loading, disk and quality of each, alone, with one thread."""
        singles = [[line] for line in self.prepared.lines[:_FOOTPRINT_SINGLES]]
        batches = [*singles, self.prepared.lines[:32]]
        options = WORKLOADS["32x4"].options(self.prepared.defaults, self.steps)
        described = {}
        for subject in self.subjects:
            logger.info("memory of %s", subject.label)
            footprint = measure_footprint(
                subject,
                self.prepared.materials,
                _ONE,
                _plain_setting(subject.name),
                batches,
                options,
            )
            described[subject.name] = {
                "label": subject.label,
                "group": subject.group,
                "footprint": footprint.to_json(),
                "quality": self._quality(subject.name),
            }
        return described

    def measure_cost(self) -> dict[str, Any]:
        """Of leanseq and CTranslate2, with one thread."""
        names = [subject.name for subject in self.subjects if not subject.slow]
        settings = {name: found for name in names if (found := _plain_setting(name))}
        logger.info("cost against lengths and beams")
        with self._workers(names, _ONE) as workers:
            return measure_cost(
                workers,
                settings,
                self.prepared.lines[:_COST_LINES],
                self.prepared.defaults,
                self.prepared.bundle.manifest.model.max_target,
                self.run.effort.rounds,
            )

    def _measure_workload(
        self, workers: Mapping[str, Worker], threads: Threads, workload: Workload
    ) -> dict[str, Any]:
        effort = self.run.effort
        count = effort.sentences if workload.batch == 1 else effort.batches
        items = workload.items(self.prepared.lines, count)
        options = workload.options(self.prepared.defaults, self.steps)
        tuned = {
            name: tune(worker, workload, threads, items, options)
            for name, worker in workers.items()
            if name in PEER.values()
        }
        self.settings = {name: one.setting for name, one in tuned.items()}
        logger.info("%s, %s: timing", threads.label, workload.label)
        timings = take_turns(
            workers,
            self.settings,
            items,
            options,
            threads,
            effort,
            want_found=workload.batch is None,
        )
        for name, timing in timings.items():
            if timing.found:
                self.found.setdefault(name, timing.found)
        return {
            "label": workload.label,
            "beam_size": workload.beam_size,
            "tuned": {name: one.to_json() for name, one in tuned.items()},
            "subjects": {name: _summary(name, timings) for name in timings},
        }

    def _quality(self, name: str) -> dict[str, Any] | None:
        if self.prepared.references is None or name not in self.found:
            return None
        quality = evaluate(
            [found.text for found in self.found[name]],
            self.prepared.references,
            target_language=self.run.target_language,
        )
        return {
            "bleu": quality.bleu.score,
            "bleu_signature": quality.bleu.signature,
            "chrf": quality.chrf.score,
            "chrf_signature": quality.chrf.signature,
        }

    @contextmanager
    def _workers(self, names: Sequence[str], threads: Threads) -> Iterator[dict[str, Worker]]:
        with ExitStack() as stack:
            workers = {}
            for name in names:
                workers[name] = stack.enter_context(Worker(name, self.prepared.materials, threads))
            yield workers


def _prepare(run: PeersRun, directory: Path) -> tuple[Prepared, list[Subject]]:
    if run.preset is not None:
        subjects = [SUBJECTS[name] for name in SUBJECTS if not run.subjects or name in run.subjects]
        prepared = prepare_random(run.preset, directory, [subject.name for subject in subjects])
        return prepared, choose_subjects(run.subjects, prepared.bundle)
    if run.bundle is None or run.checkpoint is None or run.src is None:
        raise OptionError("give a bundle, its checkpoint and a file of lines; or a preset")
    lines = read_lines(run.src)
    references = None if run.ref is None else read_lines(run.ref)
    if references is not None:
        check_aligned(lines, references)
    subjects = choose_subjects(run.subjects, Bundle.open(run.bundle))
    prepared = prepare(
        run.bundle,
        run.checkpoint,
        lines[: run.limit],
        None if references is None else references[: run.limit],
        directory,
        [subject.name for subject in subjects],
    )
    return prepared, subjects


def _summary(name: str, timings: Mapping[str, Timing]) -> dict[str, Any]:
    """peer_ratio: the time of the group's CTranslate2 over that of this subject."""
    peer = timings.get(PEER[SUBJECTS[name].group])
    found = None if peer is None else ratio(peer, timings[name])
    return {**timings[name].summary(), "peer_ratio": found}


def _plain_setting(name: str) -> Setting | None:
    """CTranslate2 with one thread, a batch as it is given."""
    if name not in PEER.values():
        return None
    return Setting(compute_type=compute_types(name)[0])
