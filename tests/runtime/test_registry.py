from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path

import pytest
from support.fake_backend import FakeBackend
from support.fake_bundle import fake_entry, write_fake_bundle

from runtime import registry
from runtime.bundle import Bundle
from runtime.errors import EngineError, MissingExtraError, OptionError, UnavailableError
from runtime.registry import (
    BACKEND_NAMES,
    BACKENDS,
    Entry,
    choose_precision,
    load_factory,
    open_backend,
    short_reason,
)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return Bundle.open(write_fake_bundle(tmp_path / "bundle", precisions=("fp32", "int8", "fp16")))


def use(monkeypatch: pytest.MonkeyPatch, **entries: Entry) -> None:
    found = {name.replace("_", "-"): entry for name, entry in entries.items()}
    monkeypatch.setattr(registry, "BACKENDS", found)
    monkeypatch.setattr(registry, "BACKEND_NAMES", ("auto", *found))


def said(caplog: pytest.LogCaptureFixture, level: str = "INFO") -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == level]


ABSENT = Entry(
    factory="no_such_package_at_all.x:y",
    package="no_such_package_at_all",
    extra="trt",
    precisions=("fp32",),
)


@pytest.mark.parametrize("name", ["auto", "onnxruntime"])
def test_open_backend(bundle: Bundle, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BACKENDS, "onnxruntime", fake_entry())
    assert isinstance(open_backend(bundle, name), FakeBackend)


def test_auto_passes_over_what_does_not_run(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It says what it took, and why none before; what is only missing is no warning."""
    caplog.set_level("DEBUG", logger="runtime")
    lacking = dataclasses.replace(fake_entry(), check="support.fake_bundle:lacking_check")
    other = dataclasses.replace(fake_entry(), precisions=("int8_fp16",))
    use(
        monkeypatch,
        absent=ABSENT,
        no_such_package_at_all=dataclasses.replace(ABSENT),
        lacking=lacking,
        other=other,
        fake=fake_entry(),
    )
    assert isinstance(open_backend(bundle), FakeBackend)
    assert said(caplog) == ["backend: fake on cpu, fp32"]
    assert said(caplog, "DEBUG") == [
        "backends passed over: absent: no_such_package_at_all is not installed; "
        "no-such-package-at-all: no_such_package_at_all is not installed; "
        "lacking: no fake GPU; other: it can't run any precision of this bundle"
    ]
    assert said(caplog, "WARNING") == []
    with pytest.raises(
        MissingExtraError,
        match=r"the no_such_package_at_all backend needs .* pip install -e '\.\[trt\]'",
    ):
        open_backend(bundle, "absent")
    with pytest.raises(UnavailableError, match="a fake GPU is needed"):
        open_backend(bundle, "lacking")


def test_a_package_of_the_backend_s_own_name_is_not_named_twice() -> None:
    missing = MissingExtraError("tensorrt", "trt", "the tensorrt backend")
    assert short_reason("tensorrt", missing) == "not installed"


def test_auto_warns_of_what_should_have_run(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="runtime")
    use(monkeypatch, broken=fake_entry("broken_backend"), fake=fake_entry())
    assert isinstance(open_backend(bundle), FakeBackend)
    (warning,) = said(caplog, "WARNING")
    assert warning == "the broken backend can't be used: this backend is broken"
    assert said(caplog) == ["backend: fake on cpu, fp32"]


def test_auto_raises_the_last_one_s_error(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="runtime")
    use(monkeypatch, absent=ABSENT, other=fake_entry(), fake=fake_entry())
    with pytest.raises(OptionError, match="precision is fp16; of this bundle numpy can run: int8"):
        open_backend(bundle, precision="fp16")
    assert said(caplog) == [
        "backends passed over: absent: no_such_package_at_all is not installed; "
        "other: it can't run fp16 of this bundle"
    ]


@pytest.mark.parametrize("build", [True, False])
def test_engines_are_built_unless_told_not_to(
    bundle: Bundle, build: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without building, what has no engine that fits goes to ONNX Runtime, with a warning."""
    caplog.set_level("INFO", logger="runtime")
    engines = dataclasses.replace(fake_entry("engine_backend"), builds=True)
    use(monkeypatch, tensorrt=engines, onnxruntime=fake_entry())
    assert isinstance(open_backend(bundle, "tensorrt", build=build), FakeBackend)
    (*warnings,) = said(caplog, "WARNING")
    if build:
        assert warnings == said(caplog) == []
    else:
        assert warnings == [
            "no engine fits; nothing is built (--no-build): going on with ONNX Runtime"
        ]
        assert said(caplog) == ["backend: onnxruntime on cpu, fp32"]
        caplog.clear()
        assert isinstance(open_backend(bundle, build=False), FakeBackend)
        assert said(caplog, "WARNING") == ["the tensorrt backend can't be used: no engine fits"]


def test_an_engine_that_cannot_be_built_is_an_error(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = dataclasses.replace(fake_entry("broken_engine_backend"), builds=True)
    use(monkeypatch, tensorrt=engines, onnxruntime=fake_entry())
    with pytest.raises(EngineError, match="this engine can't be built"):
        open_backend(bundle, "tensorrt")
    assert isinstance(open_backend(bundle), FakeBackend)


def test_int8_on_a_gpu_is_int8_beside_fp16(tmp_path: Path) -> None:
    precisions = ("fp32", "int8", "fp16", "int8_fp16")
    bundle = Bundle.open(write_fake_bundle(tmp_path / "all", precisions=precisions))
    tensorrt, cuda = BACKENDS["tensorrt"], BACKENDS["onnxruntime-cuda"]
    assert choose_precision(tensorrt, bundle, "int8") == "int8_fp16"
    assert choose_precision(tensorrt, bundle, None) == "fp16"
    assert choose_precision(cuda, bundle, None) == "fp16"
    assert choose_precision(BACKENDS["onnxruntime"], bundle, None) == "int8"
    with pytest.raises(OptionError, match=r"precision is int8; .* can run: fp16, fp32\. Choose"):
        choose_precision(cuda, bundle, "int8")


def test_auto_prefers_tensorrt_then_cuda_then_the_cpu() -> None:
    assert BACKEND_NAMES == ("auto", "tensorrt", "onnxruntime-cuda", "onnxruntime")


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
        (
            "tpu",
            None,
            "backend is 'tpu'; expected one of auto, tensorrt, onnxruntime-cuda, onnxruntime$",
        ),
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
        expected = {"precision", "threads", *(["build"] if entry.builds else [])}
        assert expected <= set(parameters)
