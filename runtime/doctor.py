"""What is installed, what this machine has, how a CPU's cores are shared out, which backends run
here, and which engines can be built here, or why they can't."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from runtime.bundle import Bundle
from runtime.engines.library import load_library
from runtime.errors import LeanseqError
from runtime.extras import install_command
from runtime.gpu import GpuReport, find_gpus
from runtime.registry import BACKENDS, check_backend
from runtime.schedule import LARGE_STEP_BYTES, Schedule, choose_schedule
from runtime.scheduled import cpu_step, schedule_for
from runtime.tensorrt_check import check_tensorrt
from runtime.version import __version__

PACKAGES = (
    "numpy",
    "sentencepiece",
    "click",
    "filelock",
    "platformdirs",
    "onnxruntime",
    "onnxruntime-gpu",
    "tensorrt",
    "tensorrt-rtx",
    "cuda-core",
    "torch",
    "onnx",
    "onnxscript",
    "safetensors",
    "sacrebleu",
    "tensorboard",
    "tqdm",
    "babel",
    "unicode-rbnf",
    "matplotlib",
    "ctranslate2",
    "psutil",
)
# What int8 and float kernels ask for, as Linux names it (x86, then ARM).
_CPU_FLAGS = (
    "avx2",
    "avx512f",
    "avx_vnni",
    "avx512_vnni",
    "amx_int8",
    "asimddp",
    "i8mm",
    "sve",
)


@dataclass(frozen=True, kw_only=True)
class BackendReport:
    """reason: why it does not run here; empty where it does."""

    name: str
    runs: bool
    reason: str


@dataclass(frozen=True, kw_only=True)
class EngineReport:
    """Whether TensorRT engines can be built here, for the GPU here or ahead of time for others.

    targets: the GPUs they can be built for, by compute capability, such as "sm89". library: what
    builds them. reason: why none can be; empty where some can.
    """

    name: str
    library: str
    targets: tuple[str, ...]
    reason: str


@dataclass(frozen=True, kw_only=True)
class ScheduleReport:
    """How `translate` shares out the cores on this CPU. model: of which, in words."""

    model: str
    schedule: Schedule


@dataclass(frozen=True, kw_only=True)
class KernelReport:
    """Whether graphs for CPUs run on leanseq's own kernels. reason: why not; empty if they do."""

    native: bool
    reason: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """What `doctor` found. packages: distribution -> version, None where it is not installed."""

    leanseq: str
    python: str
    platform: str
    cpu: dict[str, Any]
    schedules: tuple[ScheduleReport, ...]
    kernels: KernelReport
    gpu: GpuReport
    packages: dict[str, str | None]
    backends: tuple[BackendReport, ...]
    engines: tuple[EngineReport, ...]
    problems: tuple[str, ...]

    @property
    def healthy(self) -> bool:
        """A bundle can be run here."""
        return any(report.runs for report in self.backends if report.name in BACKENDS)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "healthy": self.healthy}


def diagnose(bundle: Bundle | None = None) -> Report:
    """Looks at this process's environment; starts and changes nothing.

    bundle: what the cores are shared out for; without it, for models of either size. Of it only the
    manifest is read.
    """
    packages = {name: _version(name) for name in PACKAGES}
    return Report(
        leanseq=__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        cpu=cpu_report(),
        schedules=schedules_for(bundle),
        kernels=kernels_here(),
        gpu=find_gpus(),
        packages=packages,
        backends=(_eager_report(), *(_backend_report(name) for name in BACKENDS)),
        engines=(engines_for_this_gpu(), engines_ahead_of_time()),
        problems=tuple(find_problems(packages)),
    )


def schedules_for(bundle: Bundle | None) -> tuple[ScheduleReport, ...]:
    """What `translate` chooses where neither --threads nor --workers is given."""
    if bundle is None:
        limit = f"{LARGE_STEP_BYTES / 1e6:.0f} MB"
        return (
            ScheduleReport(model=f"step below {limit}", schedule=choose_schedule(0)),
            ScheduleReport(
                model=f"step of {limit} or more", schedule=choose_schedule(LARGE_STEP_BYTES)
            ),
        )
    step = cpu_step(bundle)
    if step is None:
        return ()
    size = f"{bundle.graph_size(step) / 1e6:.1f} MB"
    model = f"{step.precision}, {step.variant}, step of {size}"
    return (ScheduleReport(model=model, schedule=schedule_for(bundle)),)


