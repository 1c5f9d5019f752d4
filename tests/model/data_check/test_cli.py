from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.tiny_tokenizer import train_proto

from runtime.console import run

GOOD = [(f"the cat number {n} sat", f"die Katze Nummer {n} sitzt") for n in range(40)]


def call(*arguments: str | Path) -> int:
    command = ["check-data", *[str(a) for a in arguments]]
    return run("model.cli:cli", command, prog_name="python -m model")


@pytest.fixture
def files(tmp_path: Path) -> list[str | Path]:
    """A good training split of two files, with the size of a vocabulary that it gives."""
    for side, name in enumerate(("src", "tgt")):
        text = "".join(f"{pair[side]}\n" for pair in GOOD)
        (tmp_path / f"train.{name}").write_text(text, "utf-8")
    sides = ["--train-src", tmp_path / "train.src", "--train-tgt", tmp_path / "train.tgt"]
    return [*sides, "--vocab-size", "320"]


def test_a_good_corpus(files: list[str | Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*files, "--strict") == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("train: ")
    assert captured.out.endswith("nothing found\n")
    assert captured.err == ""


def test_errors_exit_with_1_after_the_report(
    files: list[str | Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (tmp_path / "train.tgt").open("ab") as file:
        file.write(b"stra\xdfe\n")
    assert call(*files) == 1
    captured = capsys.readouterr()
    assert "  error    line-count: " in captured.out
    assert "error: training would fail: line-count in train; the report says where" in captured.err


def test_warnings_exit_with_1_only_if_strict(
    files: list[str | Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "valid.tsv").write_text("the cat\t die Katze\n", "utf-8")
    files = [*files, "--valid-tsv", tmp_path / "valid.tsv"]
    assert call(*files) == 0
    assert call(*files, "--strict") == 1
    assert "error: there are warnings: spaces in valid" in capsys.readouterr().err
    assert call(*files, "--strict", "--fix", "--mend", "spaces", "--out", tmp_path / "out") == 0
    assert (tmp_path / "out" / "valid.tsv").read_text("utf-8") == "the cat\tdie Katze\n"


def test_json_is_one_document(
    files: list[str | Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert call(*files, "--json", "--fix", "--out", out) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["splits"]["train"]["usable"] == 40
    assert record["fixed"]["train"]["written"] == 40
    assert record == json.loads((out / "report.json").read_bytes())


def test_json_is_printed_where_nothing_can_be_fixed(
    files: list[str | Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.tgt").write_text("x\n", "utf-8")
    assert call(*files, "--json", "--fix", "--out", tmp_path / "out") == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["errors"] >= 1
    assert "can't be mended by dropping lines" in captured.err


def test_a_fixed_copy_is_what_is_judged(
    files: list[str | Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = (tmp_path / "train.src").read_bytes()
    (tmp_path / "train.src").write_bytes(content.replace(b"cat number 7", b"c\xe4t number 7"))
    assert call(*files) == 1
    assert call(*files, "--fix", "--out", tmp_path / "out") == 0
    assert "39 of 40 lines written" in capsys.readouterr().out


def test_checks_with_a_checkpoint(
    files: list[str | Path], random_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*files, "--checkpoint", random_checkpoint, "--max-target", "40", "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["tokenizer"] == f"the tokenizer of {random_checkpoint}"
    assert (record["max_source"], record["max_target"]) == (64, 40)
    assert record["splits"]["train"]["exact"]


def test_checks_with_a_tokenizer(
    files: list[str | Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "spm.model").write_bytes(train_proto())
    assert call(*files, "--tokenizer", tmp_path / "spm.model", "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["tokenizer"] == f"the tokenizer {tmp_path / 'spm.model'}"
    assert record["max_source"] == 256


def test_a_recipe_brings_files_and_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("train.en", "train.de", "val.en", "val.de", "test_2016_flickr.en"):
        side = 1 if name.endswith("de") else 0
        (tmp_path / name).write_text("".join(f"{pair[side]}\n" for pair in GOOD), "utf-8")
    flags = ["--recipe", "multi30k-en-de", "--data", tmp_path, "--json"]
    assert call(*flags) == 1
    assert "lacks test_2016_flickr.de" in capsys.readouterr().err
    (tmp_path / "own.tsv").write_text("the cat\tdie Katze\n", "utf-8")
    assert call(*flags, "--test-tsv", tmp_path / "own.tsv", "--vocab-size", "320") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["splits"]["train"]["files"] == [
        str(tmp_path / name) for name in ("train.en", "train.de")
    ]
    assert record["splits"]["test"]["files"] == [str(tmp_path / "own.tsv")]
    assert "320 pieces" in record["tokenizer"]
    assert call(*flags, "--test-tsv", tmp_path / "own.tsv") == 1
    assert "vocab_size 6000 is too large" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ([], 2, "no file is given; give --train-src and --train-tgt, or --train-tsv"),
        (["--valid-src", "a"], 2, "give either --valid-src and --valid-tgt, or --valid-tsv"),
        (["--test-tsv", "a", "--test-src", "b"], 2, "give either --test-src and --test-tgt, or"),
        (["--test-tsv", "a"], 1, "a cannot be read (No such file or directory)"),
        (["--data", "a"], 2, "--recipe and --data go together: give both, or neither"),
        (["--recipe", "no", "--data", "a"], 2, "there is no recipe 'no'"),
        (["--test-tsv", "a", "--fix"], 2, "--fix and --out go together"),
        (["--test-tsv", "a", "--out", "b"], 2, "--fix and --out go together"),
        (["--test-tsv", "a", "--drop", "copy"], 2, "--drop, --keep and --mend change what --fix"),
        (["--test-tsv", "a", "--drop", "line-count"], 2, "'line-count' is not one of"),
        (["--test-tsv", "a", "--checkpoint", "b"], 1, "there is no checkpoint at b"),
    ],
)
def test_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    arguments: list[str], code: int, text: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert call(*arguments) == code
    captured = capsys.readouterr()
    assert text in captured.err
    assert captured.out == ""


def test_two_tokenizers_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "spm.model").write_bytes(b"")
    both = ["--checkpoint", "b", "--tokenizer", tmp_path / "spm.model"]
    assert call("--test-tsv", "a", *both) == 2
    assert "give either --checkpoint or --tokenizer" in capsys.readouterr().err


def test_a_copy_over_the_input_is_refused_before_anything_is_read(
    files: list[str | Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*files, "--fix", "--out", tmp_path) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "a cleaned copy replaces its directory" in captured.err
