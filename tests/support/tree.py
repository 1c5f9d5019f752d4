"""A copy of the source tree, for tests that build it or run its commands somewhere else."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def tracked_files() -> list[Path]:
    """Paths, relative to ROOT, of what git tracks or would: nothing that .gitignore names."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [Path(name) for name in listed.split("\0") if name and (ROOT / name).is_file()]


def copy_tree(destination: Path) -> Path:
    """Copies those files, modes and times included, and returns the destination."""
    for file in tracked_files():
        target = destination / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / file, target)
    return destination


def environment_without_make() -> dict[str, str]:
    """The environment less what an outer make (`make test`) would tell an inner one."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
