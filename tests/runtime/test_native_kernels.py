"""How the kernels of runtime/native are found, and left out."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import onnxruntime
import pytest

from runtime import native_kernels
from runtime.native_kernels import library_path, use_native_kernels, why_not
from runtime.version import __version__


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    yield
    why_not.cache_clear()


def test_where_there_is_a_compiler_there_are_kernels() -> None:
    if not (shutil.which("c++") or shutil.which("g++")):
        pytest.skip("no C++ compiler here")
    assert library_path() is not None, "install leanseq again: its kernels were not compiled"


class _Installed:
    """What importlib.metadata tells of an installed leanseq."""

    def __init__(self, place: Path, version: str) -> None:
        self._place, self.version = place, version

    def locate_file(self, path: str) -> Path:
        return self._place / path


@pytest.mark.parametrize("same", [True, False])
def test_a_checkout_takes_the_library_of_what_was_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, same: bool
) -> None:
    """`pip install .`, then `python -m runtime` in the checkout: the library isn't there. That of
    another version may know other operators."""
    checkout, site = tmp_path / "checkout", tmp_path / "site"
    library = site / "runtime" / f"_kernels{EXTENSION_SUFFIXES[0]}"
    for directory in (checkout, library.parent):
        directory.mkdir(parents=True)
    library.write_bytes(b"")
    monkeypatch.setattr(native_kernels, "__file__", str(checkout / "native_kernels.py"))
    installed = _Installed(site, __version__ if same else "0.0.1")
    monkeypatch.setattr(native_kernels.metadata, "distribution", lambda name: installed)
    assert library_path() == (library if same else None)


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
