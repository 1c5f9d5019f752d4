"""Counting cores that share their hardware once."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime import cores
from runtime.errors import OptionError


def write_topology(directory: Path, siblings: dict[int, str]) -> Path:
    for cpu, text in siblings.items():
        topology = directory / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{text}\n")
    return directory


def test_hyper_threads_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = write_topology(tmp_path, {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"})
    monkeypatch.setattr(cores, "usable_cpus", lambda: [0, 1, 2, 3])
    assert cores.physical_cores(directory) == 2
    monkeypatch.setattr(cores, "usable_cpus", lambda: [0, 2])
    assert cores.physical_cores(directory) == 1


def test_without_topology_every_cpu_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "usable_cpus", lambda: [4, 5, 6])
    assert cores.physical_cores(tmp_path) == 3


def test_here_there_is_at_least_one() -> None:
    assert cores.physical_cores() >= 1
    assert len(cores.usable_cpus()) >= cores.physical_cores()


@pytest.mark.parametrize("threads", [0, -1, cores.MAX_THREADS + 1])
def test_threads_that_no_machine_can_start(threads: int) -> None:
    with pytest.raises(OptionError, match=f"threads is {threads}; expected .* at most 1024"):
        cores.check_threads(threads)
    for usable in (None, 1, cores.MAX_THREADS):
        cores.check_threads(usable)
