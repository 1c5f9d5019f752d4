"""A backend opened for this machine: with the threads that one search gets, or each of several."""

from __future__ import annotations

import threading
from collections.abc import Callable

from runtime.backend import Backend, trim_all
from runtime.bundle import Bundle
from runtime.manifest import GraphSpec
from runtime.registry import BACKENDS, open_backend
from runtime.schedule import Schedule, choose_schedule

_ON_CPU = "onnxruntime"


class ScheduledBackends:
    """One model, with as many threads as a search gets: alone, or beside others.

    ONNX Runtime's threads belong to a session, so where the two differ there are two backends, and
    the weights are loaded twice: the second when it is first needed. open_other opens it; without
    that the first does all.
    """

    def __init__(
        self,
        first: Backend,
        schedule: Schedule | None = None,
        *,
        first_threads: int | None = None,
        open_other: Callable[[int | None], Backend] | None = None,
    ) -> None:
        self.first = first
        self.schedule = schedule or Schedule()
        self._first_threads, self._open_other = first_threads, open_other
        self._other: Backend | None = None
        self._lock = threading.Lock()

    def get(self, *, alone: bool) -> Backend:
        """The one for a search that nothing runs beside, or for one of several.

        Raises what opening the second may raise.
        """
        threads = self.schedule.alone_threads if alone else self.schedule.threads
        if self._open_other is None or threads == self._first_threads:
            return self.first
        with self._lock:
            if self._other is None:
                self._other = self._open_other(threads)
            return self._other

    def trim(self) -> None:
        """Gives back the memory that is kept from batch to batch."""
        trim_all(self.first, self._other)

    def close(self) -> None:
        """Closes what was opened. Calling it twice does no harm."""
        self.first.close()
        with self._lock:
            if self._other is not None:
                self._other.close()


def open_scheduled(
    bundle: Bundle,
    backend: str = "auto",
    *,
    precision: str | None = None,
    threads: int | None = None,
    workers: int | None = None,
    many_lines: bool = False,
    build: bool = True,
) -> ScheduledBackends:
    """As `open_backend`, with the threads that `choose_schedule` chooses where none are given.

    many_lines: what is opened now is for several searches at once, not for one alone. On a GPU one
    batch is searched at a time, unless workers says otherwise. Raises what both raise.
    """
    schedule = schedule_for(bundle, precision, threads=threads, workers=workers)
    first_threads = schedule.threads if many_lines else schedule.alone_threads
    first = open_backend(bundle, backend, precision=precision, threads=first_threads, build=build)
    found = first.capabilities
    if found.device != "cpu":
        schedule = Schedule(
            workers=workers or 1, why=f"{found.device} searches one batch at a time"
        )
        return ScheduledBackends(first, schedule)
    return ScheduledBackends(
        first,
        schedule,
        first_threads=first_threads,
        open_other=lambda count: open_backend(
            bundle, _ON_CPU, precision=found.precision, threads=count
        ),
    )


def schedule_for(
    bundle: Bundle,
    precision: str | None = None,
    *,
    threads: int | None = None,
    workers: int | None = None,
) -> Schedule:
    """What `choose_schedule` chooses for a bundle on this CPU."""
    step = cpu_step(bundle, precision)
    return choose_schedule(
        None if step is None else bundle.graph_size(step), threads=threads, workers=workers
    )


def cpu_step(bundle: Bundle, precision: str | None = None) -> GraphSpec | None:
    """The decoder step that a CPU would load; None where the bundle holds none for it."""
    have = bundle.precisions()
    for usable in BACKENDS[_ON_CPU].precisions:
        if usable in have and precision in (None, usable):
            return bundle.cpu_graph("decoder_step", usable)
    return None
