"""The layers hold: import contracts, and runtime/ without torch or onnx at hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.tree import ROOT, copy_tree

LINT_IMPORTS = [
    sys.executable,
    "-c",
    "from importlinter.cli import lint_imports_command as lint; lint()",
]

# What [cpu] does not bring; an import of any of them fails below.
BLOCKED = ("torch", "onnx", "onnxscript", "onnx_ir", "safetensors", "sacrebleu", "babel", "tqdm")
SIBLINGS = ("model", "export", "calibration", "benchmarks")

BLOCKER = f"""
import importlib, sys
blocked = {(*BLOCKED, *SIBLINGS)!r}
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in blocked:
            raise ModuleNotFoundError(f'{{name}} is blocked', name=name)
sys.meta_path.insert(0, Blocker())
importlib.import_module(sys.argv[1])
"""


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LINT_IMPORTS, "--no-cache"], cwd=root, capture_output=True, text=True, check=False
    )


def test_import_contracts_hold() -> None:
    result = lint(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("runtime/options.py", "import torch"),
        ("runtime/options.py", "import onnx"),
        ("runtime/options.py", "import model.config"),
        ("calibration/ranges.py", "import torch"),
        ("calibration/ranges.py", "import model.config"),
        ("model/config.py", "import calibration"),
        ("export/errors.py", "import benchmarks.cli"),
        ("benchmarks/table.py", "import model.config"),
    ],
)
def test_import_contracts_catch_a_wrong_import(tmp_path: Path, file: str, line: str) -> None:
    copy_tree(tmp_path)
    path = tmp_path / file
    path.write_text(path.read_text(encoding="utf-8") + f"\n{line}\n", encoding="utf-8")
    result = lint(tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "BROKEN" in result.stdout


@pytest.mark.parametrize(
    "module",
    sorted(
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "runtime").rglob("*.py")
        if path.stem not in ("__main__", "__init__")  # __main__ runs the command line
    ),
)
def test_runtime_module_imports_without_the_train_extra(module: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", BLOCKER, module],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
