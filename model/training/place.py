"""The directory that a training writes to: locked while it runs, and left as it was found where the
training can't begin."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from model.errors import CheckpointError, TrainingError
from model.training import curves
from model.training.state import FOLDER

LOCK = ".training.lock"


class Place:
    """A directory that is held. `begun`: what is written there from now on is there to stay."""

    def __init__(self, directory: Path) -> None:
        """Remembers what is there."""
        self.begun = False
        self._made = [path for path in (directory, *directory.parents) if not path.exists()]
        names = (FOLDER, curves.FOLDER, LOCK)
        self._new = [directory / name for name in names if not os.path.lexists(directory / name)]

    def leave(self) -> None:
        """Removes what was not there, unless it has begun; what others put there stays."""
        if self.begun:
            return
        with contextlib.suppress(OSError):
            for path in self._new:
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
            for path in self._made:  # the innermost first
                path.rmdir()


@contextmanager
def hold(directory: Path) -> Iterator[Place]:
    """Held while a training runs. Raises TrainingError if another one holds it, CheckpointError if
    it can't be written."""
    place = Place(directory)
    try:
        with _locked(directory):
            try:
                yield place
            except BaseException:
                place.leave()
                raise
    except CheckpointError:
        place.leave()  # where it could not be locked
        raise


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = FileLock(str(directory / LOCK))
        lock.acquire(timeout=0)
    except Timeout:
        raise TrainingError(
            f"another training is writing to {directory}; wait for it, or give another --out"
        ) from None
    except OSError as error:
        raise CheckpointError(
            f"cannot write to {directory}: {error.strerror or error}; choose a directory that can "
            "be written"
        ) from error
    try:
        yield
    finally:
        lock.release()
