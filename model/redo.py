"""Several files of one directory replaced as if at once, even if the process is killed on the way.

The new files are written to a temporary folder inside the directory, which is then renamed to
`pending`: that rename is the moment at which the write counts. After it the files are moved over
the old ones, one by one; whoever finds `pending` later (a reader, the next writer) finishes the
moves. Other files in the directory are left alone.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from model.errors import CheckpointError

PENDING = "pending"
LOCK = ".lock"
_TEMPORARY = ".writing-"
LOCK_SECONDS = 60.0

WriteFile = Callable[[Path], object]
"""Writes one file to the path that it is given."""


def write_together(directory: Path, files: Mapping[str, WriteFile]) -> None:
    """Replaces the named files of `directory` (made if absent), all or none.

    Raises CheckpointError if the directory cannot be written, or stays locked by another writer.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _locked(directory):
            _finish(directory)
            for leftover in directory.glob(f"{_TEMPORARY}*"):
                shutil.rmtree(leftover, ignore_errors=True)
            temporary = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=directory))
            try:
                for name, write in files.items():
                    write(temporary / name)
                    _flush(temporary / name)
                _flush(temporary)
                temporary.rename(directory / PENDING)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            _finish(directory)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"cannot write to {directory}: {getattr(error, 'strerror', None) or error}; choose a "
            "directory that can be written and has space left"
        ) from error


def finish_pending(directory: Path) -> bool:
    """Completes a write that was cut short after it counted; True if there was one.

    Raises CheckpointError where that cannot be done.
    """
    if not (directory / PENDING).is_dir():
        return False
    try:
        with _locked(directory):
            _finish(directory)
    except OSError as error:
        raise CheckpointError(
            f"{directory} holds a write that was cut short, and it cannot be completed: "
            f"{error.strerror or error}; make the directory writable and try again"
        ) from error
    return True


def wait_for_writer(directory: Path) -> None:
    """Returns once no other process is in the middle of write_together; does nothing where nobody
    ever wrote, or the directory cannot be written, since nobody can write there then."""
    if (directory / LOCK).exists() and os.access(directory, os.W_OK):
        with _locked(directory):
            _finish(directory)


def _finish(directory: Path) -> None:
    pending = directory / PENDING
    if not pending.is_dir():
        return
    for path in sorted(pending.iterdir()):
        path.replace(directory / path.name)
    _flush(directory)
    pending.rmdir()


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    lock = FileLock(str(directory / LOCK))
    try:
        lock.acquire(timeout=LOCK_SECONDS)
    except Timeout:
        raise CheckpointError(
            f"{directory} has been locked by another process for {LOCK_SECONDS:.0f} seconds; "
            "wait for it to end, or write elsewhere"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _flush(path: Path) -> None:
    """Onto the disk, so that a power cut does not undo what a later rename relies on."""
    if os.name == "nt" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
