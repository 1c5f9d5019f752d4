"""The extras of pyproject.toml: which brings a package, and how one is installed."""

from __future__ import annotations

import shlex
from pathlib import Path

DEFAULT_EXTRA = "train"
EXTRA_OF = {
    "onnxruntime": "cpu",
    "matplotlib": "plot",
    "ctranslate2": "peers",
    "psutil": "peers",
}
"""Of packages that are no base dependency, where it is another than DEFAULT_EXTRA."""

_ROOT = Path(__file__).parents[1]


def install_command(extra: str, *, root: Path = _ROOT) -> str:
    """What to type, in any directory, to install an extra of this very leanseq.

    It is on no index: in a checkout pip is given its directory. Of a wheel it is given the name,
    which pip finds installed, and adds the packages of the extra. root: where leanseq lies.
    """
    if not (root / "pyproject.toml").is_file():
        return f"pip install 'leanseq[{extra}]'"
    if root == Path.cwd():
        return f"pip install -e '.[{extra}]'"
    return f"pip install -e {shlex.quote(f'{root}[{extra}]')}"
