"""How the cores of this machine are shared out: threads, workers, and how much is searched at once.

A step of a small model is a hundred short operations. Two threads inside each of them wait for each
other more than they compute, while two searches side by side (workers) never wait. So many lines
get a worker a core, of one thread each. A line alone has nothing beside it: it gets more threads,
where the weights that a step reads are so many that reading them together pays.
docs/decisions/0018-threads-and-workers.md has the measurements.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from runtime import cores
from runtime.batching import DEFAULT_BATCH_TOKENS
from runtime.cores import check_threads
from runtime.workers import check_workers

LARGE_STEP_BYTES = 16_000_000
"""Weights of a decoder step from which on a line alone gets more than one thread."""
MAX_ALONE_THREADS = 4
"""Not measured beyond two: a step of one line has few rows to share out."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """What a translator does with the cores.

    workers: how many batches are searched at once. threads: of each of them. alone_threads: of a
    batch that nothing is searched beside; None is the backend's own choice. why: in words.
    """

    workers: int = 1
    threads: int | None = None
    alone_threads: int | None = None
    why: str = "one search at a time"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def render(self) -> str:
        """For a person, in one line."""
        threads, alone = (
            "threads as the backend chooses" if count is None else _count(count, "thread")
            for count in (self.threads, self.alone_threads)
        )  # fmt: skip
        many = f"{_count(self.workers, 'worker')} of {threads} each"
        return (
            f"{many}, batches of up to {DEFAULT_BATCH_TOKENS} tokens; a batch alone: {alone} "
            f"({self.why})"
        )


def choose_schedule(
    step_bytes: int | None = None,
    *,
    threads: int | None = None,
    workers: int | None = None,
    available: int | None = None,
) -> Schedule:
    """The schedule for a CPU, or as much of it as the caller leaves open.

    step_bytes: the size of the decoder step's graph, weights and all; None where it isn't known.
    threads: of one search; given alone, it is all that is used: one worker. workers: given alone,
    they share the cores out among them. available: physical cores, counted here if not given.
    Raises OptionError for numbers that no machine can start.
    """
    check_threads(threads)
    check_workers(workers)
    available = available or cores.physical_cores()
    if threads is not None:
        return Schedule(
            workers=workers or 1, threads=threads, alone_threads=threads, why="as asked for"
        )
    if workers is not None:
        each = max(1, available // workers)
        return Schedule(
            workers=workers, threads=each, alone_threads=each,
            why=f"{_count(available, 'core')} shared out among the workers asked for",
        )  # fmt: skip
    if available == 1:
        return Schedule(threads=1, alone_threads=1, why="there is one core")
    large = step_bytes is not None and step_bytes >= LARGE_STEP_BYTES
    return Schedule(
        workers=available,
        threads=1,
        alone_threads=min(available, MAX_ALONE_THREADS) if large else 1,
        why=f"{available} cores; " + (
            f"a step reads {_megabytes(step_bytes)} of weights" if large and step_bytes
            else f"more from {_megabytes(LARGE_STEP_BYTES)} of weights a step on"
        ),
    )  # fmt: skip


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"
