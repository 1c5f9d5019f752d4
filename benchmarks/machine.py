"""What a number was measured on: processor, cores, versions, time."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from runtime.version import __version__

_PACKAGES = ("numpy", "onnxruntime", "onnxruntime-gpu", "torch", "ctranslate2", "sacrebleu")


def describe_machine() -> dict[str, Any]:
    """{"cpu", "cores", "system", "python", "versions"}: cores are those this process may use."""
    return {
        "cpu": cpu_name(),
        "cores": usable_cores(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": installed_versions(),
    }


def cpu_name() -> str:
    """The processor's name as the system gives it, else its architecture."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def installed_versions(packages: Sequence[str] = _PACKAGES) -> dict[str, str]:
    """Versions of leanseq and of those of the packages that are installed."""
    versions = {"leanseq": __version__}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def now() -> str:
    """The time in UTC, to the second, as ISO 8601."""
    return datetime.now(UTC).replace(microsecond=0).isoformat()
