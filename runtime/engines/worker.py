"""One build in a process of its own: `run_build` starts it, `python -m runtime.engines.worker` is
it.

The child writes `plan`, `facts.json` and `build.log` into the directory it is given; it tells of
progress on its standard output, a JSON list a line. When its parent dies, its standard input ends,
and so does it. Whatever happens to it, the parent has one plain sentence to say.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from runtime.engines.builder import Report, build_plan
from runtime.engines.library import LibraryName, load_library
from runtime.engines.profiles import Profile, ShapeRange
from runtime.engines.proof import NetworkFacts
from runtime.errors import EngineError, LeanseqError, OptionError

logger = logging.getLogger(__name__)

PLAN_NAME = "plan"
LOG_NAME = "build.log"
DEFAULT_TIMEOUT_S = 1800.0

_REQUEST_NAME = "request.json"
_FACTS_NAME = "facts.json"
_TELL_EVERY_S = 5.0
_FAILED = 3  # exit code of a child that wrote the reason into facts.json
_NO_ROOM = 4  # of one that could not write that either


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """One engine to build. name: for messages. target: None is the GPU here."""

    name: str
    library: LibraryName
    onnx_path: Path
    profiles: tuple[Profile, ...]
    target: str | None


@dataclass(frozen=True, kw_only=True)
class BuildResult:
    """What a child left in the directory. seconds: of the builder alone."""

    plan_path: Path
    log_path: Path
    network: NetworkFacts
    seconds: float


def run_build(
    request: BuildRequest,
    directory: Path,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    report: Report | None = None,
) -> BuildResult:
    """Builds into an empty directory, which holds nothing of use when this raises.

    Raises EngineError when the build fails, crashes, is killed, or takes longer than timeout_s; the
    builder's output is then kept where the message says. OptionError for a timeout that is none.
    """
    check_timeout(timeout_s)
    (directory / _REQUEST_NAME).write_text(json.dumps(_to_json(request)), encoding="utf-8")
    start = time.monotonic()
    with (directory / LOG_NAME).open("wb") as log_file:
        child = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log_file,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    try:
        _follow(child, start + timeout_s, report or _Teller(request.name))
        code = child.wait(timeout=max(1.0, start + timeout_s - time.monotonic()))
    except (TimeoutError, subprocess.TimeoutExpired):
        raise EngineError(
            f"{request.name}: the build took longer than {timeout_s:g} s and was stopped; allow it "
            f"more (--engine-timeout), or lower the limits. {keep_log(directory, request.name)}"
        ) from None
    finally:
        _end(child)
    facts = _read_facts(directory)
    if code == 0 and facts.get("network") is not None:
        return BuildResult(
            plan_path=directory / PLAN_NAME,
            log_path=directory / LOG_NAME,
            network=_network(facts["network"]),
            seconds=float(facts["seconds"]),
        )
    reason = facts.get("error") or _death(code)
    raise EngineError(f"{request.name}: {reason}. {keep_log(directory, request.name)}")


def check_timeout(timeout_s: float) -> None:
    """Raises OptionError unless it is a number of seconds above 0."""
    if not 0 < timeout_s < float("inf"):
        raise OptionError(f"the timeout is {timeout_s}; expected a number of seconds above 0")


class _Teller:
    """Logs where a build is, at most every few seconds."""

    def __init__(self, name: str) -> None:
        self._name, self._next = name, time.monotonic() + _TELL_EVERY_S

    def __call__(self, phase: str, done: int, steps: int) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _TELL_EVERY_S
            logger.info("%s: %s, %d of %d", self._name, phase, done, steps)


def _follow(child: subprocess.Popen[bytes], deadline: float, report: Report) -> None:
    """Passes on what the child tells until it closes its output. TimeoutError at the deadline."""
    lines: queue.Queue[bytes | None] = queue.Queue()

    def read() -> None:
        assert child.stdout is not None
        for line in child.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=max(0.01, deadline - time.monotonic()))
        except queue.Empty:
            raise TimeoutError from None
        if line is None:
            return
        if time.monotonic() > deadline:
            raise TimeoutError
        phase, done, steps = json.loads(line)
        report(phase, done, steps)


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.kill()
    child.wait()
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            stream.close()


def _death(code: int) -> str:
    """What became of a child that left no reason."""
    if code == _NO_ROOM:
        return "the engine can't be written; free some space"
    if code >= 0:
        return f"the builder ended with code {code} and no word"
    name = signal.Signals(-code).name if -code in signal.valid_signals() else f"signal {-code}"
    if -code == signal.SIGKILL:
        return "the builder was killed (SIGKILL): often the machine was out of memory"
    return f"the builder crashed ({name}); try another version of TensorRT, or smaller limits"


def keep_log(directory: Path, name: str) -> str:
    """Copies the log of a failed build out of a directory that will go, and says where to."""
    try:
        kept = Path(platformdirs.user_log_dir("leanseq")) / f"engine.{name.replace(' ', '.')}.log"
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes((directory / LOG_NAME).read_bytes())
    except OSError as error:
        return f"Its log could not be kept ({error.strerror})"
    return f"Its log: {kept}"


def _read_facts(directory: Path) -> dict[str, Any]:
    try:
        facts = json.loads((directory / _FACTS_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _to_json(request: BuildRequest) -> dict[str, Any]:
    return {**dataclasses.asdict(request), "onnx_path": str(request.onnx_path.resolve())}


def _from_json(values: dict[str, Any]) -> BuildRequest:
    profiles = tuple(
        {
            name: ShapeRange(**{key: tuple(shape) for key, shape in shapes.items()})
            for name, shapes in profile.items()
        }
        for profile in values["profiles"]
    )
    return BuildRequest(**{**values, "profiles": profiles, "onnx_path": Path(values["onnx_path"])})


def _network(values: dict[str, Any]) -> NetworkFacts:
    lists = ("quantized", "float_weights", "products")
    return NetworkFacts(**{**values, **{name: tuple(values[name]) for name in lists}})


def main(directory: Path) -> int:
    """The child: builds what `request.json` asks for; its exit code."""
    tell_file = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the library prints goes to the log
    threading.Thread(target=_end_with_parent, daemon=True).start()
    request = _from_json(json.loads((directory / _REQUEST_NAME).read_text(encoding="utf-8")))

    def report(phase: str, done: int, steps: int) -> None:
        print(json.dumps([phase, done, steps]), file=tell_file, flush=True)

    try:
        facts = _build(request, directory, report)
    except LeanseqError as error:
        facts = {"error": str(error)}
    except MemoryError:
        facts = {"error": "there is not enough memory to build it; use smaller limits"}
    except Exception as error:  # the library has kinds of its own
        _write_log(traceback.format_exc())
        facts = {"error": f"the builder failed with {type(error).__name__}: {error}"}
    try:
        (directory / _FACTS_NAME).write_text(json.dumps(facts), encoding="utf-8")
    except OSError:
        return _NO_ROOM
    return _FAILED if "error" in facts else 0


def _build(request: BuildRequest, directory: Path, report: Report) -> dict[str, Any]:
    library = load_library(request.library)
    built = build_plan(
        library,
        request.onnx_path,
        request.profiles,
        request.target,
        log=_log_to_stderr(),
        report=report,
    )
    plan_path = directory / PLAN_NAME
    try:
        plan_path.write_bytes(built.plan)
    except OSError as error:
        plan_path.unlink(missing_ok=True)  # what there is of it may be what fills the disk
        raise EngineError(
            f"the engine of {len(built.plan):,} bytes can't be written to {directory.parent} "
            f"({error.strerror or error}); free some space"
        ) from error
    return {"network": dataclasses.asdict(built.network), "seconds": built.seconds}


def _log_to_stderr() -> Callable[[str, str], None]:
    def log(severity: str, text: str) -> None:
        # Lines of a message of many lines stand as they are: runtime.engines.layers reads them.
        _write_log(f"[{severity}] {text}\n")

    return log


def _write_log(text: str) -> None:
    """To the log that stderr is. A full disk doesn't end the build here, in a call-back of the
    library's: a log that lacks lines proves nothing, and the plan finds no room either."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode(errors="replace"))


def _end_with_parent() -> None:
    while os.read(0, 1):  # nothing comes, until the end
        pass
    os._exit(1)


if __name__ == "__main__":
    os._exit(main(Path(sys.argv[1])))  # without the library's own clean-up, which may crash
