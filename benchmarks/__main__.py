"""`python -m benchmarks`."""

import sys

from runtime.console import run

if __name__ == "__main__":
    sys.exit(run("benchmarks.cli:cli", prog_name="python -m benchmarks"))
