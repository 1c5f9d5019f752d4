from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.cli import cli
from benchmarks.compare import Comparison, compare
from model.errors import DataError
from runtime.console import run
from runtime.errors import OptionError
from runtime.registry import BACKENDS

GOLDEN = Path(__file__).parents[1] / "golden" / "bundle-schema-1"
LINES = [f"in {number} days" for number in range(2, 12)]
REFERENCES = [f"in {number} Tagen" for number in range(2, 12)]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    paths = {
        "src": tmp_path / "test.en.gz",
        "ref": tmp_path / "test.de",
        "families": tmp_path / "families",
    }
    paths["src"].write_bytes(gzip.compress(("\n".join(LINES) + "\n").encode()))
    paths["ref"].write_text("\n".join(REFERENCES) + "\n", encoding="utf-8")
    paths["families"].write_text("one digit\n" * 8 + "two digits\n" * 2, encoding="utf-8")
    return paths


def test_both_precisions_of_a_bundle_are_measured(files: dict[str, Path]) -> None:
    record = compare(Comparison(bundle=GOLDEN, **files, beam_size=2, rounds=1))
    assert [subject["name"] for subject in record["subjects"]] == [
        "ONNX Runtime FP32", "ONNX Runtime INT8",
    ]  # fmt: skip
    for subject in record["subjects"]:
        assert subject["quality"]["exact_match"] == 1.0
        assert subject["quality"]["exact_match_by_family"] == {"one digit": 1.0, "two digits": 1.0}
        assert subject["threads"] == 1
        assert subject["beam_size"] == 2
        assert subject["source"].startswith("bundle ")
        assert 50_000 < subject["size_bytes"] < 150_000
    assert record["test_set"] == {"name": "test.en.gz", "lines": 10}


def test_limit_takes_the_first_lines(files: dict[str, Path]) -> None:
    record = compare(Comparison(bundle=GOLDEN, **files, limit=3, rounds=1))
    assert record["test_set"]["lines"] == 3
    assert set(record["subjects"][0]["quality"]["exact_match_by_family"]) == {"one digit"}


def test_eager_model_comes_first(files: dict[str, Path], random_checkpoint: Path) -> None:
    record = compare(
        Comparison(bundle=GOLDEN, checkpoint=random_checkpoint, **files, limit=2, rounds=1)
    )
    assert [subject["backend"] for subject in record["subjects"]] == [
        "eager", "onnxruntime", "onnxruntime",
    ]  # fmt: skip
    assert record["subjects"][1]["same_as_first"] == 0
    assert record["subjects"][0]["threads"] == 1


def arguments(files: dict[str, Path]) -> list[str]:
    return [
        "compare",
        "--bundle",
        str(GOLDEN),
        "--src",
        str(files["src"]),
        "--ref",
        str(files["ref"]),
    ]


def test_command_prints_a_table(files: dict[str, Path]) -> None:
    command = [*arguments(files), "--families", str(files["families"])]
    result = CliRunner().invoke(cli, command, catch_exceptions=False)
    assert result.exit_code == 0
    assert "ONNX Runtime INT8" in result.stdout
    assert "two digits" in result.stdout


def test_last_line_of_json_is_json(files: dict[str, Path]) -> None:
    result = CliRunner().invoke(cli, [*arguments(files), "--json"], catch_exceptions=False)
    assert json.loads(result.stdout.splitlines()[-1])["subjects"][0]["precision"] == "fp32"


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (["compare"], "--bundle, --src, --ref not given; compare needs"),
        (["compare", "--random", "--src", "x"], "--src can't be used with --random; leave it out"),
        (["compare", "--preset", "base"], "--preset can't be used with files; add --random"),
        (["compare", "--random", "--preset", "huge"], "unknown preset 'huge'"),
        (["compare", "--threads", "0"], "0 is not in the range"),
    ],
)
def test_wrong_options_exit_with_2(
    command: list[str], text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(cli, command, prog_name="python -m benchmarks") == 2
    assert text in capfd.readouterr().err


def test_missing_files_exit_with_1(
    files: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    files["ref"].unlink()
    assert run(cli, arguments(files)) == 1
    assert "test.de" in capfd.readouterr().err
    assert run(cli, ["compare", "--bundle", str(tmp_path / "no"), "--src", "x", "--ref", "y"]) == 1
    assert "no does not exist; expected a bundle" in capfd.readouterr().err


def test_files_that_are_not_aligned_are_an_error(files: dict[str, Path]) -> None:
    files["ref"].write_text("in 2 Tagen\n", encoding="utf-8")
    with pytest.raises(DataError, match="10 source lines but 1 references"):
        compare(Comparison(bundle=GOLDEN, **files))


def test_backends_are_measured_in_all_their_precisions(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the CUDA backend is the CPU's, by another name: fp16 is not in the golden bundle."""
    cpu = BACKENDS["onnxruntime"]
    monkeypatch.setitem(BACKENDS, "onnxruntime-cuda", replace(cpu, precisions=("fp32", "fp16")))
    backends = ("onnxruntime-cuda", "onnxruntime", "onnxruntime-cuda")
    record = compare(Comparison(bundle=GOLDEN, **files, limit=2, rounds=1, backends=backends))
    assert [subject["name"] for subject in record["subjects"]] == [
        "ONNX Runtime CUDA FP32", "ONNX Runtime FP32", "ONNX Runtime INT8",
    ]  # fmt: skip
    assert record["int8_speedup"]["fp32"] == "ONNX Runtime FP32"


def test_backends_that_cannot_be_measured(files: dict[str, Path]) -> None:
    rest = {"bundle": GOLDEN, **files}
    with pytest.raises(OptionError, match="backend is 'tpu'; expected one of tensorrt, onnx"):
        compare(Comparison(**rest, backends=("tpu",)))
    with pytest.raises(
        OptionError, match=r"holds no graphs for tensorrt; it has: fp32, int8\. Leave that backend"
    ):
        compare(Comparison(**rest, backends=("tensorrt",)))


def test_backend_option(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    given = ["compare", "--backend", "onnxruntime", "--limit", "1", "--rounds", "1", "--json"]
    for name, path in {"bundle": GOLDEN, "src": files["src"], "ref": files["ref"]}.items():
        given += [f"--{name}", str(path)]
    assert run(cli, given) == 0
    assert len(json.loads(capsys.readouterr().out)["subjects"]) == 2
    assert run(cli, ["compare", "--random", "--backend", "tensorrt"]) == 2
    assert "--backend can't be used with --random" in capsys.readouterr().err
