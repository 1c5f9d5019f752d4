"""evaluate and tune-search, by the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from runtime.console import run

GOLDEN = Path(__file__).parents[2] / "golden" / "bundle-schema-1"
SOURCES = [f"in {number} days" for number in range(2, 12)]
REFERENCES = [f"in {number} Tagen" for number in range(2, 12)]


def call(*arguments: str | Path) -> int:
    return run("model.cli:cli", [str(a) for a in arguments], prog_name="python -m model")


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    sentences = [f"{line} kommt der Zug" for line in REFERENCES]
    tsv = [f"{s}\t{r}" for s, r in zip([*SOURCES, SOURCES[0]], [*REFERENCES, "x"], strict=True)]
    return {
        "src": write(tmp_path / "src", SOURCES),
        "ref": write(tmp_path / "ref", REFERENCES),
        "good": write(tmp_path / "good", sentences),
        "worse": write(tmp_path / "worse", ["", *sentences[1:]]),
        "tsv": write(tmp_path / "tsv", tsv),
        "short": write(tmp_path / "short", REFERENCES[:3]),
    }


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    assert call(*arguments, "--json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_evaluate_a_checkpoint(
    random_checkpoint: Path, files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["evaluate", "--checkpoint", random_checkpoint, "--src", files["src"]]
    given += ["--ref", files["ref"], "--max-length", "5", "--beam-size", "2"]
    assert call(*given) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["BLEU", "BLEU", "chrF", "exact", "translated"]
    assert all("95%: " in line and "bs:1000|seed:12345" in line for line in lines[:3])
    assert lines[-1].endswith("eager fp32, beam 2, length penalty 1")
    found = as_json(capsys, *given, "--bootstrap", "0")
    assert found["bleu"]["interval"] is None
    assert "bs:" not in found["bleu"]["signature"]
    assert (found["system"]["backend"], found["system"]["search"]["max_length"]) == ("eager", 5)
    assert "against" not in found


def test_evaluate_a_bundle(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    given = ["evaluate", "--bundle", GOLDEN, "--src", files["src"], "--ref", files["ref"]]
    given += ["--precision", "int8", "--threads", "1", "--backend", "onnxruntime"]
    found = as_json(capsys, *given)
    assert found["exact_match"] == 1.0
    assert found["chrf"]["score"] == pytest.approx(100)  # BLEU needs lines of four words
    assert found["chrf"]["interval"]["low"] == pytest.approx(100)
    system = found["system"]
    assert (system["backend"], system["precision"]) == ("onnxruntime", "int8")
    assert system["source"].startswith("bundle ")


def test_evaluate_a_file_against_a_baseline(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["evaluate", "--translations", files["worse"], "--ref", files["good"]]
    given += ["--baseline", files["good"]]
    assert call(*given) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[4] == f"against {files['good']}, by paired bootstrap:"
    assert [line.split()[0] for line in lines[5:8]] == ["BLEU", "BLEU", "chrF"]
    assert lines[8] == f"translated by file {files['worse']}"
    first, again = as_json(capsys, *given), as_json(capsys, *given)
    assert first == again
    difference = first["against"]["differences"]["BLEU"]
    assert difference["difference"] == pytest.approx(first["bleu"]["score"] - 100)
    assert difference["low"] < difference["difference"] < difference["high"] <= 0
    assert f"{difference['difference']:+.2f} (95%: " in lines[5]
    assert difference["p_value"] > 0.3  # one line of ten


def test_evaluate_a_tsv_with_several_references(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    translations = write(tmp_path / "ours", [*REFERENCES, "never looked at"])
    given = ["evaluate", "--tsv", files["tsv"], "--translations", translations]
    found = as_json(capsys, *given)
    assert (found["num_lines"], found["exact_match"]) == (10, 1.0)
    assert "nrefs:var" in found["bleu"]["signature"]
    assert as_json(capsys, *given, "--no-group")["num_lines"] == 11


def test_evaluate_by_family(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    families = write(tmp_path / "families", ["one digit"] * 8 + ["two digits"] * 2)
    given = ["evaluate", "--translations", files["worse"], "--ref", files["good"]]
    given += ["--families", families]
    assert as_json(capsys, *given)["by_family"] == {"one digit": 0.875, "two digits": 1.0}
    assert call(*given) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [" ".join(line.split()) for line in lines[3:6]] == [
        "exact match 90.0% 10 lines", "one digit 87.5%", "two digits 100.0%",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--src", "src", "--ref", "ref"], 2, "give one of --checkpoint and --bundle"),
        (["--checkpoint", "x", "--bundle", "y"], 2, "give one of --checkpoint and --bundle"),
        (["--checkpoint", "x", "--precision", "int8"], 2, "--precision belongs to --bundle"),
        (["--checkpoint", "x"], 2, "give --src and --ref, or --tsv"),
        (["--checkpoint", "no", "--src", "src", "--ref", "ref"], 1, "no checkpoint at no"),
        (["--checkpoint", "x", "--src", "src", "--ref", "short"], 1, "10 source lines but 3 ref"),
        (["--translations", "ref"], 2, "give --src and --ref, or --tsv"),
        (["--translations", "short", "--ref", "ref"], 1, "short has 3 lines, the test set 10"),
        (
            ["--translations", "x", "--bundle", "y", "--beam-size", "3"],
            2,
            "--bundle, --beam-size can't be used with --translations; leave it out",
        ),
        (
            ["--translations", "ref", "--ref", "ref", "--baseline", "ref", "--bootstrap", "0"],
            2,
            "0 bootstrap resamples can't tell two systems apart",
        ),
        (
            ["--translations", "ref", "--ref", "ref", "--baseline", "short"],
            1,
            "short has 3 lines, the test set 10; expected a translation of each",
        ),
        (["--translations", "ref", "--ref", "ref", "--bootstrap", "3"], 2, "at least 40, or 0"),
    ],
)
def test_evaluate_says_what_is_wrong(
    files: dict[str, Path],
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    text: str,
) -> None:
    assert call("evaluate", *(files.get(argument, argument) for argument in arguments)) == code
    captured = capsys.readouterr()
    assert text in captured.err
    assert captured.out == ""


def test_tune_search_writes_what_is_best(
    random_checkpoint: Path,
    files: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "checkpoint"
    shutil.copytree(random_checkpoint, path)
    given = ["tune-search", "--checkpoint", path, "--src", files["src"], "--ref", files["ref"]]
    given += ["--length-penalty", "0.5", "--length-penalty", "3", "--beam-size", "2"]
    found = as_json(capsys, *given, "--write")
    tried = [(t["options"]["beam_size"], t["options"]["length_penalty"]) for t in found["trials"]]
    assert tried == [(2, 0.5), (2, 3.0), (4, 1.0)]
    best = found["best"]["options"]
    assert json.loads((path / "config.json").read_text())["training"]["search_defaults"] == {
        "beam_size": best["beam_size"], "length_penalty": best["length_penalty"],
    }  # fmt: skip
    assert call("evaluate", *given[1:7], "--bootstrap", "0") == 0
    used = f"beam {best['beam_size']}, length penalty {best['length_penalty']:g}"
    assert used in capsys.readouterr().out


def test_tune_search_a_bundle(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    given = ["tune-search", "--bundle", GOLDEN, "--precision", "fp32", "--tsv", files["tsv"]]
    assert call(*given, "--metric", "BLEU -lc", "--length-penalty", "1") == 0
    text = capsys.readouterr().out
    assert "BLEU -lc" in text
    assert "on 10 validation lines; nrefs:var|bs:1000" in text
    assert call("tune-search", "--bundle", GOLDEN) == 2
    assert "carries no validation lines; give some with --src" in capsys.readouterr().err
    assert call(*given, "--write") == 2
    assert "--write needs --checkpoint" in capsys.readouterr().err


def test_tune_search_warns_of_test_sets(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("tune-search", "--help") == 0
    assert "Never choose on a test set" in " ".join(capsys.readouterr().out.split())
