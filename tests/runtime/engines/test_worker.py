"""Builds in a process of their own: what goes wrong is one sentence, and leaves nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest
from support.fake_builds import Fake
from support.tree import ROOT

from runtime.engines.profiles import ShapeRange
from runtime.engines.worker import BuildRequest, check_timeout, run_build
from runtime.errors import EngineError, MissingExtraError, OptionError

PROFILE = {"x": ShapeRange(min=(1, 4), opt=(1, 4), max=(2, 4))}
REQUEST = BuildRequest(
    name="encoder fp16 sm90",
    library="tensorrt",
    onnx_path=Path("encoder.onnx"),
    profiles=(PROFILE, PROFILE),
    target=None,
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "build"
    path.mkdir()
    return path


def test_a_build(fake: Fake, directory: Path) -> None:
    told: list[tuple[str, int, int]] = []
    fake("""
        monitor = config.progress_monitor
        monitor.phase_start("Building", None, 2)
        monitor.phase_start("Timing", "Building", 5)
        monitor.step_complete("Timing", 3)
        monitor.phase_finish("Timing")
        monitor.step_complete("Building", 1)
        print("something of the library's own")
        log("a message\\nof two lines", "VERBOSE")
        assert config.max_aux_streams == 0 and config.profiling_verbosity == "detailed"
        assert config.profiles == 2
        plan = b"a plan"
    """)
    result = run_build(REQUEST, directory, report=lambda *step: told.append(step))
    assert result.plan_path.read_bytes() == b"a plan"
    assert result.network.quantized == ("fc",)
    assert result.network.constant_bytes == 16
    assert result.seconds >= 0
    assert told == [("Building", 0, 2), ("Timing", 0, 5), ("Timing", 4, 5), ("Building", 2, 2)]
    log = result.log_path.read_text(encoding="utf-8")
    assert "[VERBOSE] a message\nof two lines\n" in log
    assert "something of the library's own" in log


BROKEN = {
    "error": (
        "log('Error Code 4: no kernel\\nmore', 'ERROR')",
        "tensorrt 11.4.0.106 can't build encoder.onnx for the GPU here: Error Code 4: no kernel",
    ),
    "no word": ("", "for the GPU here: it gave no reason; see the build log"),
    "crash": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "crashed (SIGSEGV)"),
    "killed": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "out of memory"),
    "memory": ("raise MemoryError", "there is not enough memory to build it"),
    "exit": ("import os; os._exit(7)", "the builder ended with code 7 and no word"),
    "raise": ("raise RuntimeError('odd')", "the builder failed with RuntimeError: odd"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_build_that_fails(name: str, fake: Fake, directory: Path, tmp_path: Path) -> None:
    code, text = BROKEN[name]
    fake("log('before it broke')\n" + code)
    with pytest.raises(EngineError, match=re.escape(text)) as caught:
        run_build(REQUEST, directory)
    assert str(caught.value).startswith("encoder fp16 sm90: ")
    kept = Path(str(caught.value).partition("Its log: ")[2])
    assert kept.is_relative_to(tmp_path)
    assert "before it broke" in kept.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("room", "text"),
    [
        (10_000, r"the engine of 20,000 bytes can't be written to \S+ \(.*\); free some space"),
        (0, "the engine can't be written; free some space"),
    ],
)
def test_a_disk_without_room(room: int, text: str, fake: Fake, directory: Path) -> None:
    fake(f"""
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room}))
        log("there may be no room for this", "VERBOSE")
        plan = b"x" * 20_000
    """)
    with pytest.raises(EngineError, match=text):
        run_build(REQUEST, directory)
    assert not (directory / "plan").exists()


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        ("LEANSEQ_FAKE_PARSE", "1", "can't read encoder.onnx: no such operator; build the bundle"),
        ("LEANSEQ_FAKE_SHAPE", "min > max", "the sizes of an input are refused .min > max"),
        ("LEANSEQ_FAKE_PROFILE", "-1", "an optimization profile is refused"),
    ],
)
def test_a_graph_that_is_refused(
    variable: str, value: str, text: str, fake: Fake, directory: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv(variable, value)
    with pytest.raises(EngineError, match=text):
        run_build(REQUEST, directory)


def test_a_library_that_the_child_does_not_find(directory: Path) -> None:
    with pytest.raises(EngineError, match="needs the package tensorrt, which is not installed"):
        run_build(REQUEST, directory)
    assert not issubclass(EngineError, MissingExtraError)


def test_a_timeout_names_itself(fake: Fake, directory: Path) -> None:
    pid_file = directory / "pid"
    fake(f"""
        import os, pathlib, time
        pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid()))
        while True:
            config.progress_monitor.phase_start("Timing", None, 1)
            time.sleep(0.01)
    """)
    start = time.monotonic()
    with pytest.raises(
        EngineError, match=r"took longer than 2 s and was stopped; .*--engine-timeout"
    ):
        run_build(REQUEST, directory, timeout_s=2)
    assert time.monotonic() - start < 20
    assert not psutil.pid_exists(int(pid_file.read_text()))


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_wrong_timeouts(timeout: float) -> None:
    with pytest.raises(OptionError, match="expected a number of seconds above 0"):
        check_timeout(timeout)


def test_the_child_ends_with_its_parent(fake: Fake, directory: Path, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    fake(f"""
        import os, pathlib, time
        pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid()))
        time.sleep(120)
    """)
    script = f"""
        import sys
        sys.path[:0] = {sys.path!r}
        from pathlib import Path
        sys.path[:0] = [{str(ROOT / "tests" / "runtime" / "engines")!r}]
        from test_worker import REQUEST
        from runtime.engines.worker import run_build
        run_build(REQUEST, Path({str(directory)!r}))
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], env=os.environ)
    child = wait_for(pid_file)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    for _ in range(1000):
        if not psutil.pid_exists(child):
            return
        time.sleep(0.01)
    pytest.fail("the builder outlived its parent")


def wait_for(pid_file: Path) -> int:
    """The number in a file that a child writes."""
    for _ in range(3000):
        if pid_file.exists() and pid_file.read_text():
            return int(pid_file.read_text())
        time.sleep(0.01)
    pytest.fail("the builder did not start")
