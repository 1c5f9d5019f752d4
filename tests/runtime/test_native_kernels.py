"""How the kernels of runtime/native are found, and left out."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import onnxruntime
import pytest

from runtime import native_kernels
from runtime.native_kernels import library_path, use_native_kernels, why_not


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    yield
    why_not.cache_clear()


def test_where_there_is_a_compiler_there_are_kernels() -> None:
    if not (shutil.which("c++") or shutil.which("g++")):
        pytest.skip("no C++ compiler here")
    assert library_path() is not None, "install leanseq again: its kernels were not compiled"


@pytest.mark.parametrize("value", ["0", "false", " Off ", "no"])
def test_the_switch_leaves_them_out(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    why_not.cache_clear()
    monkeypatch.setenv("LEANSEQ_NATIVE_KERNELS", value)
    assert why_not() == f"LEANSEQ_NATIVE_KERNELS is {value.strip().lower()}"
    assert not use_native_kernels(onnxruntime.SessionOptions())


def test_without_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    why_not.cache_clear()
    monkeypatch.setattr(native_kernels, "library_path", lambda: None)
    assert "install a C++ compiler" in why_not()
    assert not use_native_kernels(onnxruntime.SessionOptions())


def test_a_library_that_is_none_is_told_once_and_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    why_not.cache_clear()
    broken = tmp_path / "_kernels.so"
    broken.write_bytes(b"\x7fELF, cut off")
    monkeypatch.setattr(native_kernels, "library_path", lambda: broken)
    with caplog.at_level(logging.WARNING):
        assert not use_native_kernels(onnxruntime.SessionOptions())
        assert not use_native_kernels(onnxruntime.SessionOptions())
    assert why_not().startswith("_kernels.so can't be loaded")
    assert len(caplog.records) == 1
