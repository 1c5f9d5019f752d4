"""The settings with which CTranslate2 is quickest, found by trying them on some of the lines."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.peers.settings import (
    Setting,
    batch_candidates,
    compute_types,
    file_candidates,
    thread_splits,
)
from benchmarks.peers.subjects import Threads
from benchmarks.peers.worker import Worker
from benchmarks.peers.workloads import Workload
from runtime.options import SearchOptions

logger = logging.getLogger(__name__)

FILE_LINES = 320
"""Lines that stand for the file: enough that batches of any size tried are full."""
_REPEATS = 3


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The quickest setting, and the median seconds of every one that was tried."""

    setting: Setting
    tried: tuple[tuple[Setting, float], ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "setting": self.setting.to_json(),
            "text": self.setting.text,
            "tried": [{"text": setting.text, "seconds": took} for setting, took in self.tried],
        }


def tune(
    worker: Worker,
    workload: Workload,
    threads: Threads,
    items: Sequence[list[str]],
    options: SearchOptions,
) -> Tuned:
    """Tries types and threads first, then ways to cut the batch with the quickest of these."""
    parallel = workload.batch != 1
    base: dict[str, Any] = {}
    if workload.batch is None:
        base = {"max_batch_size": 1024, "batch_type": "tokens"}
        items = [items[0][:FILE_LINES]]
    first = [
        Setting(compute_type=kind, inter_threads=inter, intra_threads=intra, **base)
        for kind in compute_types(worker.subject.name)
        for inter, intra in thread_splits(threads.count, parallel=parallel)
    ]
    if parallel and workload.batch is not None:  # or several workers would have one batch for all
        first = [
            replace(setting, max_batch_size=-(-workload.batch // setting.inter_threads))
            if setting.inter_threads > 1
            else setting
            for setting in first
        ]
    best, tried = _quickest(worker, first, items, options)
    if parallel:
        cuts = (
            file_candidates()
            if workload.batch is None
            else batch_candidates(workload.batch, best.inter_threads)
        )
        plain = replace(best, max_batch_size=0, batch_type="examples")
        second = [replace(plain, **cut) for cut in cuts]
        best, more = _quickest(worker, [best, *(s for s in second if s != best)], items, options)
        tried = [*tried, *more]
    logger.info("%s, %s: %s", worker.subject.label, workload.label, best.text)
    return Tuned(setting=best, tried=tuple(tried))


def _quickest(
    worker: Worker, settings: list[Setting], items: Sequence[list[str]], options: SearchOptions
) -> tuple[Setting, list[tuple[Setting, float]]]:
    """Each on every item in turn, so that a busy machine disturbs all alike."""
    if len(settings) == 1:
        return settings[0], []
    seconds = np.zeros((len(settings), _REPEATS, len(items)))
    for setting in settings:
        worker.translate(items[0][:32], options, setting)
    order = list(range(len(settings)))
    for repeat in range(_REPEATS):
        for place, lines in enumerate(items):
            for index in order:
                timed = worker.translate(lines, options, settings[index])
                seconds[index, repeat, place] = timed.seconds
            order.reverse()
    medians = np.median(seconds, axis=1).sum(axis=1)
    tried = [(setting, float(took)) for setting, took in zip(settings, medians, strict=True)]
    return min(tried, key=lambda one: one[1])[0], tried
