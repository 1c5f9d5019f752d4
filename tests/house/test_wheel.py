"""The wheel, installed with [cpu] alone in an environment of its own, outside the checkout."""

from __future__ import annotations

import importlib.machinery
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support.tree import ROOT, copy_tree, tracked_files

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PACKAGES = ("runtime", "model", "export", "calibration", "benchmarks")
GOLDEN = ROOT / "tests" / "golden" / "bundle-schema-1"


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def run(
    command: list[str | Path], cwd: Path, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=clean_environment(),
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = copy_tree(tmp_path_factory.mktemp("source"))
    out = tmp_path_factory.mktemp("wheel")
    result = run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", out, source], out)
    assert result.returncode == 0, result.stdout + result.stderr
    (found,) = out.glob("leanseq-*.whl")
    return found


@pytest.fixture(scope="session")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts of a fresh environment that holds leanseq[cpu] and nothing else."""
    directory = tmp_path_factory.mktemp("bare")
    result = run([sys.executable, "-m", "venv", directory], directory)
    assert result.returncode == 0, result.stdout + result.stderr
    result = run(
        [
            directory / "bin" / "python", "-m", "pip", "install", "-q",
            "-c", ROOT / "constraints.txt", f"{wheel}[cpu]",
        ],
        directory,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    return directory / "bin"


def test_wheel_holds_every_module_page_recipe_and_kernel_and_no_tests(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {
        file.as_posix()
        for file in tracked_files()
        if file.parts[0] in PACKAGES
        and (file.suffix in (".py", ".html", ".css", ".js", ".toml") or file.name == "py.typed")
    }
    assert modules <= names
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    others = {name for name in names - modules if ".dist-info/" not in name}
    kernels = {f"runtime/_kernels{importlib.machinery.EXTENSION_SUFFIXES[0]}"}
    assert others == (kernels if shutil.which("c++") else set())


def test_wheel_carries_licence_and_notice(wheel: Path) -> None:
    names = {Path(name).name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" in name}
    assert {"LICENSE", "NOTICE", "entry_points.txt"} <= names


def test_bare_environment_has_neither_torch_nor_onnx(bare: Path, tmp_path: Path) -> None:
    code = "import importlib.util as u; print([n for n in ('torch', 'onnx') if u.find_spec(n)])"
    result = run([bare / "python", "-c", code], tmp_path)
    assert result.stdout.strip() == "[]"


def test_bare_environment_tells_its_version(bare: Path, tmp_path: Path) -> None:
    from runtime.version import __version__

    result = run([bare / "leanseq", "--version"], tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert __version__ in result.stdout


def test_bare_environment_lists_all_commands(bare: Path, tmp_path: Path) -> None:
    result = run([bare / "leanseq", "--help"], tmp_path)
    assert result.returncode == 0
    for name in ("translate", "doctor", "model", "export", "calibration", "benchmarks"):
        assert f"\n  {name} " in result.stdout


def test_bare_environment_runs_doctor(bare: Path, tmp_path: Path) -> None:
    result = run([bare / "leanseq", "doctor"], tmp_path)
    assert result.returncode == 0, result.stderr
    assert re.search(r"^ +onnxruntime +runs$", result.stdout, re.MULTILINE), result.stdout
    assert re.search(r"^ +torch +not installed$", result.stdout, re.MULTILINE), result.stdout


def test_bare_environment_translates(bare: Path, tmp_path: Path) -> None:
    command: list[str | Path] = [bare / "leanseq", "translate", "--bundle", GOLDEN]
    result = run(command, tmp_path, stdin="in 3 days\n\nin 4 days\n")
    assert result.returncode == 0, result.stderr
    first, empty, third, end = result.stdout.split("\n")
    assert first
    assert empty == ""
    assert third
    assert end == ""


@pytest.mark.parametrize("command", [["export", "build"], ["model", "train"]])
def test_bare_environment_names_the_extra_that_is_missing(
    bare: Path, tmp_path: Path, command: list[str]
) -> None:
    result = run([bare / "leanseq", *command], tmp_path)
    assert result.returncode == 1
    assert "pip install 'leanseq[train]'" in result.stderr
    assert "Traceback" not in result.stderr
