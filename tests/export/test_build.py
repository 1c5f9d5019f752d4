"""The main job: what it writes, what it uses again, and what it says when it can't go on."""

from __future__ import annotations

import dataclasses
import logging
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from support.tiny_model import random_transformer
from support.tiny_tokenizer import tiny_tokenizer

from export import build as build_module
from export import sources
from export.build import BuildSettings, build
from model.checkpoint import load_checkpoint, save_checkpoint
from model.corpora.phrases import Parameters
from model.samples import Samples
from model.training.settings import demo_settings
from runtime.bundle import Bundle
from runtime.console import run
from runtime.directory import lock_directory
from runtime.errors import OptionError
from runtime.translator import Translator

LINES = [f"in {number} days" for number in range(2, 14)]
PAIRS = tuple((line, line) for line in LINES)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("build") / "checkpoint"
    save_checkpoint(
        path,
        model=random_transformer(),
        tokenizer_proto=tiny_tokenizer().model_proto,
        samples=Samples(calibration=tuple(LINES), valid=PAIRS),
    )
    return path


@pytest.fixture(scope="module")
def built(checkpoint: Path) -> BuildSettings:
    """A finished build, which tests must not change."""
    settings = BuildSettings(int8=True, checkpoint=checkpoint, out=checkpoint.parent / "bundle")
    build(settings)
    return settings


@pytest.fixture
def copied(built: BuildSettings, tmp_path: Path) -> BuildSettings:
    """The same in a place of its own."""
    shutil.copytree(built.bundle_path, tmp_path / "bundle")
    return dataclasses.replace(built, out=tmp_path / "bundle")


def messages(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records)


class Building(Exception):  # noqa: N818 - not an error
    """`build` came to the point of making a bundle."""


