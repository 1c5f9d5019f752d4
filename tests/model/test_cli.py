from __future__ import annotations

import dataclasses
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from model.checkpoint import load_checkpoint
from model.corpora import phrase_files
from model.training.cli import SETTINGS
from model.training.settings import TrainingSettings
from runtime.console import run

TRAIN = ["--vocab-size", "400", "--max-updates", "2", "--warmup", "1", "--batch-tokens", "64"]
TRAIN += ["--average", "1", "--valid-lines", "5"]


def call(*arguments: str | Path) -> int:
    return run("model.cli:cli", [str(a) for a in arguments], prog_name="python -m model")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("cli") / "corpus"
    assert call("corpus", "--target", "de", "--pairs", "1500", "--out", path) == 0
    return path


def test_corpus_is_written(corpus: Path) -> None:
    assert phrase_files.load(corpus).parameters.pairs == 1500


def test_train_on_gzip_and_resume(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for side in ("src", "tgt"):
        content = (corpus / f"train.{side}").read_bytes()
        (tmp_path / f"train.{side}.gz").write_bytes(gzip.compress(content))
    files = ["--train-src", tmp_path / "train.src.gz", "--train-tgt", tmp_path / "train.tgt.gz"]
    files += ["--valid-src", corpus / "valid.src", "--valid-tgt", corpus / "valid.tgt"]
    out = ["--out", tmp_path / "out"]
    assert call("train", *files, *out, *TRAIN) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["updates"], result["path"]) == (2, str(tmp_path / "out"))
    assert call("train", *files, *out, *TRAIN) == 2
    assert "error: " in (error := capsys.readouterr().err)
    assert "go on with --resume" in error
    assert call("train", *files, *out, *TRAIN, "--resume", "--max-updates", "3") == 0
    assert json.loads(capsys.readouterr().out)["updates"] == 3


def test_train_on_tsv(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for split in ("train", "valid"):
        sides = [
            (corpus / f"{split}.{s}").read_text("utf-8").split("\n")[:-1] for s in ("src", "tgt")
        ]
        lines = [f"{s}\t{t}\tmore" for s, t in zip(*sides, strict=True)]
        (tmp_path / f"{split}.tsv").write_text("\n".join(lines) + "\n", "utf-8")
    files = ["--train-tsv", tmp_path / "train.tsv", "--valid-tsv", tmp_path / "valid.tsv"]
    assert call("train", *files, "--out", tmp_path / "out", *TRAIN, "-q") == 0
    assert capsys.readouterr().err == ""


RECIPE = """
title = "Phrases"
[data]
train = ["train.src", "train.tgt"]
valid = ["valid.src", "valid.tgt"]
test = ["test.src", "test.tgt"]
where = "python -m model corpus"
licence = "Unicode"
[search]
beam_size = 2
[settings]
vocab_size = 400
warmup = 1
max_updates = 500
batch_tokens = 64
valid_lines = 5
"""


def test_train_by_recipe(corpus: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "phrases.toml").write_text(RECIPE)
    arguments = ["train", "--recipe", tmp_path / "phrases.toml", "--out", tmp_path / "out"]
    flags = ["--max-updates", "2", "--no-tensorboard"]
    assert call(*arguments, "--data", corpus, *flags) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["updates"] == 2
    assert f"to score it: python -m model evaluate --checkpoint {tmp_path / 'out'}" in captured.err
    assert captured.err.rstrip().endswith(f"--src {corpus}/test.src --ref {corpus}/test.tgt")
    assert not (tmp_path / "out" / "tensorboard").exists()
    metadata = load_checkpoint(tmp_path / "out").metadata
    assert metadata["recipe"] == "phrases"
    assert metadata["search_defaults"] == {"beam_size": 2, "length_penalty": 1.0}
    settings = TrainingSettings(
        vocab_size=400, warmup=1, max_updates=2, batch_tokens=64, valid_lines=5
    )
    assert metadata["settings"] == settings.to_json()
    assert call(*arguments, "--force") == 2
    assert "or --train-tsv, or --recipe and --data" in capsys.readouterr().err
    assert call(*arguments, "--force", "--data", tmp_path) == 1
    assert "lacks train.src (or train.src.gz) and train.tgt" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "updates", "text"),
    [
        ([], 2, "stage 2 of 2"),
        (["--max-updates", "3"], 3, "one stage instead of the recipe's 2, since --max-updates"),
        (["--patience", "9"], 1, "one stage instead of the recipe's 2, since --patience says"),
    ],
)
def test_a_recipe_of_two_stages(
    corpus: Path, tmp_path: Path, capsys, flags: list[str], updates: int, text: str
) -> None:
    path = tmp_path / "two.toml"
    stages = RECIPE.replace("max_updates = 500", "max_updates = 1")
    path.write_text(f"{stages}[[then]]\nmax_updates = 2\ncooldown = 0.5\n")
    arguments = ["--recipe", path, "--data", corpus, "--out", tmp_path / "out", "--no-tensorboard"]
    assert call("train", *arguments, "--seed", "5", *flags) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["updates"] == updates
    assert text in captured.err
    settings = load_checkpoint(tmp_path / "out").metadata["settings"]
    assert settings["seed"] == 5
    assert settings["cooldown"] == (0.33 if flags else 0.5)


