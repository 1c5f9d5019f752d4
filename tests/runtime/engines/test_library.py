"""Which TensorRT is here; every name of its API that leanseq uses is there."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.engines import rtx
from support.tree import ROOT

from runtime.engines import library
from runtime.engines.library import (
    RTX_ONLY,
    USED,
    Library,
    check_target_name,
    load_library,
    missing_names,
    version_tuple,
)
from runtime.errors import EngineError, MissingExtraError, OptionError

TABLE = json.loads(Path(__file__).with_name("tensorrt_names.json").read_text(encoding="utf-8"))
CALLERS = ("runtime/engines/builder.py", "runtime/tensorrt_backend.py")
# Listed as removed by NVIDIA's page for 11.4.0, as deprecated by the one for 11.4.1.
STILL_THERE = {"BuilderFlag.DIRECT_IO"}


def test_every_name_is_in_tensorrt_rtx() -> None:
    module = rtx().module
    assert missing_names(module) == []
    assert missing_names(module, RTX_ONLY) == []


@pytest.mark.parametrize("kind", USED)
def test_every_name_is_in_tensorrt_10_and_was_not_removed_in_11(kind: str) -> None:
    known = TABLE["names"][kind]
    removed = {name for name in TABLE["removed_in_11"] if name.startswith(f"{kind}.")}
    assert [name for name in USED[kind] if name not in known] == []
    assert {f"{kind}.{name}" for name in USED[kind]}.isdisjoint(removed)


def test_tensorrt_rtx_lacks_what_tensorrt_11_removed() -> None:
    """So its bindings may stand for TensorRT 11's, which can't be imported here."""
    module = rtx().module
    found = {
        name
        for name in TABLE["removed_in_11"]
        if hasattr(getattr(module, name.split(".")[0]), name.split(".")[1])
    }
    assert found <= STILL_THERE


@pytest.mark.parametrize("file", CALLERS)
def test_the_callers_use_no_name_that_is_not_listed(file: str) -> None:
    """Attributes that only TensorRT has: of its names those with a `_` or in capitals."""
    everything = {name for members in TABLE["names"].values() for name in members}
    listed = {name for names in (USED, RTX_ONLY) for members in names.values() for name in members}
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    ours = {name for name in used & everything if "_" in name or name.isupper()}
    assert ours - listed == set()


@pytest.mark.parametrize("name", ["tensorrt", "tensorrt_rtx"])
def test_a_library_that_is_not_installed(name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    extra = {"tensorrt": "trt", "tensorrt_rtx": "trt-rtx"}[name]
    with pytest.raises(MissingExtraError, match=rf"pip install -e '\.\[{extra}\]'"):
        load_library(name)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("raise ImportError('libnvinfer.so.11: cannot open')", "can't be loaded .libnvinfer.so.11"),
        ("raise ValueError('odd')", "tensorrt is installed but can't be loaded .odd.; install it"),
        ("import absent_module", "can't be loaded .No module named 'absent_module'"),
        ("__version__ = '8.6.1'", r"tensorrt 8.6.1 is installed and lacks Builder, DataType"),
    ],
)
def test_a_library_that_is_broken_or_old(
    code: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tensorrt.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tensorrt", raising=False)
    with pytest.raises(EngineError, match=text):
        load_library("tensorrt")
    sys.modules.pop("tensorrt", None)


def test_a_library_that_has_the_names_but_an_old_version(monkeypatch: pytest.MonkeyPatch) -> None:
    module = rtx().module
    monkeypatch.setattr(library, "OLDEST_VERSION", {"tensorrt_rtx": (99, 1)})
    with pytest.raises(
        EngineError, match=r"tensorrt_rtx \S+ is installed; expected 99.1 or a later"
    ):
        load_library("tensorrt_rtx")
    assert module is sys.modules["tensorrt_rtx"]


@pytest.mark.parametrize("target", ["sm75", "sm89", "sm90", "sm121"])
def test_target_names(target: str) -> None:
    assert check_target_name(target) == target


@pytest.mark.parametrize(
    "target", ["sm70", "sm122", "89", "8.9", "SM89", "sm8", "", "sm 89", "sm089", "sm\uff18\uff19"]
)
def test_wrong_target_names(target: str) -> None:
    with pytest.raises(OptionError, match="expected a GPU's compute capability from sm75 to sm121"):
        check_target_name(target)


def test_targets_that_a_library_can_build_for() -> None:
    targets = ("sm75", "sm89")
    rtx_library = Library(name="tensorrt_rtx", version="1.7", targets=targets, module=None)
    full = Library(name="tensorrt", version="11.4", targets=(), module=None)
    rtx_library.check_target("sm89", None)
    full.check_target("sm90", "sm90")
    with pytest.raises(
        EngineError, match=r"tensorrt-rtx 1.7 can't build engines for sm90; it can for sm75, sm89"
    ):
        rtx_library.check_target("sm90", "sm90")
    with pytest.raises(EngineError, match="its machine only, and there is no GPU here, not sm89"):
        full.check_target("sm89", None)
    with pytest.raises(EngineError, match="only, and the GPU here is sm90, not sm89"):
        full.check_target("sm89", "sm90")


def test_the_targets_of_tensorrt_rtx() -> None:
    assert {"sm75", "sm80", "sm86", "sm89", "sm120"} <= set(rtx().targets)
    assert "sm90" not in rtx().targets


@pytest.mark.parametrize(
    ("version", "numbers"),
    [("11.4.0.106", (11, 4, 0, 106)), ("10.0.0b6", (10, 0)), ("x", ()), ("", ())],
)
def test_versions(version: str, numbers: tuple[int, ...]) -> None:
    assert version_tuple(version) == numbers
