"""Engines from disk to the device: found, refused, built again, told in plain words."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from support.bundles import ROLES, Graphs
from support.emulated_backend import (
    emulated_library,
    write_emulated_engine,
    write_graph_bundle,
)
from support.trt_emulator import EmulatedDevice

from runtime import engine_loading
from runtime.bundle import Bundle
from runtime.engine_loading import load_engines
from runtime.engines.library import load_library
from runtime.engines.profiles import EngineLimits
from runtime.errors import EngineError
from runtime.options import SearchOptions
from runtime.search import search
from runtime.tensorrt_backend import TensorRtBackend

SMALL = EngineLimits(max_batch=4, max_beam=2, max_source=16, max_target=16)


@pytest.fixture
def bundle(random_graphs: Graphs, tmp_path: Path) -> Bundle:
    return write_graph_bundle(random_graphs, tmp_path / "bundle")


@pytest.fixture
def built(
    random_graphs: Graphs, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> list[dict[str, Any]]:
    """What was asked to be built: engines that the emulator runs are written instead."""
    asked: list[dict[str, Any]] = []

    def ensure(_bundle: Bundle, role: Any, precision: str, **options: Any) -> tuple[Any, bool]:
        asked.append({"role": role, "precision": precision, **options})
        engine = write_emulated_engine(bundle, random_graphs, role, limits=options["limits"])
        return engine, True

    monkeypatch.setattr(engine_loading, "ensure_engine", ensure)
    return asked


def load(bundle: Bundle, *, build: bool = True) -> Any:
    device = EmulatedDevice()
    return load_engines(bundle, "fp16", emulated_library(device), device, build=build)


def test_engines_that_fit_are_loaded(
    random_graphs: Graphs, bundle: Bundle, built: list[Any]
) -> None:
    for role in ROLES:
        write_emulated_engine(bundle, random_graphs, role, limits=SMALL)
    device = EmulatedDevice()
    pair = load_engines(bundle, "fp16", emulated_library(device), device)
    assert built == []
    backend = TensorRtBackend(pair, random_graphs.special_ids, device)
    found = search(backend, [[5, 9, 3]], SearchOptions(beam_size=2), random_graphs.special_ids)
    assert found[0][0].token_ids
    backend.close()


def test_missing_engines_are_built(
    bundle: Bundle, built: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    load(bundle)
    assert [(b["role"], b["precision"], b["target"], b["force"]) for b in built] == [
        ("encoder", "fp16", "sm89", False),
        ("decoder_step", "fp16", "sm89", False),
    ]
    assert {str(b["limits"]) for b in built} == {str(EngineLimits())}
    assert "no encoder engine in fp16 has been built" in caplog.text
    assert "It is built now, which may take minutes" in caplog.text


def test_a_missing_engine_is_built_with_the_limits_of_the_other(
    random_graphs: Graphs, bundle: Bundle, built: list[Any]
) -> None:
    write_emulated_engine(bundle, random_graphs, "encoder", limits=SMALL)
    load(bundle)
    assert [(b["role"], b["limits"]) for b in built] == [("decoder_step", SMALL)]


def test_missing_engines_are_named_where_nothing_may_be_built(
    bundle: Bundle, built: list[Any]
) -> None:
    with pytest.raises(EngineError, match="no encoder engine in fp16 has been built for "):
        load(bundle, build=False)
    assert built == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target": "sm75"}, "was built for sm75, and the GPU here is sm89"),
        ({"version": "10.9"}, "was built by tensorrt 10.9, and here is tensorrt 11.4"),
    ],
)
def test_foreign_engines_are_told_and_built_again(
    random_graphs: Graphs,
    bundle: Bundle,
    built: list[Any],
    caplog: pytest.LogCaptureFixture,
    changes: dict[str, Any],
    words: str,
) -> None:
    for role in ROLES:
        write_emulated_engine(bundle, random_graphs, role, **changes)
    with pytest.raises(EngineError, match=words):
        load(bundle, build=False)
    load(bundle)
    assert len(built) == 2
    assert words in caplog.text


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (b"VERSION_MISMATCH", "it was built by another version of TensorRT"),
        (b"UNSUPPORTED_CC", "it was built for another kind of GPU"),
        (b"OLD_CUDA_DRIVER", "the NVIDIA driver is too old for it"),
        (b"OLD_CUDA_RUNTIME", "the CUDA runtime is too old for it"),
        (b"INSUFFICIENT_GPU_MEMORY", "the GPU has too little memory for it"),
        (b"MALFORMED_ENGINE", "it is damaged"),
        (b"CUDA_ERROR", "CUDA failed"),
        (b"\x00 what is this", "Magic tag does not match"),
    ],
)
def test_plans_that_tensorrt_refuses_are_told_and_built_again(
    random_graphs: Graphs,
    bundle: Bundle,
    built: list[Any],
    caplog: pytest.LogCaptureFixture,
    plan: bytes,
    words: str,
) -> None:
    for role in ROLES:
        write_emulated_engine(bundle, random_graphs, role, plan_bytes=plan)
    expected = (
        rf"TensorRT can't load the engine encoder fp16 sm89 \({words}\); it was built by tensorrt "
        r"11.4 for sm89, and here is tensorrt 11.4 on emulated:0 \(sm89\): build it again here"
    )
    with pytest.raises(EngineError, match=expected):
        load(bundle, build=False)
    assert load(bundle).encoder is not None
    assert [b["force"] for b in built] == [True, True]
    assert words in caplog.text


def test_a_plan_that_is_refused_after_its_build_is_told(
    random_graphs: Graphs, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ensure(_bundle: Bundle, role: Any, *_: Any, **_options: Any) -> tuple[Any, bool]:
        plan = b"OLD_CUDA_DRIVER"
        return write_emulated_engine(bundle, random_graphs, role, plan_bytes=plan), True

    monkeypatch.setattr(engine_loading, "ensure_engine", ensure)
    with pytest.raises(EngineError, match="the NVIDIA driver is too old for it"):
        load(bundle)


def test_tensorrts_words_reach_the_log(
    random_graphs: Graphs, bundle: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    write_emulated_engine(bundle, random_graphs, "encoder", plan_bytes=b"?")
    with (
        caplog.at_level(logging.DEBUG, logger="runtime.engine_loading"),
        pytest.raises(EngineError, match=r"\(Magic tag does not match\)"),
    ):
        load(bundle, build=False)
    assert "TensorRT: Magic tag does not match\nmore of it" in caplog.text


@pytest.mark.parametrize("plan", [b"no plan at all" * 50, b"\0"], ids=["text", "a byte"])
def test_the_real_library_refuses_what_is_no_plan(
    random_graphs: Graphs, bundle: Bundle, plan: bytes
) -> None:
    pytest.importorskip("tensorrt_rtx")
    library = load_library("tensorrt_rtx")
    for role in ROLES:
        write_emulated_engine(
            bundle,
            random_graphs,
            role,
            plan_bytes=plan,
            library="tensorrt_rtx",
            version=library.version,
        )
    with pytest.raises(EngineError, match=r"engine encoder fp16 sm89 \(it is damaged\); it was"):
        load_engines(bundle, "fp16", library, EmulatedDevice(), build=False)
