"""Directories that are replaced as a whole, or not at all.

A writer locks, fills a temporary directory beside the target, renames the old one aside, the new
one in, and removes the old. Killed in between it leaves either the old or the new: `recover`, which
every reader calls, puts the old one back when the kill fell between the two renames.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from runtime.errors import LeanseqError, WriteError
from runtime.os_errors import explain

_RECOVERY_TIMEOUT_S = 5.0


class DirectoryBusyError(LeanseqError):
    """Another process is writing the same directory."""


class DirectoryTargetError(LeanseqError):
    """The target of a write is something other than a directory, or its parent can't be written."""


def aside_path(path: Path) -> Path:
    """Where the old directory waits while the new one moves in."""
    return path.with_name(f".{path.name}.old")


def lock_path(path: Path) -> Path:
    """The lock file of a directory. It stays behind: removing one is a race of its own."""
    return path.with_name(f".{path.name}.lock")


@contextmanager
def lock_directory(path: Path, timeout_s: float = 0.0) -> Iterator[None]:
    """Holds the writer's lock of `path`, creating its parent where needed.

    Raises DirectoryBusyError when another process holds it for longer than timeout_s seconds, and
    DirectoryTargetError when the parent can't be written.
    """
    path = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow a link at the end
    if not path.name:
        raise DirectoryTargetError(f"{path} can't be replaced; name a directory inside it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(lock_path(path), timeout=timeout_s)
        lock.acquire()
    except Timeout as error:
        raise DirectoryBusyError(
            f"{path} is being written by another process; wait until it is done, or choose another "
            "directory"
        ) from error
    except OSError as error:
        raise DirectoryTargetError(f"{path} can't be written: {explain(error)}") from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def replace_directory(path: Path, *, locked: bool = False) -> Iterator[Path]:
    """Gives an empty temporary directory; it becomes `path` when the block ends without an error.

    locked: the caller holds `lock_directory(path)` already. Raises what lock_directory raises, and
    DirectoryTargetError when `path` is a file.
    """
    path = Path(os.path.abspath(path))  # noqa: PTH100
    if not locked:
        with lock_directory(path), replace_directory(path, locked=True) as temporary:
            yield temporary
        return
    if path.exists() and not path.is_dir():
        raise DirectoryTargetError(f"{path} is a file; expected a directory, or nothing there yet")
    _recover_locked(path)
    _remove_leftovers(path)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.tmp-", dir=path.parent))
    try:
        yield temporary
        temporary.chmod(0o777 & ~_umask())
        _sync(temporary)
        if os.path.lexists(path):
            path.rename(aside_path(path))
        temporary.rename(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        _recover_locked(path)
        raise
    _remove(aside_path(path))


def recover(path: Path) -> None:
    """Puts the old directory back where a writer was killed between its two renames."""
    path = Path(os.path.abspath(path))  # noqa: PTH100
    if path.exists() or not aside_path(path).is_dir():
        return
    with lock_directory(path, timeout_s=_RECOVERY_TIMEOUT_S):
        _recover_locked(path)


def write_text_atomically(path: Path, text: str) -> None:
    """As write_atomically, in UTF-8."""
    write_atomically(path, text.encode())


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file through a temporary one beside it, so that a reader sees the old or the new.

    A link stays one; a device or pipe is written to as it is. Raises WriteError where that can't be
    done, and leaves the old.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
        else:
            _write_beside(path.resolve(), content)
    except OSError as error:
        raise WriteError(f"{path} can't be written: {explain(error, '')}") from error


def _write_beside(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _recover_locked(path: Path) -> None:
    if not path.exists() and aside_path(path).is_dir():
        aside_path(path).rename(path)


def _remove_leftovers(path: Path) -> None:
    """What killed writers left: nobody else writes here, since the lock is held."""
    pattern = f".{glob.escape(path.name)}.tmp-*"
    for leftover in (aside_path(path), *path.parent.glob(pattern)):
        _remove(leftover)


def _remove(path: Path) -> None:
    """A directory, or a link to one, which stays where it is."""
    if path.is_symlink():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


def _sync(directory: Path) -> None:
    """Flushes the files to disk before the rename makes them the truth."""
    for file in directory.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
