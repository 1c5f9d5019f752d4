"""Engines on disk: built once, found again, and told apart from what is damaged, foreign or old."""

from __future__ import annotations

import dataclasses
import errno
import gzip
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.fake_builds import GOOD_BUILD, Fake, write_bundle_for_fakes
from support.tree import ROOT

from runtime.bundle import Bundle, check_replaceable
from runtime.directory import DirectoryBusyError, aside_path, lock_directory
from runtime.engines.builder import SETTINGS_VERSION
from runtime.engines.engine import Engine, check_precision, read_engine
from runtime.engines.library import Library, load_library
from runtime.engines.profiles import EngineLimits
from runtime.engines.store import Here, Mismatch, all_engines, ensure_engine, find, places
from runtime.errors import BundleError, EngineError, OptionError, ProofError

HERE = Here(library="tensorrt", version="11.4.0.106", gpu="sm90")
NAME = "encoder.fp16.sm90.tensorrt"


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return write_bundle_for_fakes(tmp_path / "bundle")


@pytest.fixture
def library(fake: Fake) -> Library:
    return load_library("tensorrt")


def ensure(bundle: Bundle, library: Library, **changes: Any) -> tuple[Engine, bool]:
    arguments: dict[str, Any] = {"target": "sm90", "limits": EngineLimits()} | changes
    return ensure_engine(bundle, "encoder", "fp16", library=library, **arguments)


@pytest.fixture
def built(bundle: Bundle, library: Library) -> Engine:
    engine, now = ensure(bundle, library)
    assert now
    return engine


def why(bundle: Bundle, here: Here = HERE, **arguments: Any) -> str:
    found = find(bundle, "encoder", "fp16", here, **arguments)
    assert isinstance(found, Mismatch)
    return found.why


def test_an_engine_is_found_and_says_what_it_is(bundle: Bundle, built: Engine) -> None:
    assert built.directory == bundle.path / "engines" / NAME
    assert sorted(file.name for file in built.directory.iterdir()) == [
        "build.log.gz", "engine.json", "plan",
    ]  # fmt: skip
    assert find(bundle, "encoder", "fp16", HERE) == built
    assert list(all_engines(bundle)) == [built]
    assert built.read_plan() == b"a plan"
    assert (built.library, built.version, built.target) == ("tensorrt", "11.4.0.106", "sm90")
    assert built.built_by == "tensorrt 11.4.0.106"
    assert built.limits == EngineLimits(max_source=32, max_target=32)  # the model's own
    assert built.profiles[1]["src_ids"].max == (32, 32)
    assert built.proof.int8 == ("fc",)
    assert built.facts.activation_bytes == (8,)
    assert b"TacticName" in gzip.decompress((built.directory / "build.log.gz").read_bytes())
    values = json.loads((built.directory / "engine.json").read_text(encoding="utf-8"))
    assert values["schema"] == "1.0"
    assert "directory" not in values


def test_it_is_built_once(bundle: Bundle, library: Library, built: Engine, fake: Fake) -> None:
    fake("raise AssertionError('built again')")
    assert ensure(bundle, library) == (built, False)


@pytest.mark.parametrize("change", ["force", "limits", "version", "settings", "onnx", "damage"])
def test_other_inputs_build_it_again(
    change: str, bundle: Bundle, library: Library, built: Engine, fake: Fake, tmp_path: Path
) -> None:
    fake(GOOD_BUILD.replace("a plan", "another plan"))
    arguments: dict[str, Any] = {}
    match change:
        case "force":
            arguments["force"] = True
        case "limits":
            arguments["limits"] = EngineLimits(max_batch=3)
        case "version":
            library = dataclasses.replace(library, version="11.5")
        case "settings":
            edit(built, settings_version=SETTINGS_VERSION - 1)
        case "onnx":
            engines = built.directory.parent.rename(tmp_path / "engines")
            bundle = write_bundle_for_fakes(bundle.path, onnx=b"another graph")
            engines.rename(bundle.path / "engines")
        case "damage":
            (built.directory / "plan").write_bytes(b"x")
    engine, now = ensure(bundle, library, **arguments)
    assert now
    assert engine.read_plan() == b"another plan"


