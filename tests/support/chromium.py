"""A headless browser of this machine, for tests of pages."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def dump_dom(url: str, profile: Path) -> str:
    """The document as it is after its scripts have run. profile: an empty directory."""
    command = [
        find() or NAMES[0], "--headless", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={profile}", "--virtual-time-budget=2000", "--dump-dom", url,
    ]  # fmt: skip
    if os.geteuid() == 0:  # its sandbox refuses root
        command.insert(1, "--no-sandbox")
    done = subprocess.run(command, capture_output=True, check=True, timeout=240)
    return done.stdout.decode()
