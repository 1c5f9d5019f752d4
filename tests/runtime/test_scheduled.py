"""Backends opened with the threads that a search gets."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from support.fake_backend import FakeBackend, copying_logits
from support.fake_bundle import fake_entry, write_fake_bundle

from runtime import registry, schedule, scheduled
from runtime.backend import Backend
from runtime.bundle import Bundle
from runtime.errors import OptionError
from runtime.schedule import Schedule
from runtime.scheduled import ScheduledBackends, open_scheduled, schedule_for


class Opened(FakeBackend):
    """Knows with how many threads it was opened."""

    def __init__(self, threads: int | None) -> None:
        super().__init__(copying_logits(10), 10)
        self.threads = threads
        self.trimmed = 0

    def trim(self) -> None:
        self.trimmed += 1


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    """Opening one of its backends appends it to `opened`; a machine of four cores."""
    monkeypatch.setattr("runtime.cores.physical_cores", lambda: 4)
    monkeypatch.setitem(registry.BACKENDS, "onnxruntime", fake_entry())
    return Bundle.open(write_fake_bundle(tmp_path / "b", precisions=("fp32", "int8")))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Opened]:
    found: list[Opened] = []

    def open_backend(*args: object, threads: int | None, **kwargs: object) -> Backend:
        found.append(Opened(threads))
        return found[-1]

    monkeypatch.setattr(scheduled, "open_backend", open_backend)
    return found


def test_a_small_model_is_opened_once(bundle: Bundle, opened: list[Opened]) -> None:
    backends = open_scheduled(bundle)
    assert backends.schedule.workers == 4
    assert backends.get(alone=True) is backends.get(alone=False) is backends.first
    assert [backend.threads for backend in opened] == [1]


@pytest.mark.parametrize("many_lines", [False, True])
def test_a_large_model_is_opened_again_when_the_other_threads_are_needed(
    bundle: Bundle, opened: list[Opened], many_lines: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "LARGE_STEP_BYTES", 0)
    backends = open_scheduled(bundle, many_lines=many_lines)
    assert backends.get(alone=not many_lines) is backends.first
    assert len(opened) == 1
    other = backends.get(alone=many_lines)
    assert backends.get(alone=many_lines) is other
    assert [backend.threads for backend in opened] == ([1, 4] if many_lines else [4, 1])
    backends.trim()
    assert [backend.trimmed for backend in opened] == [1, 1]
    backends.close()
    assert all(backend.closed for backend in opened)


def test_what_is_asked_for_is_opened(bundle: Bundle, opened: list[Opened]) -> None:
    backends = open_scheduled(bundle, threads=3, workers=2)
    assert backends.get(alone=True) is backends.get(alone=False)
    assert (backends.schedule.workers, opened[0].threads) == (2, 3)
    with pytest.raises(OptionError, match="workers is 0"):
        open_scheduled(bundle, workers=0)


def test_a_gpu_searches_one_batch_at_a_time(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Opened(1)
    gpu.capabilities = dataclasses.replace(gpu.capabilities, device="cuda:0")
    monkeypatch.setattr(scheduled, "open_backend", lambda *args, **kwargs: gpu)
    backends = open_scheduled(bundle)
    assert (backends.schedule.workers, backends.schedule.threads) == (1, None)
    assert backends.get(alone=False) is gpu
    assert open_scheduled(bundle, workers=3).schedule.workers == 3


def test_the_size_that_counts_is_that_of_the_step_in_its_precision(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def choose(step_bytes: int | None, **given: object) -> Schedule:
        seen.append(step_bytes)
        return Schedule()

    monkeypatch.setattr(scheduled, "choose_schedule", choose)
    sizes = {"decoder_step.int8.onnx": 7, "decoder_step.fp32.onnx": 28}
    files = {
        name: dataclasses.replace(file, size=sizes.get(name, 0))
        for name, file in bundle.manifest.files.items()
    }
    sized = Bundle(bundle.path, dataclasses.replace(bundle.manifest, files=files))
    for precision in (None, "int8", "fp32", "fp16"):
        schedule_for(sized, precision)
    assert seen == [7, 7, 28, None]


def test_one_backend_of_its_own_serves_all() -> None:
    backend = Opened(None)
    backends = ScheduledBackends(backend)
    assert backends.schedule == Schedule()
    assert backends.get(alone=True) is backends.get(alone=False) is backend
