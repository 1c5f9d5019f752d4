"""Timing schedules: every shape on the same lines, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.fake_bundle import fake_entry, write_fake_bundle

from benchmarks.cli import cli
from benchmarks.schedules import SchedulesRun, file_shapes, measure_schedules
from runtime import registry
from runtime.console import run
from runtime.errors import BackendError, OptionError
from runtime.options import SearchOptions
from runtime.translator import Translator


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setitem(registry.BACKENDS, "onnxruntime", fake_entry())
    monkeypatch.setattr("benchmarks.schedules.physical_cores", lambda: 2)
    monkeypatch.setattr("runtime.cores.physical_cores", lambda: 2)
    source = tmp_path / "lines"
    source.write_text("".join(f"the cat {number}\n" for number in range(12)))
    bundle = write_fake_bundle(tmp_path / "bundle")
    return ["--bundle", str(bundle), "--src", str(source), "--rounds", "2", "--alone", "3"]


def test_every_shape_once() -> None:
    shapes = file_shapes(2)
    assert [(s.workers, s.threads, s.batch_tokens) for s in shapes] == [
        (1, 1, 512), (1, 2, 512), (2, 1, 512), (2, 2, 512),
        (2, 1, 256), (2, 1, 1024), (2, 1, 2048),
    ]  # fmt: skip
    assert [(s.workers, s.threads) for s in file_shapes(1)] == [(1, 1)] * 4


def test_the_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["schedules", *arguments, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [found["label"] for found in record["many"]][2] == "2 x 1, 512 tokens"
    assert [found["threads"] for found in record["alone"]] == [1, 2]
    assert (record["lines"], record["alone"][0]["lines"]) == (12, 3)
    assert all(len(found["seconds"]) == 2 for found in record["many"])
    assert record["chosen"]["workers"] == 2
    assert run(cli, ["schedules", *arguments, "--limit", "5"]) == 0
    text = capsys.readouterr().out
    assert "5 lines, beam 4, fp32 (portable), 2 rounds" in text
    assert "translate picks: 2 workers of 1 thread each" in text


def test_what_is_refused(arguments: list[str]) -> None:
    bundle, src = Path(arguments[1]), Path(arguments[3])
    for given in ({}, {"bundle": bundle}, {"bundle": bundle, "src": src, "preset": "tiny"}):
        with pytest.raises(OptionError, match="give --bundle and --src, or --preset alone"):
            measure_schedules(SchedulesRun(**given))  # type: ignore[arg-type]


def test_a_translation_that_changes_is_told(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    translate = Translator.translate

    def unsteady(
        self: Translator, texts: list[str], options: SearchOptions, **given: int
    ) -> object:
        return translate(self, texts[self.schedule.workers :], options, **given)

    monkeypatch.setattr(Translator, "translate", unsteady)
    run_of = SchedulesRun(bundle=Path(arguments[1]), src=Path(arguments[3]), rounds=1)
    with pytest.raises(BackendError, match="changed a translation; report this"):
        measure_schedules(run_of)
