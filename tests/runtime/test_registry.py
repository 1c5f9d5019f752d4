from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from support.fake_backend import FakeBackend
from support.fake_bundle import fake_entry, write_fake_bundle

from runtime import registry
from runtime.bundle import Bundle
from runtime.errors import MissingExtraError, OptionError
from runtime.registry import BACKENDS, Entry, choose_precision, load_factory, open_backend


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return Bundle.open(write_fake_bundle(tmp_path / "bundle", precisions=("fp32", "int8", "fp16")))


@pytest.mark.parametrize("name", ["auto", "onnxruntime"])
def test_open_backend(bundle: Bundle, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BACKENDS, "onnxruntime", fake_entry())
    assert isinstance(open_backend(bundle, name), FakeBackend)


def test_auto_passes_over_what_does_not_run(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = Entry(
        factory="no_such_package_at_all.x:y",
        package="no_such_package_at_all",
        extra="trt",
        precisions=("fp32",),
    )
    entries = {"absent": absent, "fake": fake_entry()}
    monkeypatch.setattr(registry, "BACKENDS", entries)
    monkeypatch.setattr(registry, "BACKEND_NAMES", ("auto", *entries))
    assert isinstance(open_backend(bundle), FakeBackend)
    with pytest.raises(
        MissingExtraError,
        match=r"the no_such_package_at_all backend needs .* pip install 'leanseq\[trt\]'",
    ):
        open_backend(bundle, "absent")


def test_choose_precision(bundle: Bundle, tmp_path: Path) -> None:
    assert choose_precision(fake_entry(), bundle, None) == "int8"
    assert choose_precision(fake_entry(), bundle, "fp32") == "fp32"
    plain = Bundle.open(write_fake_bundle(tmp_path / "plain"))
    assert choose_precision(fake_entry(), plain, None) == "fp32"
    with pytest.raises(OptionError, match=r"precision is fp16; .* can run: int8, fp32\. Choose"):
        choose_precision(fake_entry(), bundle, "fp16")
    with pytest.raises(OptionError, match=r"precision is int8; .* can run: fp32\. .*--int8"):
        choose_precision(fake_entry(), plain, "int8")


@pytest.mark.parametrize(
    ("name", "threads", "text"),
    [
        ("tpu", None, "backend is 'tpu'; expected one of auto, onnxruntime$"),
        ("eager", None, "backend is 'eager'; .*checkpoints run with `python -m model translate`"),
        ("auto", 0, "threads is 0; expected a whole number of at least 1"),
    ],
)
def test_open_backend_refuses(bundle: Bundle, name: str, threads: int | None, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        open_backend(bundle, name, threads=threads)


def test_a_broken_backend_module_is_not_a_missing_extra() -> None:
    entry = Entry(
        factory="runtime.no_such_module:y", package="numpy", extra="cpu", precisions=("fp32",)
    )
    with pytest.raises(ModuleNotFoundError, match=r"runtime\.no_such_module"):
        load_factory(entry)


def test_every_backend_can_be_loaded() -> None:
    for entry in BACKENDS.values():
        parameters = inspect.signature(load_factory(entry)).parameters
        assert {"precision", "threads"} <= set(parameters)
