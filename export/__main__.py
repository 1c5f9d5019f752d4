"""python -m export"""

from __future__ import annotations

import sys

from runtime.console import run

sys.exit(run("export.cli:cli", prog_name="python -m export"))
