"""Writing a corpus and reading it again: the same bytes, all or nothing, checked."""

from __future__ import annotations

import hashlib
import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model.corpora import phrase_files, phrases
from model.corpora.files import read_parallel
from model.corpora.phrases import SPLITS, PhraseCorpus
from model.errors import DataError
from runtime.directory import DirectoryTargetError

SIZES: dict[str, Any] = {"pairs": 1500, "valid": 50, "calibration": 60, "test": 70}


@pytest.fixture(scope="module")
def corpus() -> PhraseCorpus:
    return phrases.make("fr", seed=3, **SIZES)


@pytest.fixture
def written(corpus: PhraseCorpus, tmp_path: Path) -> Path:
    return phrase_files.write(corpus, tmp_path / "corpus")


def _edit_record(folder: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "corpus.json"
    record = json.loads(path.read_bytes())
    edit(record)
    path.write_text(json.dumps(record), encoding="utf-8")


def test_a_corpus_is_read_as_it_was_written(corpus: PhraseCorpus, written: Path) -> None:
    assert phrase_files.load(written) == corpus
    assert sorted(path.name for path in written.iterdir()) == sorted(
        ["corpus.json"]
        + [f"{split}.{end}" for split in SPLITS for end in ("src", "tgt", "families")]
    )


def test_the_files_are_plain_aligned_text(corpus: PhraseCorpus, written: Path) -> None:
    for split in SPLITS:
        pairs = read_parallel(written / f"{split}.src", written / f"{split}.tgt")
        assert pairs == corpus.pairs(split)


def test_the_record_says_what_is_there(corpus: PhraseCorpus, written: Path) -> None:
    record = json.loads((written / "corpus.json").read_bytes())
    assert record["parameters"] == {"target": "fr", "seed": 3, **SIZES}
    assert record["versions"] == corpus.versions
    assert record["families"]["test"] == corpus.family_counts("test")
    assert sum(record["families"]["train"].values()) == 1500
    for name, digest in record["sha256"].items():
        assert hashlib.sha256((written / name).read_bytes()).hexdigest() == digest
    assert len(record["sha256"]) == 12


def test_the_same_corpus_gives_the_same_bytes(written: Path, tmp_path: Path) -> None:
    again = phrase_files.write(phrases.make("fr", seed=3, **SIZES), tmp_path / "deep" / "again")
    for path in written.iterdir():
        assert (again / path.name).read_bytes() == path.read_bytes()


def test_an_older_corpus_is_replaced_whole(written: Path) -> None:
    other = phrases.make("fr", seed=4, **SIZES)
    (written / "stray").touch()
    with pytest.raises(DataError, match="holds stray beside a corpus, and would be replaced"):
        phrase_files.write(other, written)
    (written / "stray").unlink()
    phrase_files.write(other, written)
    assert phrase_files.load(written) == other


def test_an_empty_directory_is_filled(corpus: PhraseCorpus, tmp_path: Path) -> None:
    phrase_files.write(corpus, tmp_path)
    assert phrase_files.load(tmp_path) == corpus


def test_is_current_compares_all_that_decides_a_corpus(corpus: PhraseCorpus, written: Path) -> None:
    assert phrase_files.is_current(written, corpus.parameters)
    other = phrases.make("fr", seed=4, **SIZES)
    assert not phrase_files.is_current(written, other.parameters)
    assert not phrase_files.is_current(written / "elsewhere", corpus.parameters)
    _edit_record(written, lambda record: record["versions"].update(cldr="1"))
    assert not phrase_files.is_current(written, corpus.parameters)


def test_a_kill_between_the_renames_is_mended(corpus: PhraseCorpus, written: Path) -> None:
    written.rename(written.with_name(".corpus.old"))
    assert phrase_files.is_current(written, corpus.parameters)
    assert phrase_files.load(written) == corpus


@pytest.mark.parametrize("name", ["file", "folder"])
def test_what_is_no_corpus_is_not_replaced(corpus: PhraseCorpus, tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.txt").write_text("mine")
    expected = rf"{name} exists and is no phrase corpus; expected a new or empty directory"
    with pytest.raises(DataError, match=expected):
        phrase_files.write(corpus, tmp_path / name)
    assert (tmp_path / "file").read_text() == "mine"
    assert (tmp_path / "folder" / "thesis.txt").read_text() == "mine"


def test_a_place_that_cannot_be_made_is_told(corpus: PhraseCorpus, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DirectoryTargetError, match=r"can't be written"):
        phrase_files.write(corpus, tmp_path / "file" / "corpus")


def test_a_write_that_fails_leaves_the_older_corpus(corpus: PhraseCorpus, written: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))  # as a full disk would fail
    try:
        with pytest.raises(DataError, match=r"cannot be written to .*corpus \(File too large\)"):
            phrase_files.write(phrases.make("fr", seed=4, **SIZES), written)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert phrase_files.load(written) == corpus
    assert not list(written.parent.glob(".corpus.tmp-*"))


def test_a_missing_corpus_is_told(tmp_path: Path) -> None:
    expected = r"none holds no phrase corpus: corpus.json cannot be read \(No such file"
    with pytest.raises(DataError, match=expected):
        phrase_files.load(tmp_path / "none")


def test_a_missing_file_is_told(written: Path) -> None:
    (written / "valid.tgt").unlink()
    expected = r"valid.tgt cannot be read \(No such file or directory\); make the corpus again"
    with pytest.raises(DataError, match=expected):
        phrase_files.load(written)


def test_an_altered_file_is_told(written: Path) -> None:
    path = written / "test.tgt"
    path.write_bytes(path.read_bytes().replace(b"a", b"e", 1))
    with pytest.raises(DataError, match=r"test.tgt was altered: its SHA-256 is [0-9a-f]{12}, exp"):
        phrase_files.load(written)


def test_a_record_that_is_not_json_is_told(written: Path) -> None:
    (written / "corpus.json").write_text('{"format": ')
    with pytest.raises(DataError, match=r"corpus.json is not JSON \(.+\); make the corpus again"):
        phrase_files.load(written)


@pytest.mark.parametrize("text", ['{"format": "leanseq-phrases-9"}', "[]", "{}"])
def test_another_format_is_refused(written: Path, text: str) -> None:
    (written / "corpus.json").write_text(text)
    with pytest.raises(DataError, match=r"has format .+; expected 'leanseq-phrases-1'"):
        phrase_files.load(written)


@pytest.mark.parametrize(
    "edit",
    [
        lambda record: record.pop("parameters"),
        lambda record: record["parameters"].update(colour="red"),
        lambda record: record["parameters"].update(pairs="many"),
        lambda record: record.update(versions=[]),
        lambda record: record.update(sha256="x"),
    ],
)
def test_an_incomplete_record_is_told(written: Path, edit: Callable[[Any], None]) -> None:
    _edit_record(written, edit)
    with pytest.raises(DataError, match=r"corpus.json is not a whole record of a corpus \(.+\)"):
        phrase_files.load(written)


def test_sides_that_do_not_match_are_told(written: Path) -> None:
    data = b"Paris\n"
    (written / "valid.tgt").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    _edit_record(written, lambda record: record["sha256"].update({"valid.tgt": digest}))
    expected = r"the valid split has 50/1/50 lines; expected 50: make it again"
    with pytest.raises(DataError, match=expected):
        phrase_files.load(written)
