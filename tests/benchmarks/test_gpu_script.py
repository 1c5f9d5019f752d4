"""benchmarks/gpu.sh: what it runs, and what it says where it can't.

A stand-in for the interpreter writes down what it is called with and fails where it is told to.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support.tree import ROOT

SCRIPT = ROOT / "benchmarks" / "gpu.sh"

PYTHON = """#!/bin/sh
echo "$*" >>"$CALLS"
case "$1" in
    -) cat >/dev/null; case "$2" in *tensorrt*) printf '%s' "$NO_TRT";; *) printf '%s' "$NO_CUDA";;
       esac; exit 0;;
    -c) exit 0;;
esac
echo "ran $3"
case "$*" in *"$FAIL"*) exit 7;; esac
exit 0
"""


class Run:
    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.python = tmp_path / "python"
        self.python.write_text(PYTHON, encoding="utf-8")
        self.python.chmod(0o755)
        self.code = -1
        self.output = ""
        self.calls: list[str] = []

    def __call__(
        self, *arguments: str, fail: str = "(nothing)", no_trt: str = "", no_cuda: str = ""
    ) -> Run:
        calls = self.tmp_path / "calls"
        calls.write_text("", encoding="utf-8")
        environment = {
            "PYTHON": str(self.python),
            "OUT": str(self.tmp_path / "out"),
            "CALLS": str(calls),
            "FAIL": fail,
            "NO_TRT": no_trt,
            "NO_CUDA": no_cuda,
        }
        result = subprocess.run(
            ["sh", str(SCRIPT), *arguments],
            env=os.environ | environment,
            cwd=self.tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        self.code, self.output = result.returncode, result.stdout + result.stderr
        self.calls = [
            line.replace(str(self.tmp_path), "TMP")
            for line in calls.read_text(encoding="utf-8").splitlines()
            if line.startswith("-m")
        ]
        return self


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_all_of_it_runs(run: Run) -> None:
    found = run()
    assert found.code == 0, found.output
    files = "--bundle TMP/out/demo/bundle --src TMP/out/demo/corpus/test.src"
    rest = "--ref TMP/out/demo/corpus/test.tgt --beam-size"
    backends = "--backend onnxruntime --backend onnxruntime-cuda --backend tensorrt"
    assert found.calls == [
        "-m runtime doctor",
        "-m pytest -m gpu -rs -s -o addopts=--import-mode=importlib",
        "-m export build --int8 --work-dir TMP/out/demo",
        "-m export inspect TMP/out/demo/bundle",
        f"-m benchmarks compare {files} {rest} 1 {backends}",
        f"-m benchmarks compare {files} {rest} 4 {backends}",
    ]
    assert found.output.endswith("All of it ran and passed.\n")
    assert (run.tmp_path / "out" / "compare-beam-4.log").is_file()


def test_a_bundle_that_is_given_is_measured(run: Run) -> None:
    found = run("B", "S", "R")
    assert found.code == 0, found.output
    assert "-m export inspect B" in found.calls
    assert not any("build" in call for call in found.calls)
    assert any("--bundle B --src S --ref R --beam-size 4" in call for call in found.calls)


def test_what_fails_is_named(run: Run) -> None:
    found = run("B", "S", "R", fail="pytest")
    assert found.code == 1
    assert "== gpu-tests FAILED with exit code 7; all of its output: " in found.output
    assert found.output.endswith("FAILED: gpu-tests\n")
    assert len(found.calls) == 5  # the rest ran all the same


def test_what_could_not_be_run_is_named(run: Run) -> None:
    found = run("B", "S", "R", no_cuda="the wheel has no CUDA provider")
    assert found.code == 3
    assert "NOT RUN:\n  ONNX Runtime CUDA: the wheel has no CUDA provider\n" in found.output
    assert found.calls[-1].endswith("--backend onnxruntime --backend tensorrt")
    found = run("B", "S", "R", no_trt="no TensorRT")
    assert found.code == 3
    assert "-m export inspect B" not in found.calls
    assert found.calls[-1].endswith("--backend onnxruntime --backend onnxruntime-cuda")


def test_without_a_gpu_only_the_doctor_runs(run: Run) -> None:
    found = run(no_trt="no NVIDIA driver", no_cuda="no NVIDIA driver")
    assert found.code == 3
    assert found.calls == ["-m runtime doctor"]
    assert "tests, engines and comparison: nothing here runs on a GPU" in found.output


def test_half_of_the_files_is_a_usage_error(run: Run) -> None:
    found = run("B", "S")
    assert found.code == 2
    assert "expected BUNDLE SRC REF, or nothing; found: B S" in found.output
