"""Which TensorRT is here: `tensorrt` (11, or 10) on a machine with a GPU, `tensorrt_rtx` anywhere.

Both have one Python API, as far as `USED` names it. tests/runtime/engines/ checks those names
against tensorrt_rtx by import and against tables of tensorrt's own. What one of the two lacks is in
`RTX_ONLY`. Neither is imported before `load_library` is called: tensorrt comes from NVIDIA's own
index, and loading it takes seconds and some hundred megabytes.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

from runtime.errors import EngineError, MissingExtraError, OptionError
from runtime.extras import install_command

LibraryName = Literal["tensorrt", "tensorrt_rtx"]
LIBRARY_NAMES: tuple[LibraryName, ...] = get_args(LibraryName)
EXTRAS: dict[LibraryName, str] = {"tensorrt": "trt", "tensorrt_rtx": "trt-rtx"}
OLDEST_VERSION = {"tensorrt": (10, 0), "tensorrt_rtx": (1, 7)}

OLDEST_SM, NEWEST_SM = 75, 121
"""Compute capabilities that TensorRT 11 and tensorrt-rtx know of: 7.5 (Turing) to 12.1."""

USED: dict[str, tuple[str, ...]] = {
    "Builder": (
        "build_serialized_network",
        "create_builder_config",
        "create_network",
        "create_optimization_profile",
    ),
    "DataType": ("BOOL", "FLOAT", "HALF", "INT32", "INT64", "INT8"),
    "ExecutionContextAllocationStrategy": ("USER_MANAGED",),
    "IBuilderConfig": (
        "add_optimization_profile",
        "max_aux_streams",
        "profiling_verbosity",
        "progress_monitor",
    ),
    "ICudaEngine": (
        "create_execution_context",
        "get_device_memory_size_for_profile_v2",
        "get_tensor_dtype",
        "get_tensor_location",
        "get_tensor_mode",
        "get_tensor_name",
        "get_tensor_profile_shape",
        "num_io_tensors",
        "num_optimization_profiles",
    ),
    "IExecutionContext": (
        "execute_async_v3",
        "get_tensor_shape",
        "infer_shapes",
        "set_device_memory",
        "set_input_shape",
        "set_optimization_profile_async",
        "set_tensor_address",
    ),
    "IHostMemory": ("nbytes",),
    "ILayer": ("get_input", "get_output", "name", "num_inputs", "num_outputs", "type"),
    "ILogger": ("ERROR", "INFO", "INTERNAL_ERROR", "VERBOSE", "WARNING", "log"),
    "INetworkDefinition": ("get_layer", "num_layers"),
    "IOptimizationProfile": ("set_shape",),
    "IProgressMonitor": ("phase_finish", "phase_start", "step_complete"),
    "ITensor": ("dtype", "name", "shape"),
    "LayerType": ("CONSTANT", "DEQUANTIZE", "MATRIX_MULTIPLY", "SHUFFLE", "SQUEEZE", "UNSQUEEZE"),
    "OnnxParser": ("get_error", "num_errors", "parse_from_file"),
    "ParserError": ("desc",),
    "ProfilingVerbosity": ("DETAILED",),
    "Runtime": ("deserialize_cuda_engine",),
    "TensorIOMode": ("INPUT", "OUTPUT"),
    "TensorLocation": ("DEVICE",),
}
"""Every name of the API that leanseq uses, by class; of the module itself: `__version__`."""

RTX_ONLY: dict[str, tuple[str, ...]] = {
    "ComputeCapability": ("CURRENT", "NONE", "SM75", "SM80", "SM86", "SM89", "SM120"),
    "IBuilderConfig": ("num_compute_capabilities", "set_compute_capability"),
}
"""What builds for another GPU than the one at hand: tensorrt_rtx alone has it."""


@dataclass(frozen=True, kw_only=True)
class Library:
    """An imported TensorRT. targets: what it builds for without being there, such as "sm89"; none
    for tensorrt, which builds for the GPU of its machine."""

    name: LibraryName
    version: str
    targets: tuple[str, ...]
    module: Any

    @property
    def label(self) -> str:
        """tensorrt-rtx 1.7.1.116"""
        return f"{self.name.replace('_', '-')} {self.version}"

    def check_target(self, target: str, gpu: str | None) -> None:
        """Raises EngineError when it can't build for that GPU; gpu: the one here, if any."""
        if target in self.targets or (target == gpu and not self.targets):
            return
        if self.targets:
            raise EngineError(
                f"{self.label} can't build engines for {target}; it can for "
                f"{', '.join(self.targets)}. Build on a machine with such a GPU and "
                f"`{install_command('trt')}`"
            )
        here = f"the GPU here is {gpu}" if gpu else "there is no GPU here"
        raise EngineError(
            f"{self.label} builds for the GPU of its machine only, and {here}, not {target}; "
            f"install tensorrt-rtx, which builds for others: {install_command('trt-rtx')}"
        )


