"""What a training was like, as lines of JSON in DIR/training/history.jsonl, and as curves.

Each line holds `updates`, how many were done, `time` (seconds since 1970) and `seconds` (of the
training, across resumes), and, by its `kind`:

    training    since the line before: loss (nats a target token), gradient_norm (before clipping),
                learning_rate (of the last update), tokens_per_second (target tokens, without
                validations and saves), epoch (with fractions)
    validation  valid_loss, valid_bleu, valid_bleu_lc, samples
    end         candidates and which of them was chosen (model.training.selection); valid_loss,
                valid_bleu and valid_bleu_lc of the last weights

A training that is killed and goes on drops what it wrote after its last save, and writes it again.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from model import redo
from model.errors import CheckpointError
from model.training.curves import SCALARS, Curves, remove_curves
from model.training.state import FOLDER, HISTORY

_KINDS = ("training", "validation", "end")

RECORD_EVERY = 50
"""Updates between lines of kind `training`. A save ends one too, so none reaches across it."""


class History:
    """Appends to the history of the training in `directory`, after its first `updates` updates."""

    def __init__(self, directory: Path, *, updates: int, tensorboard: bool) -> None:
        self._path = directory / FOLDER / HISTORY
        records = [
            record
            for record in read_history(directory)
            if record["updates"] <= updates and record["kind"] != "end"
        ]
        text = "".join(_line(record) for record in records)
        redo.write_together(
            self._path.parent, {HISTORY: lambda target: target.write_text(text, encoding="utf-8")}
        )
        self._curves = Curves.open(directory) if tensorboard else None
        if self._curves is None:
            remove_curves(directory)
        for record in records:
            self._draw(record)
        self.flush()

    def add(self, kind: str, updates: int, seconds: float, **values: Any) -> None:
        """Raises CheckpointError if it cannot be written."""
        record = {
            "kind": kind,
            "updates": updates,
            "time": round(time.time(), 3),
            "seconds": round(seconds, 3),
            **values,
        }
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(_line(record))
        except OSError as error:
            raise CheckpointError(
                f"cannot write to {self._path}: {error.strerror or error}; make it writable, and "
                "space on its disk"
            ) from error
        self._draw(record)

    def flush(self) -> None:
        if self._curves is not None:
            self._curves.flush()

    def close(self) -> None:
        if self._curves is not None:
            self._curves.close()

    def _draw(self, record: dict[str, Any]) -> None:
        if self._curves is not None:
            self._curves.draw(record)


def read_history(directory: Path) -> list[dict[str, Any]]:
    """The records of the training in `directory`, in order; lines that are none, such as one that a
    kill cut short, are left out.

    Raises CheckpointError if the file cannot be read.
    """
    path = directory / FOLDER / HISTORY
    redo.finish_pending(path.parent)
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read ({error.strerror}); make it readable, or move it away to go on "
            "with a new history"
        ) from error
    records = []
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if _is_record(record):
            records.append(record)
    return records


def _is_record(record: Any) -> bool:
    """Whether that is what History.add writes, as far as anyone here reads it."""
    try:
        kind, updates = record["kind"], record["updates"]
        numbers = [record["time"], *(record[name] for name in SCALARS if name in record)]
        samples = record.get("samples", [])
        texts = [t for s in samples for t in (s["source"], s["translation"], *s["references"])]
    except (KeyError, TypeError):
        return False
    return (
        kind in _KINDS
        and type(updates) is int
        and all(type(n) in (int, float) and not abs(n) >= 2**63 for n in (updates, *numbers))
        and all(isinstance(text, str) for text in texts)
    )


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"
