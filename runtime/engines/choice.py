"""Which library builds for which GPU: decided before anything that takes time."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from runtime.engines.library import (
    LIBRARY_NAMES,
    OLDEST_SM,
    Library,
    check_target_name,
    is_installed,
    load_library,
)
from runtime.errors import EngineError
from runtime.gpu import find_gpus

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class BuildFor:
    """Engines to build: by that library, for that GPU ("sm89")."""

    library: Library
    target: str


def gpu_here() -> str | None:
    """The first GPU of this machine as "sm89"; None where there is none."""
    gpus = find_gpus().gpus
    return f"sm{gpus[0].sm}" if gpus else None


def choose_builds(targets: Sequence[str] = ()) -> tuple[BuildFor, ...]:
    """What to build engines with, for those targets, each once; without any, for the GPU here.

    The GPU here is built for by tensorrt where that is installed: it is what will run it. All
    others, ahead of time, by tensorrt_rtx. Without targets it is nothing where there is no GPU, or
    no library that builds for it. Raises OptionError for a target that is no GPU, MissingExtraError
    when a library is not installed, EngineError when it can't build for a target.
    """
    for target in targets:
        check_target_name(target)
    gpu = gpu_here()
    if targets:
        return tuple(_build_for(target, gpu) for target in dict.fromkeys(targets))
    if gpu is None or int(gpu[2:]) < OLDEST_SM or not any(map(is_installed, LIBRARY_NAMES)):
        return ()
    try:
        return (_build_for(gpu, gpu),)
    except EngineError as error:  # nobody asked for engines
        logger.warning("engines: %s", error)
        return ()


def _build_for(target: str, gpu: str | None) -> BuildFor:
    if target == gpu and is_installed("tensorrt"):
        return BuildFor(library=load_library("tensorrt"), target=target)
    library = load_library("tensorrt_rtx")
    library.check_target(target, gpu)
    return BuildFor(library=library, target=target)