def is_installed(name: LibraryName) -> bool:
    """Whether its package is there; it is not imported."""
    return importlib.util.find_spec(name) is not None


def load_library(name: LibraryName) -> Library:
    """Imports it. Raises MissingExtraError when it is not installed, EngineError when it can't be
    loaded or is too old or too new to have the names that leanseq uses."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise EngineError(_broken(name, error)) from error
        raise MissingExtraError(
            name.replace("_", "-"), EXTRAS[name], "building or running a TensorRT engine"
        ) from error
    except Exception as error:  # what a package does when imported can fail in any way
        raise EngineError(_broken(name, error)) from error
    version = str(getattr(module, "__version__", "0"))
    oldest = OLDEST_VERSION[name]
    missing = missing_names(module)
    if missing or version_tuple(version) < oldest:
        lacks = f" and lacks {', '.join(missing[:3])}" if missing else ""
        raise EngineError(
            f"{name} {version} is installed{lacks}; expected {'.'.join(map(str, oldest))} or a "
            f"later version that leanseq knows: pip install -U {name.replace('_', '-')}"
        )
    return Library(name=name, version=version, targets=_targets(module), module=module)


def missing_names(module: Any, names: dict[str, tuple[str, ...]] | None = None) -> list[str]:
    """Those names of `USED` (or of names) that a module lacks, as "Class.name"."""
    missing = []
    for kind, members in (USED if names is None else names).items():
        found = getattr(module, kind, None)
        if found is None:
            missing.append(kind)
        else:
            missing += [f"{kind}.{member}" for member in members if not hasattr(found, member)]
    return missing


def check_target_name(target: str) -> str:
    """ "sm89". Raises OptionError for what is no compute capability that TensorRT 11 knows."""
    found = re.fullmatch(r"sm([1-9][0-9]{1,2})", target)
    if found is None or not OLDEST_SM <= int(found[1]) <= NEWEST_SM:
        raise OptionError(
            f"target is {target!r}; expected a GPU's compute capability from sm{OLDEST_SM} to "
            f"sm{NEWEST_SM}, such as sm89 for 8.9 (`nvidia-smi --query-gpu=compute_cap "
            "--format=csv` shows it)"
        )
    return target


def version_tuple(version: str) -> tuple[int, ...]:
    """ "11.4.0.106" -> (11, 4, 0, 106); stops at the first part that is no number."""
    numbers = []
    for part in version.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def _broken(name: str, error: Exception) -> str:
    return (
        f"{name} is installed but can't be loaded ({str(error).strip()}); install it again: "
        f"pip install --force-reinstall {name.replace('_', '-')}"
    )


def _targets(module: Any) -> tuple[str, ...]:
    if missing_names(module, RTX_ONLY):
        return ()
    names = [name.lower() for name in module.ComputeCapability.__members__]
    return tuple(name for name in names if name.startswith("sm"))
