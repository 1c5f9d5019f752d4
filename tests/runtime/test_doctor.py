from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.fake_bundle import fake_entry, write_fake_bundle
from support.tree import ROOT

from runtime import doctor, gpu, registry, tensorrt_check
from runtime.bundle import Bundle
from runtime.doctor import (
    PACKAGES,
    cpu_features,
    diagnose,
    engines_ahead_of_time,
    engines_for_this_gpu,
    find_problems,
    render,
)
from runtime.engines.library import Library
from runtime.errors import EngineError, MissingExtraError, UnavailableError
from runtime.gpu import Gpu, GpuReport
from runtime.registry import BACKENDS, Entry
from runtime.tensorrt_check import check_tensorrt
from runtime.version import __version__


def test_diagnose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BACKENDS, "onnxruntime", fake_entry())
    report = diagnose()
    assert report.healthy
    assert report.leanseq == __version__
    assert report.packages["numpy"] is not None
    assert report.cpu["usable_cores"] >= 1
    assert json.loads(json.dumps(report.to_json()))["healthy"] is True
    text = render(report)
    assert f"leanseq {__version__}, Python 3." in text
    assert "  onnxruntime      runs" in text


def test_it_says_what_translate_picks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.cores.physical_cores", lambda: 2)
    text = render(diagnose())
    assert "\n  step below 16 MB: 2 workers of 1 thread each, batches of up to 512" in text
    assert "\n  step of 16 MB or more: 2 workers of 1 thread each, " in text
    assert "a batch alone: 2 threads (2 cores; a step reads 16 MB of weights)" in text
    bundle = Bundle.open(write_fake_bundle(tmp_path / "b", precisions=("fp32", "int8")))
    report = diagnose(bundle)
    assert "\n  int8, portable, step of 0.0 MB: 2 workers of 1 thread each, " in render(report)
    (values,) = json.loads(json.dumps(report.to_json()))["schedules"]
    assert values["schedule"]["workers"] == 2
    (tmp_path / "b" / "encoder.int8.onnx").unlink()  # it reads no graph
    assert diagnose(bundle) == report
    half = Bundle.open(write_fake_bundle(tmp_path / "half", precisions=("fp16",)))
    assert "nothing: this bundle has no graphs for a CPU" in render(diagnose(half))


def test_every_package_that_an_install_brings_is_named() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = list(project["dependencies"])
    for extra, packages in project["optional-dependencies"].items():
        lines += [] if extra == "dev" else packages
    named = {re.split(r"[>=\[]", line)[0] for line in lines}
    assert {"matplotlib", "tensorboard"} < named
    assert named == set(PACKAGES)
    assert "\n  matplotlib       " in render(diagnose())


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = Entry(
        factory="no_such_package_at_all:x",
        package="no_such_package_at_all",
        extra="cpu",
        precisions=("fp32",),
    )
    monkeypatch.setitem(registry.BACKENDS, "onnxruntime", absent)
    monkeypatch.setattr("runtime.doctor.importlib.util.find_spec", lambda name: None)
    report = diagnose()
    assert not report.healthy
    text = render(report)
    assert "onnxruntime      no: the no_such_package_at_all backend needs the package" in text
    assert "pip install -e '.[cpu]'" in text
    assert "eager            no: torch is not installed: pip install -e '.[train]'" in text


ONE_GPU = GpuReport(
    driver="580.65.06",
    cuda="13.0",
    gpus=(Gpu(index=0, name="Fake L4", sm=89, memory_bytes=24 * 2**30),),
    reason="",
)


def rtx(*targets: str) -> Library:
    return Library(name="tensorrt_rtx", version="1.7.1", targets=targets, module=None)


def a_gpu_box(monkeypatch: pytest.MonkeyPatch, library: Library, *installed: str) -> None:
    """A machine with that library, and with those of its packages."""
    for module in (gpu, doctor):
        monkeypatch.setattr(module, "find_gpus", lambda: ONE_GPU)
    monkeypatch.setattr(tensorrt_check, "is_installed", lambda name: name in installed)
    spec = object() if "cuda.core" in installed else None
    found = SimpleNamespace(util=SimpleNamespace(find_spec=lambda name: spec))
    monkeypatch.setattr(tensorrt_check, "importlib", found)
    for module in (tensorrt_check, doctor):
        monkeypatch.setattr(module, "load_library", lambda name: library)


