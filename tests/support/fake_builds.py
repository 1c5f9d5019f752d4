"""Builds by tests/support/fake_tensorrt: what they do is written by the test."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.tree import ROOT

FAKE = ROOT / "tests" / "support" / "fake_tensorrt"

GEMM = (
    "Name: {name}_myl{profile}_2, LayerType: gemm, Inputs: [ {{ Name: x, Dimensions: [1,-1,4], "
    "Strides: [4,4,1], Datatype: {dtype}, Format: (Linear) }}], Constants: [ {{ Name: w, "
    "Dimensions: [4,4], Strides: [4,1], Datatype: {dtype}, Format: (Linear) }}], Outputs: [], "
    "TacticName: x, StreamId: 0, Metadata: [ONNX Layer: {name}]"
)


def proved_log(profiles: int = 2) -> str:
    """The log of a build in which `fc` is INT8."""
    lines = [GEMM.format(name="fc", profile=place, dtype="Int8") for place in range(profiles)]
    return "\n".join(["Layers:", *lines, "Total Activation Memory: 8 bytes"])


GOOD_BUILD = f"log({proved_log()!r}, 'VERBOSE'); plan = b'a plan'"
Fake = Callable[[str], Path]


def install_fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    """Puts the fake where `tensorrt` is looked for, and gives a function that says what it does."""
    file = tmp_path / "fake_build.py"

    def say(code: str) -> Path:
        file.write_text(textwrap.dedent(code), encoding="utf-8")
        return file

    monkeypatch.syspath_prepend(FAKE)
    monkeypatch.delitem(sys.modules, "tensorrt", raising=False)
    monkeypatch.setenv("LEANSEQ_FAKE_BUILD", str(file))
    say(GOOD_BUILD)
    yield say
    sys.modules.pop("tensorrt", None)
