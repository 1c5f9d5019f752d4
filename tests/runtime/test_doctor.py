from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.fake_bundle import fake_entry

from runtime import registry
from runtime.doctor import cpu_features, diagnose, find_problems, render
from runtime.registry import Entry
from runtime.version import __version__


def test_diagnose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BACKENDS, "onnxruntime", fake_entry())
    report = diagnose()
    assert report.healthy
    assert report.leanseq == __version__
    assert report.packages["numpy"] is not None
    assert report.cpu["usable_cores"] >= 1
    assert json.loads(json.dumps(report.to_json()))["healthy"] is True
    text = render(report)
    assert f"leanseq {__version__}, Python 3." in text
    assert "  onnxruntime      runs" in text


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = Entry(
        factory="no_such_package_at_all:x",
        package="no_such_package_at_all",
        extra="cpu",
        precisions=("fp32",),
    )
    monkeypatch.setitem(registry.BACKENDS, "onnxruntime", absent)
    monkeypatch.setattr("runtime.doctor.importlib.util.find_spec", lambda name: None)
    report = diagnose()
    assert not report.healthy
    text = render(report)
    assert "onnxruntime      no: the no_such_package_at_all backend needs the package" in text
    assert "pip install 'leanseq[cpu]'" in text
    assert "eager            no: torch is not installed: pip install 'leanseq[train]'" in text


def test_both_onnxruntimes_are_a_problem() -> None:
    one = {"onnxruntime": "1.22", "onnxruntime-gpu": None}
    assert find_problems(one) == []
    (problem,) = find_problems({"onnxruntime": "1.22", "onnxruntime-gpu": "1.22"})
    assert "both installed" in problem
    assert "pip uninstall onnxruntime onnxruntime-gpu" in problem


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "processor : 0\nflags\t\t: fpu avx2 avx512f avx512_vnni\n",
            ["avx2", "avx512f", "avx512_vnni"],
        ),
        ("Features\t: fp asimd asimddp i8mm\n", ["asimddp", "i8mm"]),
        ("flags : fpu\n", []),
        ("nothing\n", None),
    ],
)
def test_cpu_features(tmp_path: Path, text: str, expected: list[str] | None) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(text)
    assert cpu_features(path) == expected
    assert cpu_features(tmp_path / "absent") is None
