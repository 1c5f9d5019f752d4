"""The hint at a missing extra can be typed as it stands, in a checkout as beside a wheel."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from support.tree import ROOT

from runtime.extras import DEFAULT_EXTRA, EXTRA_OF, install_command


def test_in_the_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    assert install_command("plot") == "pip install -e '.[plot]'"
    monkeypatch.chdir(tmp_path)
    elsewhere = tmp_path / "its place"
    elsewhere.mkdir()
    (elsewhere / "pyproject.toml").touch()
    assert install_command("plot", root=elsewhere) == f"pip install -e '{elsewhere}[plot]'"


def test_of_a_wheel(tmp_path: Path) -> None:
    assert install_command("plot", root=tmp_path) == "pip install 'leanseq[plot]'"


def test_extras_bring_what_is_said_of_them() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert DEFAULT_EXTRA in extras
    for package, extra in EXTRA_OF.items():
        assert any(line.startswith(f"{package}>") for line in extras[extra]), package


def test_there_is_one_place_that_says_how() -> None:
    """Hints written out elsewhere would tell to install from an index that leanseq is not on."""
    ours = [ROOT / name for name in ("runtime", "model", "export", "calibration", "benchmarks")]
    files = [
        path for folder in ours for path in folder.rglob("*.*") if path.suffix in (".py", ".sh")
    ]
    texts = [*files, *(ROOT / "docs").glob("*.md"), *ROOT.glob("README*.md")]
    assert len(texts) > 200
    named = {path.name for path in texts if "leanseq[" in path.read_text(encoding="utf-8")}
    assert named == {"extras.py"}
