"""One subject in a process of its own, so that nobody's threads or memory mix with another's.

`Worker` is the parent's end. The child opens the subject, translates what it is sent, times it with
its own clock, and answers; it ends with its parent.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.peers.settings import Setting
from benchmarks.peers.subjects import (
    SUBJECTS,
    Found,
    Materials,
    Peer,
    Threads,
    import_libraries,
    missing_peer,
    open_peer,
)
from runtime.errors import BackendError, LeanseqError
from runtime.options import SearchOptions

_END_TIMEOUT_S = 5.0
# Whoever asks for more threads says so; nothing else is to start a pool as large as the machine.
_POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """Bytes of resident memory once the libraries were imported, and once the subject was open;
    seconds that opening it took; what it says of itself."""

    seconds: float
    rss_before: int
    rss_after: int
    description: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Timed:
    """seconds: by the child's clock, of the translation alone; cpu_seconds: that all its threads
    computed meanwhile. num_tokens: of each line. found: where it was asked for."""

    seconds: float
    cpu_seconds: float
    num_tokens: tuple[int, ...]
    found: tuple[Found, ...] | None = None


class Worker:
    """A context manager: the process ends with it.

    Every call raises BackendError, with the child's words, for what went wrong there.
    """

    def __init__(self, name: str, materials: Materials, threads: Threads) -> None:
        self.subject = SUBJECTS[name]
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=serve, args=(theirs, name, materials, threads), daemon=True
        )
        with _pools_of(threads.count):
            self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def open(self, setting: Setting | None = None) -> Loaded:
        """Loads the subject, unless it is loaded with that setting."""
        loaded: Loaded = self._ask("open", setting)
        return loaded

    def translate(
        self,
        lines: Sequence[str],
        options: SearchOptions,
        setting: Setting | None = None,
        *,
        want_found: bool = False,
    ) -> Timed:
        """Opens the subject before, where it isn't, without counting that."""
        timed: Timed = self._ask("translate", list(lines), options, setting, want_found)
        return timed

    def rss(self) -> int:
        """Bytes of resident memory now."""
        size: int = self._ask("rss")
        return size

    def peak_rss(self) -> int:
        """Bytes of resident memory at most, so far."""
        size: int = self._ask("peak_rss")
        return size

    def close(self) -> None:
        """Ends the process."""
        with contextlib.suppress(OSError):
            self._connection.close()  # the child's next `recv` ends it
        self._process.join(_END_TIMEOUT_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _ask(self, command: str, *arguments: Any) -> Any:
        try:
            self._connection.send((command, arguments))
            went_well, answer = self._connection.recv()
        except (EOFError, OSError) as error:
            self._process.join(_END_TIMEOUT_S)
            raise BackendError(
                f"the process of {self.subject.label} ended {_death(self._process.exitcode)}; "
                "leave it out with --subject, or give it a machine with more memory"
            ) from error
        if not went_well:
            raise BackendError(f"{self.subject.label}: {answer}")
        return answer


def serve(connection: Connection, name: str, materials: Materials, threads: Threads) -> None:
    """The child: answers commands until the connection ends. Errors are answered as text."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, who ends us
    child = _Child(name, materials, threads)
    with contextlib.suppress(EOFError, OSError):
        while True:
            command, arguments = connection.recv()
            try:
                answer = True, getattr(child, command)(*arguments)
            except LeanseqError as error:
                answer = False, str(error)
            except Exception as error:
                answer = False, f"{type(error).__name__}: {error}"
            connection.send(answer)


class _Child:
    """What the commands do. Opened subjects are kept, one for each setting that needs its own."""

    def __init__(self, name: str, materials: Materials, threads: Threads) -> None:
        self._name, self._materials, self._threads = name, materials, threads
        self._peers: dict[Any, Peer] = {}

    def open(self, setting: Setting | None) -> Loaded:
        import_libraries(self._name)
        before = self.rss()
        start = time.perf_counter()
        peer = self._peer(setting)
        seconds = time.perf_counter() - start
        return Loaded(
            seconds=seconds, rss_before=before, rss_after=self.rss(), description=peer.describe()
        )

    def translate(
        self, lines: list[str], options: SearchOptions, setting: Setting | None, want_found: bool
    ) -> Timed:
        peer = self._peer(setting)
        cpu_start, start = time.process_time(), time.perf_counter()
        found = peer.translate(lines, options, setting)
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
        return Timed(
            seconds=seconds,
            cpu_seconds=cpu_seconds,
            num_tokens=tuple(one.num_tokens for one in found),
            found=tuple(found) if want_found else None,
        )

    def rss(self) -> int:
        try:
            import psutil
        except ModuleNotFoundError as error:
            raise missing_peer(error) from error
        size: int = psutil.Process().memory_info().rss
        return size

    def peak_rss(self) -> int:
        """Where the system doesn't keep it, what there is now. (getrusage's would be the parent's
        as well.)"""
        with contextlib.suppress(OSError):
            for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
                if line.startswith("VmHWM:"):
                    return max(self.rss(), int(line.split()[1]) * 1024)
        return self.rss()

    def _peer(self, setting: Setting | None) -> Peer:
        key = None if setting is None else setting.model_key
        peer = self._peers.get(key)
        if peer is None:
            peer = open_peer(self._name, self._materials, self._threads, setting)
            self._peers[key] = peer
        return peer


@contextlib.contextmanager
def _pools_of(threads: int) -> Iterator[None]:
    """The environment that a child starts with."""
    before = {name: os.environ.get(name) for name in _POOLS}
    os.environ.update(dict.fromkeys(_POOLS, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _death(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"by signal {-exit_code}"
    return f"with exit code {exit_code}"
