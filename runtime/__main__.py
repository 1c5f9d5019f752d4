"""`python -m runtime`."""

import sys

from runtime.console import run

sys.exit(run("runtime.cli:runtime_cli", prog_name="python -m runtime"))
