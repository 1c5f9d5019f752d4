"""Curves, read from TensorBoard's event files."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def points(directory: Path, name: str) -> list[tuple[int, float]]:
    """Step and value of every point of one curve of the training in `directory`, as they stand in
    its event files: none is dropped for being there twice."""
    return [(event.step, event.value) for event in open_events(directory).Scalars(name)]


def open_events(directory: Path) -> Any:
    """TensorBoard's reader."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(
        str(directory / "tensorboard"), size_guidance={"scalars": 0}, purge_orphaned_data=False
    )
    return events.Reload()