def edit(engine: Engine, **changes: Any) -> None:
    path = engine.directory / "engine.json"
    values = json.loads(path.read_text(encoding="utf-8")) | changes
    values = {name: value for name, value in values.items() if value is not None}
    path.write_text(json.dumps(values), encoding="utf-8")


def rename(engine: Engine, name: str, **changes: Any) -> None:
    edit(engine, **changes)
    engine.directory.rename(engine.directory.with_name(name))


DAMAGES: dict[str, tuple[Callable[[Engine], Any], str]] = {
    "no engine": (
        lambda e: e.directory.rename(e.directory.with_name(".gone")),
        "no encoder engine in fp16 has been built",
    ),
    "no engine.json": (lambda e: (e.directory / "engine.json").unlink(), "holds no engine.json"),
    "not JSON": (
        lambda e: (e.directory / "engine.json").write_bytes(b"\xff{"), "engine.json can't be read",
    ),
    "a list": (lambda e: (e.directory / "engine.json").write_text("[]"), "has schema None"),
    "newer schema": (lambda e: edit(e, schema="2.0"), "has schema '2.0'; this leanseq reads 1.x"),
    "a field is missing": (
        lambda e: edit(e, limits=None), r"a field is missing or malformed .KeyError\('limits'\)",
    ),
    "a field is malformed": (
        lambda e: edit(e, limits={"max_batch": "many"}), "max_batch is 'many'",
    ),
    "nested without end": (
        lambda e: (e.directory / "engine.json").write_text("[" * 100_000),
        "engine.json can't be read",
    ),
    "a limit is missing": (
        lambda e: edit(e, limits={"max_batch": 32, "max_beam": 8, "max_target": 32}),
        "no max_source",
    ),
    "no profiles": (lambda e: edit(e, profiles=[]), "no profiles"),
    "a wrong type": (lambda e: edit(e, version=11), r"malformed .TypeError\('version is 11'\)"),
    "a wrong type within": (
        lambda e: edit(e, facts=vars(e.facts) | {"seconds": "1.5"}), "seconds is '1.5'",
    ),
    "a size below zero": (
        lambda e: edit(e, profiles=[{"x": {"min": [-1], "opt": [1], "max": [1]}}]),
        r"min is \(-1,\)",
    ),
    "a proof of something else": (lambda e: edit(e, proof={"proved": True}), "malformed"),
    "no plan": (lambda e: (e.directory / "plan").unlink(), "plan can't be read .No such file"),
    "a truncated plan": (
        lambda e: (e.directory / "plan").write_bytes(b"a pla"),
        "plan has 5 bytes, expected 6: it is truncated",
    ),
    "an altered plan": (
        lambda e: (e.directory / "plan").write_bytes(b"a_plan"), r"has SHA-256 \w+\.\.\., expected",
    ),
    "another GPU": (
        lambda e: rename(e, "encoder.fp16.sm89.tensorrt", target="sm89"),
        "the engine encoder fp16 sm89 was built for sm89, and the GPU here is sm90",
    ),
    "another library": (
        lambda e: rename(e, "encoder.fp16.sm90.tensorrt_rtx", library="tensorrt_rtx"),
        "was built by tensorrt-rtx 11.4.0.106, and here is tensorrt 11.4.0.106",
    ),
    "an old version": (
        lambda e: edit(e, version="10.3.0.26"),
        "was built by tensorrt 10.3.0.26, and here is tensorrt 11.4.0.106: only the same version",
    ),
    "another ONNX file": (
        lambda e: edit(e, onnx_sha256="0" * 64), "was built from another ONNX file .SHA-256 0000",
    ),
    "in another's place": (
        lambda e: e.directory.rename(e.directory.with_name("encoder.fp16.sm80.tensorrt")),
        "holds the engine of encoder.fp16.sm90.tensorrt",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_foreign_or_old_engine(
    name: str, bundle: Bundle, library: Library, built: Engine
) -> None:
    damage, text = DAMAGES[name]
    damage(built)
    with pytest.raises(AssertionError, match=text):
        raise AssertionError(why(bundle))
    again, now = ensure(bundle, library)
    assert now
    assert find(bundle, "encoder", "fp16", HERE) == again


def test_what_a_later_version_adds_is_skipped(bundle: Bundle, built: Engine) -> None:
    edit(built, schema="1.7", more=1, limits=built.limits.to_json() | {"max_more": 3})
    assert find(bundle, "encoder", "fp16", HERE) == built


def test_an_engine_of_a_graph_that_the_bundle_lacks(bundle: Bundle, built: Engine) -> None:
    rename(built, "encoder.int8_fp16.sm90.tensorrt", precision="int8_fp16")
    (found,) = all_engines(bundle)
    assert isinstance(found, Mismatch)
    assert "holds no portable encoder graph in int8_fp16" in found.why


def test_a_machine_without_a_gpu(bundle: Bundle, built: Engine) -> None:
    text = why(bundle, dataclasses.replace(HERE, gpu=None))
    assert "was built for sm90, and there is no GPU here" in text


def test_an_engine_too_small(bundle: Bundle, library: Library) -> None:
    ensure(bundle, library, limits=EngineLimits(max_batch=2))
    assert isinstance(
        find(bundle, "encoder", "fp16", HERE, limits=EngineLimits(max_batch=2)), Engine
    )
    text = why(bundle, limits=EngineLimits(max_batch=3))
    assert "takes at most batch 2, beam 8, source 32, target 32, asked for batch 3" in text


def test_limits_too_large_together(
    bundle: Bundle, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.engines.profiles._MOST_ELEMENTS", 9_999)
    with pytest.raises(OptionError, match=r"make a tensor of [0-9,]+ elements.* at most 9,999"):
        ensure(bundle, library)
    assert not (bundle.path / "engines").exists()


def test_all_reasons_are_told(bundle: Bundle, library: Library, built: Engine) -> None:
    other, _ = ensure(bundle, dataclasses.replace(library, version="10.1"), target="sm89")
    edit(built, version="10.2")
    text = why(bundle)
    assert "by tensorrt 10.1, and here" in text
    assert "by tensorrt 10.2, and here" in text
    assert len(list(all_engines(bundle))) == 2
    (other.directory / "plan").unlink()
    assert [type(found) for found in all_engines(bundle)] == [Mismatch, Engine]


def test_int8_is_no_precision_of_engines() -> None:
    with pytest.raises(
        OptionError, match="precision is 'int8'; TensorRT engines are made in fp16 and"
    ):
        check_precision("int8")


def test_an_engine_that_is_not_proved_leaves_nothing(
    bundle: Bundle, library: Library, fake: Fake
) -> None:
    fake(GOOD_BUILD.replace("Int8", "Half"))
    with pytest.raises(ProofError, match=r"encoder fp16 sm90: MatMul fc is quantized .* Its log: "):
        ensure(bundle, library)
    assert left(bundle) == []


def test_a_log_without_layers_is_tolerated_of_tensorrt(
    bundle: Bundle, library: Library, fake: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    fake("plan = b'a plan'")
    engine, _ = ensure(bundle, library)
    assert not engine.proof.proved
    assert "INT8 is not proved, since the builder's log lists no layers" in caplog.text
    assert read_engine(engine.directory) == engine


def left(bundle: Bundle) -> list[str]:
    """What stands in engines/, the locks left out."""
    names = [path.name for path in (bundle.path / "engines").iterdir()]
    return [name for name in names if not name.endswith(".lock")]


@pytest.mark.parametrize("who", ["the builder", "the builder's parent"])
def test_a_killed_build_leaves_nothing(
    who: str, bundle: Bundle, library: Library, fake: Fake, tmp_path: Path
) -> None:
    fake("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    if who == "the builder":
        with pytest.raises(EngineError, match=r"was killed \(SIGKILL\)"):
            ensure(bundle, library)
    else:
        fake("import os, signal; os.kill(os.getppid(), signal.SIGKILL)")
        with run_ensure(bundle) as killed:
            killed.communicate()
        assert killed.returncode == -signal.SIGKILL
        assert why(bundle).startswith("no encoder engine")
        assert list(all_engines(bundle)) == []
        fake(GOOD_BUILD)
        assert ensure(bundle, library)[1]  # and takes away what the killed one was writing
        assert left(bundle) == [NAME]
        return
    assert left(bundle) == []


def test_a_kill_between_the_renames_keeps_the_old_engine(bundle: Bundle, built: Engine) -> None:
    built.directory.rename(aside_path(built.directory))
    assert find(bundle, "encoder", "fp16", HERE) == built


def run_ensure(bundle: Bundle) -> subprocess.Popen[str]:
    script = f"""
        import sys
        sys.path[:0] = {sys.path!r}
        sys.path[:0] = [{str(ROOT / "tests" / "runtime" / "engines")!r}]
        from test_store import ensure
        from runtime.bundle import Bundle
        from runtime.engines.library import load_library
        print(ensure(Bundle.open({str(bundle.path)!r}), load_library("tensorrt"))[1])
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    )


def test_two_builds_at_once_are_one(bundle: Bundle, library: Library, fake: Fake) -> None:
    fake("import time; time.sleep(2)\n" + GOOD_BUILD)
    processes = [run_ensure(bundle) for _ in range(2)]
    said = [process.communicate()[0].strip() for process in processes]
    assert sorted(said) == ["False", "True"]
    assert left(bundle) == [NAME]


def test_a_build_that_waits_too_long(bundle: Bundle, library: Library) -> None:
    with (
        lock_directory(bundle.path / "engines" / NAME),
        pytest.raises(DirectoryBusyError, match="is being written by another process"),
    ):
        ensure(bundle, library, timeout_s=0.2)


def test_engines_of_a_bundle_that_cannot_be_written(
    bundle: Bundle, library: Library, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # tests may run as root
    engine, _ = ensure(bundle, library)
    assert engine.directory.is_relative_to(own_cache)
    assert engine.directory.parent.name == bundle.bundle_id[:16]
    assert not (bundle.path / "engines").exists()
    assert find(bundle, "encoder", "fp16", HERE) == engine
    assert ensure(bundle, library) == (engine, False)


def deny(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody may enter that directory: permissions would not stop root, whom tests may run as."""

    def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
        def checked(path: Any, *arguments: Any, **options: Any) -> Any:
            if isinstance(path, (str, Path)) and Path(path).is_relative_to(place):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return function(path, *arguments, **options)

        return checked

    for name in ("stat", "listdir", "scandir"):
        monkeypatch.setattr(os, name, guarded(getattr(os, name)))


def test_engines_that_may_not_be_looked_at(
    bundle: Bundle, built: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    deny(built.directory.parent, monkeypatch)
    assert "engines can't be read (Permission denied)" in why(bundle)
    (found,) = all_engines(bundle)
    assert isinstance(found, Mismatch)
    assert "make it a directory that you may enter" in found.why


def test_a_home_directory_that_may_not_be_entered(
    bundle: Bundle, built: Engine, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deny(own_cache, monkeypatch)
    assert find(bundle, "encoder", "fp16", HERE) == built
    assert list(all_engines(bundle)) == [built]


def test_a_directory_without_room(
    bundle: Bundle, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "mkdtemp", fail)
    with pytest.raises(EngineError, match=r"can't be written to \S+ \(No space left on device\)"):
        ensure(bundle, library)
    assert left(bundle) == []


def test_nowhere_to_write(
    bundle: Bundle, library: Library, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    own_cache.write_text("a file")
    with pytest.raises(
        EngineError, match=r"neither \S+ nor \S+ can be written .*no place for engines"
    ):
        ensure(bundle, library)


def test_the_two_places(bundle: Bundle, own_cache: Path) -> None:
    inside, cache = places(bundle)
    assert inside == bundle.path / "engines"
    assert cache.is_relative_to(own_cache)


def test_a_bundle_with_engines_may_be_replaced(bundle: Bundle, built: Engine) -> None:
    check_replaceable(bundle.path)
    (bundle.path / "engines" / "mine.txt").write_text("x")
    with pytest.raises(BundleError, match="holds engines, which is no part of a bundle"):
        check_replaceable(bundle.path)
