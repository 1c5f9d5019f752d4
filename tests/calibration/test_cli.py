"""`python -m calibration`: what it prints, what it writes, how it fails."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from calibration.compare import CHOICES, compare, render
from calibration.errors import CalibrationError
from calibration.ranges import Ranges
from runtime.console import run

LINES = "".join(f"line {i} has some words\n\n" for i in range(8))


@pytest.fixture
def src(tmp_path: Path) -> Path:
    path = tmp_path / "src.txt"
    path.write_text(LINES)
    return path


def calibration(*arguments: object) -> int:
    return run(
        "calibration.cli:cli", [str(a) for a in arguments], prog_name="python -m calibration"
    )


def test_run_prints_ranges_or_writes_them(bundle_path, src, tmp_path, capfd):
    common = ("run", "--bundle", bundle_path, "--src", src, "--sentences", 5)
    assert calibration(*common) == 0
    printed = capfd.readouterr().out
    ranges = Ranges.from_json(json.loads(printed))
    assert ranges.sentences == 5
    assert calibration(*common, "--out", tmp_path / "ranges.json") == 0
    assert (tmp_path / "ranges.json").read_text() == printed
    assert capfd.readouterr().out == ""


def test_percentiles_are_tighter_than_minmax(bundle_path, src, tmp_path):
    for method, out in (("minmax", "a"), ("percentile", "b")):
        arguments = ("--method", method, "--percentile", 90, "--out", tmp_path / out)
        assert calibration("run", "--bundle", bundle_path, "--src", src, *arguments) == 0
    wide, tight = (Ranges.load(tmp_path / name).bounds for name in ("a", "b"))
    assert all(
        tight[role][name] < bound
        for role, of_role in wide.items()
        for name, bound in of_role.items()
    )


def test_compare_shows_every_choice(bundle_path, src, capfd):
    arguments = ("compare", "--bundle", bundle_path, "--src", src, "--sentences", 4)
    assert calibration(*arguments, "--json") == 0
    rows = json.loads(capfd.readouterr().out)
    assert [row["name"] for row in rows] == [choice.name for choice in CHOICES]
    assert all(row["sentences"] == 4 and row["kl_mean"] > 0 for row in rows)
    assert calibration(*arguments) == 0
    table = capfd.readouterr().out.split("\n\n")[0].splitlines()
    assert len(table) == 1 + len(CHOICES)
    assert table[1].startswith("minmax ")
    assert len({len(line) for line in table}) == 1


def test_compare_measures_on_other_sentences_than_it_calibrates_on(graphs):
    found = compare(
        graphs.encoder,
        graphs.step,
        graphs.model,
        graphs.special_ids,
        graphs.sources,
        choices=CHOICES[:1],
    )
    assert found[0].agreement.sentences == len(graphs.sources) // 2
    assert "minmax" in render(found)
    assert "KL of INT8 from FP32" in render(found)
    with pytest.raises(CalibrationError, match="there is 1 sentence; expected at least 2"):
        compare(graphs.encoder, graphs.step, graphs.model, graphs.special_ids, graphs.sources[:1])


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--sentences", 0), 2, "sentences is 0"),
        (("--beam-size", 0), 2, "beam_size is 0"),
        (("--method", "percentile", "--percentile", 0.999), 2, "percentile is 0.999"),
        (("--method", "entropy"), 2, "entropy"),
        (("--src", "nowhere"), 1, "nowhere can't be read"),
        (("--bundle", "nowhere"), 1, "nowhere does not exist"),
        (("--out", "nowhere/ranges.json"), 1, "can't be written"),
    ],
)
def test_mistakes_are_told_in_one_line(bundle_path, src, arguments, code, message, capfd):
    common = ("run", "--bundle", bundle_path, "--src", src)
    assert calibration(*common, *arguments) == code
    captured = capfd.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""


def test_a_bundle_without_fp32_graphs_is_refused(bundle_path, src, tmp_path, capfd):
    copy = tmp_path / "bundle"
    shutil.copytree(bundle_path, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    for graph in manifest["graphs"]:
        graph["precision"] = "fp16"
    (copy / "manifest.json").write_text(json.dumps(manifest))
    assert calibration("run", "--bundle", copy, "--src", src) == 1
    assert "holds no portable encoder graph in fp32; it has: fp16" in capfd.readouterr().err
