"""Whether TensorRT engines can be run here, and what of it is missing if not."""

from __future__ import annotations

import importlib.util

from runtime.engines.library import LIBRARY_NAMES, OLDEST_SM, Library, is_installed, load_library
from runtime.errors import MissingExtraError
from runtime.gpu import check_gpu


def check_tensorrt() -> Library:
    """The library that would run engines here; of two, tensorrt.

    Raises MissingExtraError without a library or without cuda-core, UnavailableError without a GPU
    that is new enough, EngineError for a library that can't be loaded, or not build for this GPU.
    What is asked first costs least: nothing is imported on a machine without a GPU.
    """
    installed = [name for name in LIBRARY_NAMES if is_installed(name)]
    if not installed:
        raise MissingExtraError("tensorrt", "trt", "the tensorrt backend")
    if not _has_cuda_core():
        raise MissingExtraError("cuda-core", "trt", "the tensorrt backend")
    here = f"sm{check_gpu('the tensorrt backend', OLDEST_SM).sm}"
    library = load_library(installed[0])
    library.check_target(here, here)
    return library


def _has_cuda_core() -> bool:
    try:
        return importlib.util.find_spec("cuda.core") is not None
    except ModuleNotFoundError:  # not even `cuda`
        return False