def kernels_here() -> KernelReport:
    """Those that ONNX Runtime loads on a CPU."""
    try:
        reason = importlib.import_module("runtime.native_kernels").why_not()
    except ImportError:
        reason = f"onnxruntime is not installed: {install_command('cpu')}"
    return KernelReport(native=not reason, reason=reason)


def engines_for_this_gpu() -> EngineReport:
    """Engines are built where they run: that takes all that running them takes."""
    name = "for this GPU"
    try:
        library = check_tensorrt()
    except LeanseqError as error:
        return EngineReport(name=name, library="", targets=(), reason=str(error))
    target = f"sm{find_gpus().gpus[0].sm}"
    return EngineReport(name=name, library=library.label, targets=(target,), reason="")


def engines_ahead_of_time() -> EngineReport:
    """tensorrt-rtx builds for GPUs that are elsewhere, on any machine."""
    name = "ahead of time"
    try:
        library = load_library("tensorrt_rtx")
    except LeanseqError as error:
        return EngineReport(name=name, library="", targets=(), reason=str(error))
    return EngineReport(name=name, library=library.label, targets=library.targets, reason="")


def find_problems(packages: dict[str, str | None]) -> list[str]:
    """Installed packages that can't stand beside each other."""
    problems = []
    if packages["onnxruntime"] and packages["onnxruntime-gpu"]:
        problems.append(
            "onnxruntime and onnxruntime-gpu are both installed and overwrite each other's files; "
            "uninstall both, then install one: pip uninstall onnxruntime onnxruntime-gpu && "
            f"{install_command('cpu')} (or {install_command('gpu')})"
        )
    return problems


def cpu_report() -> dict[str, Any]:
    """cores of the machine, cores this process may use, and the instruction sets that matter."""
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "usable_cores": len(affinity(0)) if affinity else os.cpu_count(),
        "features": cpu_features(Path("/proc/cpuinfo")),
    }


def cpu_features(cpuinfo: Path) -> list[str] | None:
    """Those of the features that kernels ask for which the CPU has; None where unknown."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return [flag for flag in _CPU_FLAGS if flag in value.split()]
    return None


def render(report: Report) -> str:
    """The report as a person reads it."""
    cpu = report.cpu
    features = "unknown" if cpu["features"] is None else " ".join(cpu["features"]) or "none"
    lines = [
        f"leanseq {report.leanseq}, Python {report.python}, {report.platform}",
        f"CPU: {cpu['machine']}, {cpu['cores']} cores ({cpu['usable_cores']} usable), {features}",
        *_gpu_lines(report.gpu),
        "",
        "Packages:",
        *(f"  {name:<16} {found or 'not installed'}" for name, found in report.packages.items()),
        "",
        "Backends:",
    ]
    for backend in report.backends:
        lines.append(f"  {backend.name:<16} {'runs' if backend.runs else 'no: ' + backend.reason}")
    lines += ["", "On a CPU `translate` runs, if not told otherwise:"]
    for found in report.schedules:
        lines.append(f"  {found.model}: {found.schedule.render()}")
    if not report.schedules:
        lines.append("  nothing: this bundle has no graphs for a CPU")
    kernels = report.kernels
    lines.append(
        "  kernels: leanseq's own"
        if kernels.native
        else f"  kernels: ONNX Runtime's, which are slower ({kernels.reason})"
    )
    lines += ["", "TensorRT engines can be built:"]
    for engines in report.engines:
        can = f"{engines.library}: {' '.join(engines.targets)}"
        lines.append(f"  {engines.name:<16} {'no: ' + engines.reason if engines.reason else can}")
    if report.problems:
        lines += ["", "Problems:", *(f"  {problem}" for problem in report.problems)]
    return "\n".join(lines)


def _gpu_lines(report: GpuReport) -> list[str]:
    if not report.gpus:
        return [f"GPU: none ({report.reason})"]
    driver = f"driver {report.driver or 'unknown'}, CUDA {report.cuda or 'unknown'}"
    return [
        f"GPU {gpu.index}: {gpu.name}, sm{gpu.sm}, {gpu.memory_bytes / 2**30:.1f} GiB, {driver}"
        for gpu in report.gpus
    ]


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _eager_report() -> BackendReport:
    # Found, not imported: runtime never loads torch.
    runs = importlib.util.find_spec("torch") is not None
    reason = "" if runs else f"torch is not installed: {install_command('train')}"
    return BackendReport(name="eager", runs=runs, reason=reason)


def _backend_report(name: str) -> BackendReport:
    try:
        check_backend(BACKENDS[name])
    except (LeanseqError, ImportError, OSError) as error:
        return BackendReport(name=name, runs=False, reason=str(error))
    return BackendReport(name=name, runs=True, reason="")
