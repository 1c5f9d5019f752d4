"""What a number was measured on: processor, cores, versions, time."""

from __future__ import annotations

import logging
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from runtime.cores import usable_cpus
from runtime.version import __version__

logger = logging.getLogger(__name__)

_PACKAGES = ("numpy", "onnxruntime", "onnxruntime-gpu", "torch", "ctranslate2", "sacrebleu")


def warn_without_kernels() -> None:
    """Says so where leanseq's own kernels are left out: what is measured then is slower. Needs
    onnxruntime."""
    from runtime.native_kernels import why_not

    if reason := why_not():
        logger.warning("leanseq runs without its own kernels, so more slowly (%s)", reason)


def describe_machine() -> dict[str, Any]:
    """{"cpu", "cores", "system", "python", "versions"}: cores are those this process may use."""
    return {
        "cpu": cpu_name(),
        "cores": len(usable_cpus()),
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
