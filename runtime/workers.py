"""Several searches at once, over one backend: Python threads, since the graphs run without the GIL.

What is searched, and what becomes of what is found, is not known here.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar

from runtime.backend import (
    Backend,
    BoolArray,
    Candidates,
    Capabilities,
    DecoderState,
    FloatArray,
    IntArray,
)
from runtime.errors import OptionError
from runtime.numbers import shown

MAX_WORKERS = 1024
_LAST_STEP_S = 2.0  # how long the end waits for steps that are under way: a step takes far less

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


class StoppedError(Exception):
    """Inside a worker: another one failed, or nobody wants the rest. It never leaves `in_parallel`.

    No LeanseqError: no user meets it.
    """


class StoppableBackend:
    """A backend that goes no further once `stopped` is set: begin and step raise StoppedError."""

    def __init__(self, backend: Backend, stopped: threading.Event) -> None:
        self._backend, self._stopped = backend, stopped

    @property
    def capabilities(self) -> Capabilities:
        return self._backend.capabilities

    def begin(
        self, src_ids: IntArray, src_mask: BoolArray, beam_size: int, max_length: int
    ) -> DecoderState:
        """src_ids int32 [B,S], src_mask bool [B,S]."""
        self._check()
        return self._backend.begin(src_ids, src_mask, beam_size, max_length)

    def step(
        self,
        state: DecoderState,
        token_ids: IntArray,
        beam_indices: IntArray,
        sum_log_probs: FloatArray,
        *,
        ban_eos: bool,
        need_log_probs: bool = False,
    ) -> Candidates:
        """token_ids, beam_indices int32 [B,K], sum_log_probs float32 [B,K]."""
        self._check()
        return self._backend.step(
            state, token_ids, beam_indices, sum_log_probs,
            ban_eos=ban_eos, need_log_probs=need_log_probs,
        )  # fmt: skip

    def keep(self, state: DecoderState, sentences: IntArray) -> DecoderState:
        """Goes on with only these sentences."""
        return self._backend.keep(state, sentences)

    def close(self) -> None:
        """Closes nothing: the backend is others' as well."""

    def _check(self) -> None:
        if self._stopped.is_set():
            raise StoppedError


class _Done(NamedTuple):
    """What a worker hands back: a result, or why there is none."""

    task: object
    result: object
    error: BaseException | None


Work = Callable[[_Task, threading.Event, bool], _Result]
"""(task, stopped, whether nothing runs beside it) -> result."""


def in_parallel(
    work: Work[_Task, _Result], tasks: Iterator[_Task], workers: int
) -> Iterator[tuple[_Task, _Result]]:
    """Each task with its result, in the order in which they get done.

    `work` runs in up to `workers` threads; one worker, or one task alone, runs in the caller's. Of
    tasks, twice as many as there are workers are taken ahead, so that none waits while
    the caller is busy with a result; what is done is given out before more are taken, since taking
    may wait for input.

    The first error of a worker, an error of the caller or Ctrl-C sets `stopped`, ends all of them
    and is raised; tasks that had not begun are dropped. So does closing the iterator.
    """
    begun = list(islice(tasks, 2 if workers > 1 else 0))
    if len(begun) < 2:
        never = threading.Event()
        for task in chain(begun, tasks):
            yield task, work(task, never, True)
        return
    yield from _Threads(work, workers).run(chain(begun, tasks))


def check_workers(workers: int | None) -> None:
    """Raises OptionError unless it is None or a number of threads that a machine can start."""
    if workers is not None and not 1 <= workers <= MAX_WORKERS:
        raise OptionError(
            f"workers is {shown(workers)}; expected a whole number of at least 1 and at "
            f"most {MAX_WORKERS}"
        )


class _Threads:
    """Threads that take tasks from one queue and put what they find into another.

    They are daemons: a step that hangs in native code does not keep the process from ending.
    """

    def __init__(self, work: Work[Any, Any], workers: int) -> None:
        self._work, self._workers = work, workers
        self._stopped = threading.Event()
        self._tasks: queue.SimpleQueue[tuple[object] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[_Done] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def run(self, tasks: Iterator[_Task]) -> Iterator[tuple[_Task, _Result]]:
        waiting, more = 0, True
        try:
            while True:
                while more and waiting < 2 * self._workers and self._done.empty():
                    more = False
                    for task in islice(tasks, 1):
                        self._start(task)
                        waiting, more = waiting + 1, True
                if not waiting:
                    return
                done = self._done.get()
                waiting -= 1
                if done.error is not None:
                    raise done.error
                yield done.task, done.result  # type: ignore[misc]
        finally:
            self._end()

    def _start(self, task: object) -> None:
        if len(self._threads) < self._workers:
            thread = threading.Thread(
                target=self._loop, daemon=True, name=f"leanseq-{len(self._threads)}"
            )
            self._threads.append(thread)
            thread.start()
        self._tasks.put((task,))

    def _loop(self) -> None:
        while (taken := self._tasks.get()) is not None and not self._stopped.is_set():
            (task,) = taken
            try:
                self._done.put(_Done(task, self._work(task, self._stopped, False), None))
            except BaseException as error:
                self._done.put(_Done(task, None, error))

    def _end(self) -> None:
        """Sets `stopped`, and waits for the steps that are under way, but not for ever."""
        self._stopped.set()
        for _ in self._threads:
            self._tasks.put(None)
        deadline = time.monotonic() + _LAST_STEP_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
