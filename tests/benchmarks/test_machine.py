"""What is said of the machine that numbers come from."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

pytest.importorskip("onnxruntime")

from benchmarks.machine import warn_without_kernels
from runtime.native_kernels import SWITCH, why_not


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    why_not.cache_clear()
    yield
    why_not.cache_clear()


def test_measuring_without_the_kernels_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(SWITCH, "0")
    with caplog.at_level(logging.WARNING):
        warn_without_kernels()
    (told,) = caplog.records
    assert told.getMessage() == (
        f"leanseq runs without its own kernels, so more slowly ({SWITCH} is 0)"
    )


def test_with_them_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    if why_not():
        pytest.skip(why_not())
    with caplog.at_level(logging.WARNING):
        warn_without_kernels()
    assert not caplog.records