def test_recipes_are_listed(capsys) -> None:
    assert call("recipes") == 0
    listed = capsys.readouterr().out
    for name in ("multi30k-en-de", "multi30k-en-fr", "tatoeba-en-zh"):
        assert f"{name}: " in listed


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--train-src", "a"], 2, "give either --train-src and --train-tgt, or --train-tsv"),
        (["--train-tsv", "no.tsv"], 1, "no.tsv does not exist"),
        (["--data", "."], 2, "--data holds the files of a --recipe; give one, or leave out --data"),
        (["--preset", "huge"], 2, "'huge' is not one of"),
        (["--dropout", "1.5"], 2, "dropout is 1.5; expected a number from 0 to below 1"),
        (["--max-minutes", "-1"], 2, "max_minutes is -1.0; expected a number above 0"),
        (["--vocab-size", "99999"], 1, "is too large for this text"),
        (["--vocab-size", "20"], 1, "is too small"),
    ],
)
def test_train_says_what_is_wrong(
    corpus: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments,
    code: int,
    text: str,
) -> None:
    files: list[str | Path] = []
    if not any(a.startswith("--train") for a in arguments):
        files = ["--train-src", corpus / "train.src", "--train-tgt", corpus / "train.tgt"]
    files += ["--valid-src", corpus / "valid.src", "--valid-tgt", corpus / "valid.tgt"]
    assert call("train", *files, "--out", tmp_path / "out", *arguments) == code
    captured = capsys.readouterr()
    assert text in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""
    assert not (tmp_path / "out" / "config.json").exists()


def test_every_setting_has_a_flag() -> None:
    assert list(SETTINGS) == [field.name for field in dataclasses.fields(TrainingSettings)]


def test_translate_one_line_in_one_line_out(random_checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("in 3 days\n\n   \nthe cat", "utf-8")
    arguments = ["--checkpoint", random_checkpoint, "--input", tmp_path / "in"]
    arguments += ["--output", tmp_path / "out", "--beam-size", "2", "--max-length", "5"]
    assert call("translate", *arguments) == 0
    lines = (tmp_path / "out").read_text("utf-8").split("\n")
    assert lines[1:3] == ["", ""]
    assert len(lines) == 5
    assert call("translate", *arguments, "--num-hypotheses", "2", "--json") == 0
    records = [json.loads(line) for line in (tmp_path / "out").read_text("utf-8").splitlines()]
    assert [len(record["hypotheses"]) for record in records] == [2, 1, 1, 2]


def test_translate_reads_stdin_and_writes_stdout(random_checkpoint: Path) -> None:
    command = [sys.executable, "-m", "model", "translate", "--checkpoint", str(random_checkpoint)]
    command += ["--max-length", "4", "--threads", "1"]
    done = subprocess.run(
        command, input="größe\n\n".encode(), capture_output=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.count(b"\n") == 2
    assert done.stdout.endswith(b"\n\n")


@pytest.mark.parametrize(
    ("flags", "code", "text"),
    [
        (["--beam-size", "0"], 2, "beam_size is 0"),
        (["--max-length", "9999"], 2, "max_length"),
        (["--threads", "0"], 2, "threads is 0; expected a whole number of at least 1"),
        (["--checkpoint", "nowhere"], 1, "there is no checkpoint at nowhere"),
        (["--input", "nowhere"], 2, "nowhere"),
    ],
)
def test_translate_says_what_is_wrong(
    random_checkpoint: Path, tmp_path: Path, capsys, flags: list[str], code: int, text: str
) -> None:
    (tmp_path / "in").write_text("a\n")
    given = ["--checkpoint", random_checkpoint, "--input", tmp_path / "in"]
    assert call("translate", *given, *flags) == code
    captured = capsys.readouterr()
    assert text in captured.err
    assert captured.out == ""


def test_help_is_there_for_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("train", "recipes", "translate", "evaluate", "tune-search", "corpus"):
        assert call(command, "--help") == 0
        assert "Usage: python -m model " + command in capsys.readouterr().out
