"""What the driver says of the GPUs, with a driver of our own in its place."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from runtime import gpu
from runtime.errors import BackendError, UnavailableError
from runtime.gpu import Gpu, GpuReport, check_gpu, find_gpus

MEMORY = 24 * 2**30 + 1


@dataclass
class FakeDriver:
    """libcuda and NVML at once: the calls that find_gpus makes, with C's conventions."""

    count: int = 2
    status: int = 0
    nvml_status: int = 0

    def cuInit(self, flags: int) -> int:  # noqa: N802
        assert flags == 0
        return self.status

    def cuDriverGetVersion(self, version: Any) -> int:  # noqa: N802
        version._obj.value = 13010
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = self.count
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:  # noqa: N802
        device._obj.value = index + 40
        return 0

    def cuDeviceGetName(self, name: Any, size: int, device: Any) -> int:  # noqa: N802
        name.value = f"Fake {device.value}".encode()[: size - 1]
        return 0

    def cuDeviceTotalMem_v2(self, memory: Any, device: Any) -> int:  # noqa: N802
        assert isinstance(memory._obj, ctypes.c_size_t)
        memory._obj.value = MEMORY
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:  # noqa: N802
        value._obj.value = {75: 8, 76: 9}[attribute]
        return 0

    def nvmlInit_v2(self) -> int:  # noqa: N802
        return self.nvml_status

    def nvmlShutdown(self) -> int:  # noqa: N802
        return 0

    def nvmlSystemGetDriverVersion(self, text: Any, size: int) -> int:  # noqa: N802
        text.value = b"580.65.06"
        return 0


def loader(driver: FakeDriver, *absent: str) -> Callable[[str], FakeDriver]:
    def load(name: str) -> FakeDriver:
        if any(part in name for part in absent):
            raise OSError(f"{name}: cannot open shared object file")
        return driver

    return load


def test_gpus_are_found() -> None:
    assert find_gpus(loader(FakeDriver())) == GpuReport(
        driver="580.65.06",
        cuda="13.1",
        gpus=(
            Gpu(index=0, name="Fake 40", sm=89, memory_bytes=MEMORY),
            Gpu(index=1, name="Fake 41", sm=89, memory_bytes=MEMORY),
        ),
        reason="",
    )


@pytest.mark.parametrize(
    ("driver", "absent", "expected"),
    [
        (FakeDriver(), ("cuda", "nvml", "nvidia-ml"), (None, None, "no NVIDIA driver")),
        (FakeDriver(), ("cuda",), ("580.65.06", None, "the driver has no libcuda")),
        (FakeDriver(count=0), (), ("580.65.06", "13.1", "no NVIDIA GPU is visible")),
        (FakeDriver(status=100), (), ("580.65.06", "13.1", "no NVIDIA GPU is visible")),
        (
            FakeDriver(status=803, nvml_status=18),
            (),
            (None, "13.1", "the NVIDIA driver doesn't start (CUDA error 803)"),
        ),
    ],
)
def test_why_there_are_none(
    driver: FakeDriver, absent: tuple[str, ...], expected: tuple[str | None, str | None, str]
) -> None:
    if driver.status == 100:
        driver.count = 0
    report = find_gpus(loader(driver, *absent))
    assert (report.driver, report.cuda, report.reason) == expected
    assert report.gpus == ()


def test_an_nvml_that_is_missing_costs_the_release_alone() -> None:
    report = find_gpus(loader(FakeDriver(count=1), "nvidia-ml", "nvml"))
    assert report.driver is None
    assert [found.sm for found in report.gpus] == [89]


def test_asking_this_machine_does_no_harm() -> None:
    report = find_gpus()
    assert bool(report.gpus) == (report.reason == "")


def test_check_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_gpus(loader(FakeDriver()))
    monkeypatch.setattr(gpu, "find_gpus", lambda: found)
    assert check_gpu("a test").name == "Fake 40"
    assert check_gpu("a test", oldest_sm=89).sm == 89
    with pytest.raises(
        UnavailableError, match=r"a test needs a GPU of sm90 or newer; Fake 40 is sm89\. Take"
    ) as caught:
        check_gpu("a test", oldest_sm=90)
    assert caught.value.short == "Fake 40 is sm89, too old"


def test_check_gpu_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    none = GpuReport(driver=None, cuda=None, gpus=(), reason="no NVIDIA driver")
    monkeypatch.setattr(gpu, "find_gpus", lambda: none)
    with pytest.raises(
        BackendError,
        match=r"a test needs an NVIDIA GPU and its driver: no NVIDIA driver\. Run it on a machine "
        r"that has one .*--backend onnxruntime",
    ) as caught:
        check_gpu("a test")
    assert isinstance(caught.value, UnavailableError)
    assert caught.value.short == "no NVIDIA driver"