def test_what_a_gpu_box_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    a_gpu_box(monkeypatch, rtx("sm75", "sm89"), "tensorrt_rtx", "cuda.core")
    assert check_tensorrt().name == "tensorrt_rtx"
    report = diagnose()
    text = render(report)
    assert "GPU 0: Fake L4, sm89, 24.0 GiB, driver 580.65.06, CUDA 13.0\n" in text
    assert "  for this GPU     tensorrt-rtx 1.7.1: sm89\n" in text
    assert "  ahead of time    tensorrt-rtx 1.7.1: sm75 sm89" in text
    values = json.loads(json.dumps(report.to_json()))
    assert values["gpu"]["gpus"][0]["sm"] == 89
    assert values["engines"][0]["targets"] == ["sm89"]


@pytest.mark.parametrize(
    ("library", "installed", "error", "text"),
    [
        (rtx("sm89"), (), MissingExtraError, r"needs the package tensorrt, .*'\.\[trt\]"),
        (rtx("sm89"), ("tensorrt",), MissingExtraError, r"needs the package cuda-core, .*\[trt\]"),
        (
            rtx("sm75"),
            ("tensorrt_rtx", "cuda.core"),
            EngineError,
            "tensorrt-rtx 1.7.1 can't build engines for sm89; it can for sm75",
        ),
    ],
)
def test_what_keeps_tensorrt_from_running(
    library: Library,
    installed: tuple[str, ...],
    error: type[Exception],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a_gpu_box(monkeypatch, library, *installed)
    with pytest.raises(error, match=text):
        check_tensorrt()
    found = engines_for_this_gpu()
    assert found.targets == ()
    assert found.reason


def test_without_a_gpu_tensorrt_is_not_even_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> Any:
        raise AssertionError("loading it takes seconds")

    a_gpu_box(monkeypatch, rtx("sm89"), "tensorrt_rtx", "cuda.core")
    nothing = dataclasses.replace(ONE_GPU, gpus=(), reason="no NVIDIA driver")
    monkeypatch.setattr(gpu, "find_gpus", lambda: nothing)
    monkeypatch.setattr(tensorrt_check, "load_library", load)
    with pytest.raises(UnavailableError, match="the tensorrt backend needs an NVIDIA GPU"):
        check_tensorrt()


def test_engines_ahead_of_time_need_tensorrt_rtx(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> Any:
        raise MissingExtraError("tensorrt-rtx", "trt-rtx", "building")

    monkeypatch.setattr(doctor, "load_library", load)
    found = engines_ahead_of_time()
    assert found.targets == ()
    assert "pip install -e '.[trt-rtx]'" in found.reason


def test_every_backend_is_told_of_with_its_reason() -> None:
    reports = {report.name: report for report in diagnose().backends}
    assert list(reports) == ["eager", *BACKENDS]
    for report in reports.values():
        assert report.runs == (report.reason == "")


def test_both_onnxruntimes_are_a_problem() -> None:
    one = {"onnxruntime": "1.22", "onnxruntime-gpu": None}
    assert find_problems(one) == []
    (problem,) = find_problems({"onnxruntime": "1.22", "onnxruntime-gpu": "1.22"})
    assert "both installed" in problem
    assert "pip uninstall onnxruntime onnxruntime-gpu" in problem


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "processor : 0\nflags\t\t: fpu avx2 avx512f avx512_vnni\n",
            ["avx2", "avx512f", "avx512_vnni"],
        ),
        ("Features\t: fp asimd asimddp i8mm\n", ["asimddp", "i8mm"]),
        ("flags : fpu\n", []),
        ("nothing\n", None),
    ],
)
def test_cpu_features(tmp_path: Path, text: str, expected: list[str] | None) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(text)
    assert cpu_features(path) == expected
    assert cpu_features(tmp_path / "absent") is None
