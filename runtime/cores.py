"""How many cores there are to compute on."""

from __future__ import annotations

import os
from pathlib import Path

from runtime.errors import OptionError
from runtime.numbers import shown

MAX_THREADS = 1024

_CPU_DIRECTORY = Path("/sys/devices/system/cpu")


def usable_cpus() -> list[int]:
    """The logical CPUs that this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    if affinity is not None:
        return sorted(affinity(0))
    return list(range(os.cpu_count() or 1))


def physical_cores(directory: Path = _CPU_DIRECTORY) -> int:
    """Cores this process may run on, counting those that share one once; at least 1.

    Two threads that multiply matrices on one core get in each other's way. Where the system doesn't
    tell (other than Linux), every logical CPU counts.
    """
    siblings = set()
    for cpu in usable_cpus():
        topology = directory / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        try:
            siblings.add(topology.read_text(encoding="ascii").strip())
        except OSError:
            siblings.add(str(cpu))
    return max(1, len(siblings))


def check_threads(threads: int | None) -> None:
    """Raises OptionError unless it is None or a number of threads that a machine can start."""
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise OptionError(
            f"threads is {shown(threads)}; expected a whole number of at least 1 and at "
            f"most {MAX_THREADS}"
        )
