"""`python -m model`."""

import sys

from runtime.console import run

sys.exit(run("model.cli:cli", prog_name="python -m model"))
