"""`python -m calibration`."""

import sys

from runtime.console import run

sys.exit(run("calibration.cli:cli", prog_name="python -m calibration"))
