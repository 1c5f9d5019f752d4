"""The history of a training as curves for TensorBoard, in DIR/tensorboard."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from runtime.extras import install_command

_log = logging.getLogger(__name__)

FOLDER = "tensorboard"
_FILES = "events.out.tfevents.*"
_FILE = "events.out.tfevents.{time:010}.{pid}"
SCALARS = {
    "loss": "training/loss",
    "learning_rate": "training/learning rate",
    "gradient_norm": "training/gradient norm",
    "tokens_per_second": "training/tokens per second",
    "epoch": "training/epoch",
    "valid_loss": "validation/loss",
    "valid_bleu": "validation/BLEU",
    "valid_bleu_lc": "validation/BLEU -lc",
}
"""Key of a record -> name of its curve."""


class Curves:
    """One event file of one training. It is made anew from its history each time it goes on, so no
    point is there twice, and none is missing. Where it can't be written any more, curves end with a
    warning, and the training goes on."""

    def __init__(self, path: Path) -> None:
        """Raises ImportError without TensorBoard, OSError if `path` can't be written."""
        # Not torch's SummaryWriter: that writes in a thread, whose traceback is all that tells of a
        # full disk, and only to paths that are UTF-8.
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]
        from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]
        from torch.utils.tensorboard import summary

        self._path, self._event = path, Event
        self._summary: Any = summary
        path.parent.mkdir(parents=True, exist_ok=True)
        self._records: Any = RecordWriter(path.open("wb"))
        self._add(file_version="brain.Event:2")
        # Tells a TensorBoard that is looking on to forget what it saw before.
        self._add(session_log=SessionLog(status=SessionLog.START))
        self.flush()

    @classmethod
    def open(cls, directory: Path) -> Curves | None:
        """Removes the event files that are there. None, and why is told, without new ones."""
        remove_curves(directory)
        try:
            return cls(directory / FOLDER / _FILE.format(time=int(time.time()), pid=os.getpid()))
        except ImportError:
            _log.info(
                "no curves for TensorBoard, which is not installed: %s", install_command("train")
            )
        except OSError as error:
            _warn(directory / FOLDER, error)
        return None

    def draw(self, record: Mapping[str, Any]) -> None:
        """One record of model.training.history."""
        place = {"step": record["updates"], "wall_time": record["time"]}
        for key, name in SCALARS.items():
            if key in record:
                self._add(**place, summary=self._summary.scalar(name, record[key]))
        if "samples" in record:
            self._add(**place, summary=self._summary.text("samples", _table(record["samples"])))

    def flush(self) -> None:
        self._write(lambda records: records.flush())

    def close(self) -> None:
        self._write(lambda records: records.close())

    def _add(self, **fields: Any) -> None:
        """An event: fields of TensorBoard's Event."""
        event = self._event(**{"wall_time": time.time(), **fields})
        self._write(lambda records: records.write(event.SerializeToString()))

    def _write(self, write: Callable[[Any], object]) -> None:
        if self._records is None:
            return
        try:
            write(self._records)
        except OSError as error:
            _warn(self._path, error)
            with contextlib.suppress(OSError):  # it tries once more to write
                self._records.close()
            self._records = None


def _warn(path: Path, error: OSError) -> None:
    _log.warning(
        "no curves for TensorBoard, since %s cannot be written: %s", path, error.strerror or error
    )


def remove_curves(directory: Path) -> None:
    """The event files of a training in `directory`."""
    for path in (directory / FOLDER).glob(_FILES):
        path.unlink(missing_ok=True)


def _table(samples: Sequence[Mapping[str, Any]]) -> str:
    """Markdown."""
    rows = [["source", "translation", "references"], ["---"] * 3]
    for sample in samples:
        cells = [sample["source"], sample["translation"], " / ".join(sample["references"])]
        rows.append([_cell(cell) for cell in cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
