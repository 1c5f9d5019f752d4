from __future__ import annotations

import logging
from pathlib import Path

import pytest

from model.errors import DataError
from model.evaluation.sets import EvaluationFiles, EvaluationSet
from runtime.errors import OptionError

TSV = "Hi.\t嗨。\t1\nRun!\t你用跑的。\t2\nHi.\t你好。\t3\nHi.\t嗨。\t4\n"


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def tsv(tmp_path: Path) -> Path:
    path = tmp_path / "test.tsv"
    path.write_text(TSV, encoding="utf-8")
    return path


def test_equal_sources_of_a_tsv_are_one(tsv: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        found = EvaluationFiles(tsv=tsv).read()
    assert found.sources == ("Hi.", "Run!")
    assert found.references == (("嗨。", "你好。"), ("你用跑的。",))
    assert found.rows == (0, 1)
    assert found.num_rows == 4
    assert "4 lines hold 2 different sources: each is scored once" in caplog.text
    assert found.pick(["a", "b", "c", "d"], "x") == ["a", "b"]


def test_lines_of_a_tsv_as_they_stand(tsv: Path) -> None:
    found = EvaluationFiles(tsv=tsv, group=False).read()
    assert found.sources == ("Hi.", "Run!", "Hi.", "Hi.")
    assert found.references == (("嗨。",), ("你用跑的。",), ("你好。",), ("嗨。",))


def test_two_files_stand_as_they_are_unless_grouped(tmp_path: Path) -> None:
    src = write(tmp_path / "src", "b", "a", "b")
    ref = write(tmp_path / "ref", "B", "A", "C")
    families = write(tmp_path / "families", "x", "y", "z")
    found = EvaluationFiles(src=src, refs=(ref,)).read()
    assert (found.sources, found.references) == (("b", "a", "b"), (("B",), ("A",), ("C",)))
    assert found.families is None
    found = EvaluationFiles(src=src, refs=(ref,), families=families, group=True).read()
    assert (found.sources, found.references) == (("b", "a"), (("B", "C"), ("A",)))
    assert found.families == ("x", "y")


def test_several_files_of_references(tmp_path: Path) -> None:
    src = write(tmp_path / "src", "a", "b", "")
    refs = (write(tmp_path / "1", "A", "B", ""), write(tmp_path / "2", "AA", "", ""))
    found = EvaluationFiles(src=src, refs=refs).read()
    assert found.references == (("A", "AA"), ("B",), ("",))


def test_references_alone_do_for_lines_that_are_translated(tmp_path: Path) -> None:
    ref = write(tmp_path / "ref", "A", "B")
    found = EvaluationFiles(refs=(ref,)).read(need_sources=False)
    assert (found.sources, found.rows) == (None, (0, 1))
    with pytest.raises(OptionError, match="give --src and --ref, or --tsv"):
        EvaluationFiles(refs=(ref,), group=True).read(need_sources=False)
    with pytest.raises(OptionError, match="give --src and --ref, or --tsv"):
        EvaluationFiles(refs=(ref,)).read()


def test_files_that_do_not_go_together(tmp_path: Path, tsv: Path) -> None:
    src = write(tmp_path / "src", "a", "b")
    one = write(tmp_path / "one", "A")
    two = write(tmp_path / "two", "A", "B")
    with pytest.raises(OptionError, match="--tsv holds sources and references; leave out --src"):
        EvaluationFiles(src=src, tsv=tsv).read()
    with pytest.raises(OptionError, match="give --src and --ref, or --tsv"):
        EvaluationFiles(src=src).read()
    with pytest.raises(DataError, match="2 source lines but 1 references"):
        EvaluationFiles(src=src, refs=(two, one)).read()
    with pytest.raises(DataError, match="2 source lines but 1 families"):
        EvaluationFiles(src=src, refs=(two,), families=one).read()


def test_a_translation_of_each_line_is_expected(tsv: Path) -> None:
    found = EvaluationFiles(tsv=tsv).read()
    with pytest.raises(DataError, match="ours has 2 lines, the test set 4; expected a translation"):
        found.pick(["a", "b"], "ours")


def test_pairs_that_are_there_already() -> None:
    found = EvaluationSet.from_pairs([("a", "A"), ("a", "B")])
    assert found.sources == ("a", "a")
    assert found.references == (("A",), ("B",))
    with pytest.raises(DataError, match="there are no lines to evaluate"):
        EvaluationSet.from_pairs([])


def test_references_without_any_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "src").write_text("a\nb\n")
    (tmp_path / "ref").write_text("\n \n")
    files = EvaluationFiles(src=tmp_path / "src", refs=(tmp_path / "ref",) * 2)
    with pytest.raises(DataError, match="all 2 references are empty; expected translations"):
        files.read()
