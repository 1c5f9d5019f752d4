"""The history of a training as curves for TensorBoard, in DIR/tensorboard."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)

FOLDER = "tensorboard"
_FILES = "events.out.tfevents.*"
_SCALARS = {
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
    """Event files of one training. They are made anew from its history each time it goes on, so no
    point is there twice, and none is missing."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    @classmethod
    def open(cls, directory: Path) -> Curves | None:
        """Removes the event files that are there. None, and why is told, without new ones."""
        remove_curves(directory)
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            _log.info(
                "no curves for TensorBoard, which is not installed: pip install 'leanseq[train]'"
            )
            return None
        try:
            # purge_step tells a TensorBoard that is looking on to forget what it saw before.
            return cls(SummaryWriter(str(directory / FOLDER), purge_step=0))
        except OSError as error:
            _log.warning(
                "no curves for TensorBoard, since %s cannot be written: %s",
                directory / FOLDER,
                error.strerror or error,
            )
            return None

    def draw(self, record: Mapping[str, Any]) -> None:
        """One record of model.training.history."""
        step, when = record["updates"], record["time"]
        for key, name in _SCALARS.items():
            if key in record:
                self._writer.add_scalar(name, record[key], step, walltime=when)
        if "samples" in record:
            self._writer.add_text("samples", _table(record["samples"]), step, walltime=when)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


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