def builds_again(settings: BuildSettings, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether `build` would make the bundle, without the time it takes."""

    def stop(*arguments: Any) -> None:
        raise Building

    monkeypatch.setattr(build_module, "make_bundle", stop)
    try:
        build(settings)
    except Building:
        return True
    return False


def test_a_bundle_holds_every_precision_and_translates(built: BuildSettings) -> None:
    bundle = Bundle.open(built.bundle_path)
    bundle.verify()
    assert bundle.precisions() == ("fp32", "fp16", "int8", "int8_fp16")
    assert bundle.graph("encoder", "int8").int8_matmuls == 2 * 6 + 2 * 2  # and cross k, v
    assert bundle.graph("encoder", "fp32").int8_matmuls == 0
    with Translator.open(bundle, precision="int8") as translator:
        assert len(translator.translate(LINES)) == len(LINES)


def test_the_report_names_what_was_measured(built: BuildSettings) -> None:
    report = Bundle.open(built.bundle_path).read_report()
    assert report is not None
    names = [subject["name"] for subject in report["subjects"]]
    assert names == ["PyTorch eager", "ONNX Runtime FP32", "ONNX Runtime INT8"]
    parity = report["subjects"][1]["parity"]
    assert parity["passed"]
    assert parity["equal"] + parity["ties"] == len(LINES)
    assert report["test_set"]["lines"] == len(LINES)


def test_what_is_there_is_used_again(
    built: BuildSettings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (built.bundle_path / "report.json").read_bytes()
    monkeypatch.setattr(build_module, "make_bundle", None)  # not called
    monkeypatch.setattr(build_module, "report_on", None)
    with caplog.at_level(logging.INFO):
        shown = build(built)
    assert "made from the same inputs, reused" in messages(caplog)
    assert "shown again" in messages(caplog)
    assert shown == Bundle.open(built.bundle_path).read_report()
    assert (built.bundle_path / "report.json").read_bytes() == before


@pytest.mark.parametrize("change", ["remeasure", "threads", "lines"])
def test_what_was_measured_otherwise_is_measured_again(
    copied: BuildSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, change: str
) -> None:
    lines = tmp_path / "lines"
    lines.write_text("in 3 days\n")
    changes = {
        "remeasure": {"remeasure": True},
        "threads": {"threads": 2},
        "lines": {"src": lines, "ref": lines},
    }
    monkeypatch.setattr(build_module, "make_bundle", None)
    monkeypatch.setattr(build_module, "report_on", lambda *a, **k: {"date": "now"})
    assert build(dataclasses.replace(copied, **changes[change]))["date"] == "now"
    report = Bundle.open(copied.bundle_path).read_report()
    assert report is not None
    assert report["date"] == "now"


@pytest.mark.parametrize("change", ["nothing", "method", "sentences", "no int8", "force"])
def test_other_settings_build_again(
    built: BuildSettings, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    changes: dict[str, dict[str, Any]] = {
        "nothing": {},
        "method": {"method": "minmax"},
        "sentences": {"calibration_sentences": 5},
        "no int8": {"int8": False},
        "force": {"force": True},
    }
    changed = dataclasses.replace(built, **changes[change])
    assert builds_again(changed, monkeypatch) == (change != "nothing")


@pytest.mark.parametrize("damage", ["truncated", "altered", "missing", "manifest"])
def test_a_damaged_bundle_is_built_again(
    copied: BuildSettings, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    file = copied.bundle_path / "encoder.int8.onnx"
    content = bytearray(file.read_bytes())
    match damage:
        case "truncated":
            file.write_bytes(content[:-1])
        case "altered":
            content[-1] ^= 1
            file.write_bytes(content)
        case "missing":
            file.unlink()
        case "manifest":
            (copied.bundle_path / "manifest.json").write_text("{")
    assert builds_again(copied, monkeypatch)


def test_two_builds_are_the_same_bytes(built: BuildSettings, tmp_path: Path) -> None:
    out = tmp_path / "again"
    command = f"--int8 --checkpoint {built.checkpoint} --out {out}".split()
    done = subprocess.run(
        [sys.executable, "-m", "export", "build", *command],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": "7"},
    )
    assert done.returncode == 0, done.stderr
    assert "ONNX Runtime INT8" in done.stdout
    first, second = Bundle.open(built.bundle_path), Bundle.open(out)
    assert first.bundle_id == second.bundle_id
    for name in ("manifest.json", *first.manifest.files):
        assert (first.path / name).read_bytes() == (second.path / name).read_bytes(), name


def test_a_kill_while_writing_leaves_the_old_bundle(
    copied: BuildSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"""
        import os, signal
        from pathlib import Path
        from export import bundling
        from export.build import BuildSettings, build
        bundling._export_fp32 = lambda checkpoint, directory: (directory / "part").write_text("")
        bundling._convert = lambda *a: os.kill(os.getpid(), signal.SIGKILL)
        build(BuildSettings(int8=False, checkpoint=Path({str(copied.checkpoint)!r}),
                            out=Path({str(copied.bundle_path)!r})))
    """
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False)
    assert killed.returncode == -signal.SIGKILL
    Bundle.open(copied.bundle_path).verify()
    assert not builds_again(copied, monkeypatch)


def test_two_builds_into_one_place(copied: BuildSettings) -> None:
    command = f"--checkpoint {copied.checkpoint} --out {copied.bundle_path}".split()
    with lock_directory(copied.bundle_path):
        done = subprocess.run(
            [sys.executable, "-m", "export", "build", *command],
            check=False,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 1
    assert "is being written by another process" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_checkpoint_without_sentences(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    save_checkpoint(path, model=random_transformer(), tokenizer_proto=tiny_tokenizer().model_proto)
    with pytest.raises(OptionError, match="carries no sentences to check parity with"):
        build(BuildSettings(checkpoint=path, out=tmp_path / "bundle"))
    assert not (tmp_path / "bundle").exists()
    lines = tmp_path / "lines"
    lines.write_text("\n".join(LINES) + "\n")
    found = sources.from_checkpoint(path, sources.GivenFiles(src=lines, ref=lines))
    assert list(found.test_set.lines) == LINES
    assert found.calibration_lines == ()


@pytest.mark.parametrize(
    ("arguments", "text", "code"),
    [
        (["--src", "x"], "--src and --ref belong together", 2),
        (["--threads", "0"], "threads is 0; expected a whole number of at least 1", 2),
        (["--calibration-sentences", "0"], "--calibration-sentences is 0", 2),
        (["--max-minutes", "-1"], "--max-minutes is -1.0; expected a number above 0", 2),
        (["--method", "magic"], "Invalid value for '--method'", 2),
        (["--percentile", "20", "--int8"], "percentile is 20.0", 2),
        (["--checkpoint", "absent"], "there is no checkpoint at absent", 1),
    ],
)
def test_wrong_arguments(
    arguments: list[str],
    text: str,
    code: int,
    checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ["build", "--out", str(tmp_path / "b"), "--checkpoint", str(checkpoint), *arguments]
    assert run("export.cli:cli", given) == code
    assert text in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


def test_the_demo_is_made_once_and_goes_on_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    small = dataclasses.replace(
        demo_settings(), max_updates=4, save_every=2, max_minutes=5.0, vocab_size=700
    )
    monkeypatch.setattr(sources, "demo_settings", lambda: small)
    monkeypatch.setattr(sources, "Parameters", lambda target: Parameters(target=target, pairs=1500))

    def demo(**changes: Any) -> str:
        """What was said on the way."""
        caplog.clear()
        arguments: dict[str, Any] = {"max_minutes": None, "force": False} | changes
        with caplog.at_level(logging.INFO):
            found = sources.from_embedded_corpus(tmp_path, "de", sources.GivenFiles(), **arguments)
        assert len(found.test_set.lines) == 1000
        assert found.test_set.families is not None
        assert len(found.calibration_lines) == 500
        return messages(caplog)

    assert "none at hand that fits" in demo()
    weights = (tmp_path / "checkpoint" / "model.safetensors").read_bytes()
    assert "fits the corpus, reused" in demo()

    for name in ("config.json", "model.safetensors", "manifest.json"):
        (tmp_path / "checkpoint" / name).unlink()  # as after a kill before the end
    assert "going on after update 4" in demo()
    assert (tmp_path / "checkpoint" / "model.safetensors").read_bytes() == weights

    assert "going on" not in demo(force=True)
    assert "going on after update 4" in demo(max_minutes=4.0)  # more or fewer minutes, same model
    assert load_checkpoint(tmp_path / "checkpoint").metadata["settings"]["max_minutes"] == 4.0
    other = dataclasses.replace(small, learning_rate=1e-3)
    monkeypatch.setattr(sources, "demo_settings", lambda: other)
    assert "starting anew, since" in demo(max_minutes=4.0)

    (tmp_path / "corpus" / "train.src").write_text("altered")
    assert "making it again" in demo(max_minutes=4.0)
