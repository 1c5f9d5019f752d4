"""Whether the CUDA provider can be used, and what is said when it can't."""

from __future__ import annotations

import ctypes
import dataclasses
from types import SimpleNamespace
from typing import Any

import onnxruntime
import pytest

from runtime import gpu, placement
from runtime.errors import OptionError, UnavailableError
from runtime.gpu import Gpu, GpuReport
from runtime.placement import CPU, check_cuda, check_placed, place

GPU = Gpu(index=0, name="Fake", sm=89, memory_bytes=1)
ONE_GPU = GpuReport(driver="580", cuda="13.0", gpus=(GPU,), reason="")
MISSING = "libcublasLt.so.13: cannot open shared object file: No such file or directory"


@pytest.fixture
def cuda_wheel(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A wheel that has the provider, on a machine with a GPU, which misses the libraries listed."""
    missing: list[str] = []

    def load(path: str) -> Any:
        assert path.endswith("libonnxruntime_providers_cuda.so")
        if missing:
            raise OSError(missing.pop(0))
        raise OSError("undefined symbol: Provider_GetHost")

    monkeypatch.setattr(
        onnxruntime,
        "get_available_providers",
        lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"],
    )
    monkeypatch.setattr(gpu, "find_gpus", lambda: ONE_GPU)
    monkeypatch.setattr(placement, "ctypes", SimpleNamespace(CDLL=load))
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None, raising=False)
    return missing


def test_the_cpu_needs_nothing() -> None:
    assert place("cpu") is CPU
    assert CPU.on_host


def test_a_gpu(cuda_wheel: list[str]) -> None:
    found = place("cuda")
    assert (found.name, found.provider) == ("cuda:0", "CUDAExecutionProvider")
    assert found.options == {"device_id": "0", "use_tf32": "0"}
    assert not found.on_host
    assert found.device.device_type() == 1
    assert found.device.device_id() == 0


def test_another_provider_is_refused() -> None:
    with pytest.raises(OptionError, match="provider is 'tpu'; expected cpu or cuda"):
        place("tpu")


def test_a_wheel_without_the_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        onnxruntime,
        "get_available_providers",
        lambda: ["AzureExecutionProvider", "CPUExecutionProvider"],
    )
    with pytest.raises(
        UnavailableError,
        match=r"the installed onnxruntime [\d.]+ has no CUDA provider, only Azure, CPU\. .*"
        r"pip uninstall onnxruntime onnxruntime-gpu && pip install -e '\.\[gpu\]'",
    ) as caught:
        place("cuda")
    assert caught.value.short == "the installed onnxruntime has no CUDA provider"


def test_a_machine_without_a_gpu(cuda_wheel: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = GpuReport(driver=None, cuda=None, gpus=(), reason="no NVIDIA driver")
    monkeypatch.setattr(gpu, "find_gpus", lambda: nothing)
    with pytest.raises(UnavailableError, match="ONNX Runtime's CUDA provider needs an NVIDIA GPU"):
        check_cuda()


def test_libraries_come_from_their_wheels(
    cuda_wheel: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Missed at first, found once ONNX Runtime has loaded them; what it prints is no data."""
    cuda_wheel.append(MISSING)
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: print("Failed to load something"))
    check_cuda()
    assert cuda_wheel == []
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "Failed to load something\n")


def test_libraries_that_are_missing(cuda_wheel: list[str]) -> None:
    cuda_wheel += [MISSING, MISSING]
    with pytest.raises(
        UnavailableError,
        match=r"the CUDA provider of onnxruntime [\d.]+ doesn't load \(libcublasLt.so.13: .*\): "
        r"CUDA or cuDNN are missing, .*'\.\[gpu\]",
    ) as caught:
        check_cuda()
    assert caught.value.short == "libcublasLt.so.13 doesn't load"


def test_a_session_that_fell_back_is_no_success() -> None:
    fallen: Any = SimpleNamespace(get_providers=lambda: ["CPUExecutionProvider"])
    check_placed(fallen, CPU)
    cuda = dataclasses.replace(CPU, name="cuda:0", provider="CUDAExecutionProvider")
    with pytest.raises(
        UnavailableError,
        match=r"ONNX Runtime [\d.]+ took CPUExecutionProvider instead of CUDAExecutionProvider: "
        r".*`leanseq doctor`",
    ):
        check_placed(fallen, cuda)


def test_ctypes_is_asked_for_a_library_that_does_not_exist_here() -> None:
    """The message that the check looks for is what the system's loader says."""
    with pytest.raises(OSError, match="cannot open shared object file"):
        ctypes.CDLL("libleanseq-no-such-library.so.1")
