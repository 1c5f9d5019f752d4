"""What is timed: how many lines at once, how many beams, and where a search ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from model.samples import spread
from runtime.options import SearchOptions


@dataclass(frozen=True, kw_only=True)
class Workload:
    """batch: lines that are given at once; None gives all of them, as a file."""

    name: str
    label: str
    batch: int | None
    beam_size: int

    def items(self, lines: Sequence[str], count: int) -> list[list[str]]:
        """At most `count` batches from all over the lines; the whole file is one item."""
        if self.batch is None:
            return [list(lines)]
        starts = range(0, max(1, len(lines) - self.batch + 1), self.batch)
        return [list(lines[start : start + self.batch]) for start in spread(starts, count)]

    def options(self, defaults: SearchOptions, steps: int | None) -> SearchOptions:
        """The defaults with this beam size; steps: the exact number of target tokens, if any."""
        changes: dict[str, int] = {"beam_size": self.beam_size, "num_hypotheses": 1}
        if steps is not None:
            changes |= {"min_length": steps, "max_length": steps}
        return SearchOptions.from_json({**defaults.to_json(), **changes})


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(name="1x1", label="batch 1, beam 1", batch=1, beam_size=1),
        Workload(name="1x4", label="batch 1, beam 4", batch=1, beam_size=4),
        Workload(name="32x4", label="batch 32, beam 4", batch=32, beam_size=4),
        Workload(name="file", label="the whole file, beam 4", batch=None, beam_size=4),
    )
}
