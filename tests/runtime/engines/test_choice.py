"""Which library builds for which GPU."""

from __future__ import annotations

import logging

import pytest
from support.engines import rtx
from support.fake_builds import Fake

from runtime.engines import choice
from runtime.engines.choice import choose_builds
from runtime.errors import EngineError, MissingExtraError, OptionError
from runtime.gpu import Gpu, GpuReport


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The compute capabilities of the GPUs here; put some in."""
    found: list[int] = []

    def find_gpus() -> GpuReport:
        gpus = tuple(Gpu(index=i, name="x", sm=sm, memory_bytes=1) for i, sm in enumerate(found))
        return GpuReport(driver=None, cuda=None, gpus=gpus, reason="")

    monkeypatch.setattr(choice, "find_gpus", find_gpus)
    return found


@pytest.fixture
def only_rtx(monkeypatch: pytest.MonkeyPatch) -> None:
    rtx()
    monkeypatch.setattr(choice, "is_installed", lambda name: name == "tensorrt_rtx")


def chosen(*targets: str) -> list[tuple[str, str]]:
    return [(build.library.name, build.target) for build in choose_builds(targets)]


def test_no_gpu_and_no_target_builds_nothing(gpu: list[int]) -> None:
    assert choose_builds() == ()


@pytest.mark.usefixtures("only_rtx")
def test_targets_are_built_ahead_of_time_each_once(gpu: list[int]) -> None:
    rtx_builds = [("tensorrt_rtx", "sm89"), ("tensorrt_rtx", "sm120")]
    assert chosen("sm89", "sm120", "sm89") == rtx_builds


@pytest.mark.usefixtures("only_rtx")
def test_tensorrt_rtx_builds_for_the_gpu_here(gpu: list[int]) -> None:
    gpu.append(89)
    assert chosen() == [("tensorrt_rtx", "sm89")]


def test_tensorrt_builds_for_the_gpu_here(gpu: list[int], fake: Fake) -> None:
    rtx()
    gpu.append(90)
    assert chosen() == [("tensorrt", "sm90")]
    assert chosen("sm90", "sm89") == [("tensorrt", "sm90"), ("tensorrt_rtx", "sm89")]


@pytest.mark.parametrize("sm", [61, 70])
def test_a_gpu_too_old_is_left_alone(sm: int, gpu: list[int], fake: Fake) -> None:
    gpu.append(sm)
    assert chosen() == []


def test_no_library_and_no_target_builds_nothing(
    gpu: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu.append(89)
    monkeypatch.setattr(choice, "is_installed", lambda name: False)
    assert chosen() == []


@pytest.mark.usefixtures("only_rtx")
def test_a_gpu_that_the_library_can_not_build_for(
    gpu: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    gpu.append(90)
    with caplog.at_level(logging.WARNING):
        assert chosen() == []  # nobody asked for engines
    assert "can't build engines for sm90; it can for sm75" in caplog.text
    with pytest.raises(EngineError, match="can't build engines for sm90"):
        choose_builds(["sm90"])


def test_targets_without_the_library(gpu: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tensorrt_rtx", None)
    with pytest.raises(MissingExtraError, match=r"pip install -e '\.\[trt-rtx\]'"):
        choose_builds(["sm89"])


def test_wrong_targets(gpu: list[int]) -> None:
    with pytest.raises(OptionError, match="target is 'de'; expected a GPU's compute capability"):
        choose_builds(["de"])
