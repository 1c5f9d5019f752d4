"""The kernels of runtime/native: one library, which runs operators of the domain `leanseq`.

The graphs of variant `cpu_static` call these operators, and say as ONNX functions what each
computes. A session that the library is registered with runs a kernel for each; without it ONNX
Runtime puts the function's nodes in its place. Results agree to rounding; those of one session
depend on neither batch nor threads either way (docs/decisions/0019-native-kernels.md).
"""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import logging
import os
from importlib import metadata
from pathlib import Path

import onnxruntime

from runtime.version import __version__

DOMAIN = "leanseq"
"""Of the operators, and of the functions in the graphs."""
VERSION = 1
SWITCH = "LEANSEQ_NATIVE_KERNELS"
"""An environment variable: 0 (or false, no, off) leaves the kernels out."""
_OFF = ("0", "false", "no", "off")

logger = logging.getLogger(__name__)


def library_path() -> Path | None:
    """The compiled library; None where installing found no C++ compiler.

    It lies beside this file; or, where that is of a checkout that Python takes before what was
    installed (`python -m` in its directory), in the installed leanseq of the same version.
    """
    places = [Path(__file__).parent]
    with contextlib.suppress(metadata.PackageNotFoundError):
        installed = metadata.distribution("leanseq")
        if installed.version == __version__:
            places.append(Path(str(installed.locate_file("runtime"))))
    names = [f"_kernels{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES]
    paths = (place / name for place in places for name in names)
    return next((path for path in paths if path.is_file()), None)


@functools.cache
def why_not() -> str:
    """Why sessions go without the kernels; empty where they have them."""
    switch = os.environ.get(SWITCH, "").strip().lower()
    if switch in _OFF:
        return f"{SWITCH} is {switch}"
    path = library_path()
    if path is None:
        return "not compiled: install a C++ compiler (g++ or clang++), then leanseq again"
    try:
        onnxruntime.SessionOptions().register_custom_ops_library(str(path))
    except Exception as error:  # ONNX Runtime's errors share no root
        logger.warning("%s can't be loaded, ONNX Runtime's own kernels run: %s", path.name, error)
        return f"{path.name} can't be loaded: {str(error).strip().splitlines()[0]}"
    return ""


def use_native_kernels(options: onnxruntime.SessionOptions) -> bool:
    """Registers the kernels with a session to come, where they are to be had; whether they are."""
    if why_not():
        return False
    options.register_custom_ops_library(str(library_path()))
    return True
