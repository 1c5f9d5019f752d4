"""Times of several subjects, taken in turns, and what is made of them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.peers.settings import Setting
from benchmarks.peers.subjects import Found, Threads
from benchmarks.peers.worker import Timed, Worker
from benchmarks.timing import Times, paired_ratio, percentiles_ms
from runtime.options import SearchOptions

SETTLE_S = 0.02
"""A thread pool goes on spinning for some milliseconds after its last work, on a core that the
next subject needs."""
_PERCENTS = (50, 95, 99)
_DECIMALS = 6  # of the seconds in the record
_CLOCK_S = 1e-6  # below which the processors' time is nothing


@dataclass(frozen=True, kw_only=True)
class Effort:
    """rounds: of each item; slow_rounds: for subjects that are slow. sentences: timed one at a
    time; turn: how many of these a subject gets one after another, so that most of them find its
    weights in the processor's caches, as they do where it runs alone. batches: of 32.
    warmup_lines: of each item, before anything is timed; of slow subjects of the first item only.
    """

    rounds: int = 5
    slow_rounds: int = 1
    sentences: int = 20
    turn: int = 5
    batches: int = 2
    warmup_lines: int = 64


@dataclass(kw_only=True)
class Timing:
    """seconds, cpu_seconds [rounds, items]; the lines and the target tokens of each item; the
    translations of the last round, where they were asked for."""

    seconds: Times
    cpu_seconds: Times
    lines: list[int]
    tokens: list[int]
    found: list[Found] = field(default_factory=list)

    def add(self, round_index: int, place: int, timed: Timed) -> None:
        """What one run of one item took and found."""
        self.seconds[round_index, place] = timed.seconds
        self.cpu_seconds[round_index, place] = timed.cpu_seconds
        self.tokens[place] = sum(timed.num_tokens)
        self.found += timed.found or ()

    def summary(self) -> dict[str, Any]:
        """{"ms": {"p50", "p95", "p99"} a line, "tokens_per_second": of the median round, ...}, and
        what was measured: "seconds", "cpu_seconds" [rounds][items]."""
        rounds = self.seconds.sum(axis=1)
        return {
            "ms": percentiles_ms(self.seconds / np.array(self.lines), _PERCENTS),
            "tokens_per_second": sum(self.tokens) / float(np.median(rounds)),
            "tokens": sum(self.tokens),
            "rounds": len(self.seconds),
            "items": len(self.lines),
            "seconds": self.seconds.round(_DECIMALS).tolist(),
            "cpu_seconds": self.cpu_seconds.round(_DECIMALS).tolist(),
        }


def take_turns(
    workers: Mapping[str, Worker],
    settings: Mapping[str, Setting],
    items: Sequence[list[str]],
    options: SearchOptions,
    threads: Threads,
    effort: Effort,
    *,
    want_found: bool = False,
) -> dict[str, Timing]:
    """Every item to every subject in turn (of single lines a few at a turn), the order turned round
    each time; slow subjects take part in the first rounds only."""
    rounds = {
        name: effort.slow_rounds if worker.subject.slow else effort.rounds
        for name, worker in workers.items()
    }
    for name, worker in workers.items():
        for lines in items[:1] if worker.subject.slow else items:
            worker.translate(lines[: effort.warmup_lines], options, settings.get(name))
    timings = {
        name: Timing(
            seconds=np.zeros((rounds[name], len(items))),
            cpu_seconds=np.zeros((rounds[name], len(items))),
            lines=[len(item) for item in items],
            tokens=[0] * len(items),
        )
        for name in workers
    }
    turn = effort.turn if max(map(len, items)) == 1 else 1
    order = list(workers)
    for round_index in range(max(rounds.values(), default=0)):
        for start in range(0, len(items), turn):
            for name in order:
                if round_index >= rounds[name]:
                    continue
                if threads.count > 1:
                    time.sleep(SETTLE_S)
                wanted = want_found and round_index == rounds[name] - 1
                for place in range(start, min(start + turn, len(items))):
                    timed = workers[name].translate(
                        items[place], options, settings.get(name), want_found=wanted
                    )
                    timings[name].add(round_index, place, timed)
            order.reverse()
    return timings


def ratio(slow: Timing, fast: Timing) -> dict[str, Any]:
    """Of the rounds that both took part in: how many times as long `slow` took, pair by pair.

    cpu: the same of the processors' time, which other programs on the machine disturb less, but
    which counts threads that only wait.
    """
    shared = min(len(slow.seconds), len(fast.seconds))
    found = paired_ratio(slow.seconds[:shared], fast.seconds[:shared]).to_json()
    cpu = paired_ratio(
        np.maximum(slow.cpu_seconds[:shared], _CLOCK_S),
        np.maximum(fast.cpu_seconds[:shared], _CLOCK_S),
    )
    return {**found, "pairs": shared * slow.seconds.shape[1], "cpu": cpu.to_json()}
