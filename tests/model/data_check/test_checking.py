"""What the check says of a corpus is what training does with it."""

from __future__ import annotations

import gzip
import logging
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.nasty_lines import NASTY_LINES
from support.tiny_model import tiny_config
from support.tiny_tokenizer import tiny_tokenizer

from model.corpora.files import read_parallel, read_tsv
from model.data_check import checking
from model.data_check.checking import CheckOptions, check
from model.data_check.kinds import KINDS, Side
from model.data_check.reading import SplitFiles
from model.data_check.report import Finding, Report
from model.errors import DataError
from model.tokenizer_training import train_tokenizer
from model.training.batching import encode_corpus
from model.training.recipe import Split

CONFIG = tiny_config()
OPTIONS = CheckOptions(
    tokenizer=tiny_tokenizer(), max_source=CONFIG.max_source, max_target=CONFIG.max_target
)
GOOD = [(f"the cat number {n} sat", f"die Katze Nummer {n} sa\u00df") for n in range(30)]


def write(folder: Path, name: str, pairs: Sequence[tuple[str, str]]) -> SplitFiles:
    split: Split = "valid" if name == "valid" else "test" if name == "test" else "train"
    paths = folder / f"{name}.src", folder / f"{name}.tgt"
    for path, lines in zip(paths, zip(*pairs, strict=True), strict=True):
        path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return SplitFiles(split=split, source=paths[0], target=paths[1])


def find(report: Report, kind: str, side: Side | None = None, split: int = 0) -> Finding:
    (found,) = [f for f in report.splits[split].of_kind(kind) if f.side == side]
    return found


def test_a_good_corpus_has_nothing_to_tell(tmp_path: Path) -> None:
    report = check([write(tmp_path, "train", GOOD)], OPTIONS)
    assert [f.kind for f in report.splits[0].findings] == ["missing-characters"]  # the sharp s
    assert (report.splits[0].pairs, report.splits[0].usable) == (30, 30)
    assert report.splits[0].scripts == {"source": "LATIN", "target": "LATIN"}


def nasty_pairs() -> list[tuple[str, str]]:
    lines = [line.replace("\n", " ") for line in NASTY_LINES if "\ud800" not in line]
    lines = [line for line in lines if not any("\ud800" <= char <= "\udfff" for char in line)]
    return [(line, "die Katze") for line in lines] + [("the cat", line) for line in lines]


@pytest.mark.parametrize("separator", ["tsv", "two files"])
def test_usable_is_what_training_keeps(
    tmp_path: Path, separator: str, caplog: pytest.LogCaptureFixture
) -> None:
    files = write(tmp_path, "train", nasty_pairs())
    pairs = read_parallel(files.source, tmp_path / "train.tgt")
    if separator == "tsv":
        tsv = tmp_path / "train.tsv"
        tsv.write_bytes("".join(f"{s}\t{t}\n" for s, t in nasty_pairs()).encode())
        files, pairs = SplitFiles(split="train", source=tsv), read_tsv(tsv)
    with caplog.at_level(logging.ERROR):
        kept = len(encode_corpus(pairs, tiny_tokenizer(), CONFIG, "training"))
    report = check([files], OPTIONS)
    assert 40 < kept < len(nasty_pairs())
    assert (report.splits[0].usable, report.splits[0].exact) == (kept, True)
    assert report.count("error") == 0


LATIN1 = "stra\u00dfe\n".encode("latin-1")


@pytest.mark.parametrize(
    ("source", "target", "kinds"),
    [
        (b"a b\nc d\n", b"x\ny\n", []),
        (b"a b\nc d\n", b"x\n", ["line-count"]),
        (b"a b\n", b"x\n\n", ["line-count"]),
        (b"", b"x\n", ["empty-file", "line-count"]),
        (b"\xef\xbb\xbf", b"", ["empty-file"]),
        (b"a\n" + LATIN1, b"x\ny\n", ["not-utf8"]),
        (b"a\nb\n", b"x\n" + LATIN1, ["not-utf8"]),
        (b"a\n\xed\xa0\x80\n", b"x\ny\n", ["not-utf8"]),
        (b"\n \n", b"x\ny\n", ["no-pairs"]),
        (gzip.compress(b"a b\n" * 900)[:-9], b"x\n" * 900, ["unreadable"]),
        (b"a\tb\nc d\n\n", None, ["no-tab"]),
        (b"a\t\n\tb\n", None, ["no-pairs"]),
        (b"a\tb\n \nc\td\te\n", None, []),
        (b"\xff\xfea\x00", None, ["not-utf8", "no-tab"]),
    ],
)
def test_errors_are_found_where_training_has_them(
    tmp_path: Path, source: bytes, target: bytes | None, kinds: list[str]
) -> None:
    (tmp_path / "src").write_bytes(source)
    if target is not None:
        (tmp_path / "tgt").write_bytes(target)
    files = SplitFiles(
        split="train",
        source=tmp_path / "src",
        target=None if target is None else tmp_path / "tgt",
    )
    report = check([files], OPTIONS).splits[0]
    found = {finding.kind for finding in report.findings if finding.severity == "error"}
    assert found - {"no-pairs"} == set(kinds) - {"no-pairs"}
    assert found >= set(kinds)
    reads = True
    try:
        if files.target is None:
            read_tsv(files.source)
        else:
            read_parallel(files.source, files.target)
    except DataError:
        reads = False
    assert reads == (not found)


def test_not_utf8_names_file_line_and_byte(tmp_path: Path) -> None:
    files = write(tmp_path, "train", GOOD)
    assert files.target is not None
    files.target.write_bytes(files.target.read_bytes().replace(b"\xc3\x9f", b"\xdf", 1))
    finding = find(check([files], OPTIONS), "not-utf8", "target")
    assert list(finding.lines) == [1]
    (example,) = finding.examples
    assert example.file == str(files.target)
    assert example.detail == "byte 0xdf at byte 22: unexpected end of data"
    assert example.target.endswith("sa\\xdf")


@pytest.mark.parametrize(
    ("pair", "kind", "side", "detail"),
    [
        (("", "x"), "empty", None, "the source is empty"),
        (("x", " \u3000"), "empty", None, "the target is empty"),
        (("\u200b", "x"), "empty", None, "the source holds invisible characters only"),
        (("x", "\u200b"), "empty", None, "the target holds invisible characters only, which"),
        (("the cat " * 40, "x"), "overlong", None, "and"),
        (("the cat sat", "the  cat sat"), "copy", None, ""),
        (("the cat", "die Katze " * 6), "length-ratio", None, "the target is"),
        (("\u043a\u043e\u0442", "Katze"), "wrong-script", "source", "CYRILLIC, the others LATIN"),
        (("cat", "K\ufffdtze"), "replacement", "target", "at character 2"),
        (("F\u00c3\u00bcr", "f\u00fcr"), "mojibake", "source", "\u00c3\u00bc for \u00fc"),
        (("a\rb", "a\x85c"), "line-breaks", "target", "U+0085"),
        (("cat &amp; dog", "Katze"), "markup", "source", "&amp;"),
        (("cat", " Katze"), "spaces", "target", "space at character 1"),
        (("cat", "Ka\u00adtze"), "control", "target", "U+00AD"),
        (("cat", "Ka\u00a0tze"), "unusual-spaces", "target", "U+00A0"),
    ],
)
def test_each_kind_of_line_is_found(
    tmp_path: Path, pair: tuple[str, str], kind: str, side: Side | None, detail: str
) -> None:
    report = check([write(tmp_path, "train", [*GOOD, pair])], OPTIONS)
    finding = find(report, kind, side)
    assert list(finding.lines) == [31]
    assert finding.examples[0].detail.startswith(detail) or detail == "and"
    shown = (finding.examples[0].source, finding.examples[0].target)
    assert shown == (
        pair[0] if side != "target" else "",
        pair[1] if side != "source" else "",
    )


def test_numbers_alone_are_no_copies(tmp_path: Path) -> None:
    report = check([write(tmp_path, "train", [*GOOD, ("2016", "2016")])], OPTIONS)
    assert not report.splits[0].of_kind("copy")


def test_what_sources_are_mended_of_is_a_note_there(tmp_path: Path) -> None:
    report = check([write(tmp_path, "train", [*GOOD, ("a  b", "x  y")])], OPTIONS)
    assert find(report, "spaces", "source").severity == "note"
    assert find(report, "spaces", "target").severity == "warning"


def test_files_tell_of_marks_and_line_ends(tmp_path: Path) -> None:
    files = write(tmp_path, "train", GOOD)
    files.source.write_bytes(b"\xef\xbb\xbf" + files.source.read_bytes().replace(b"\n", b"\r\n", 5))
    report = check([files], OPTIONS)
    assert "train.src starts with one" in find(report, "byte-order-mark").details[0]
    assert "5 of 30 lines" in find(report, "line-ends").details[0]
    assert files.target is not None
    files.target.write_bytes(b"\xef\xbb\xbf" + files.target.read_bytes())
    both = find(check([files], OPTIONS), "byte-order-mark").details[0]
    assert re.search(r"train\.src starts with one; it is skipped; .*train\.tgt starts", both)


def test_repeats_and_leaks(tmp_path: Path) -> None:
    splits = [
        write(tmp_path, "train", [*GOOD, *zip("abcaa", "xyzxw", strict=True)]),
        write(tmp_path, "valid", [("q", "x"), ("b ", " y"), ("n", "m")]),
        write(tmp_path, "test", [("c", "other"), ("n", "m")]),
    ]
    report = check(splits, OPTIONS)
    assert list(find(report, "duplicate").lines) == [34]
    assert find(report, "duplicate").examples[0].detail == "as in line 31"
    assert list(find(report, "several-targets").lines) == [35]
    leaks = [(f.kind, f.other, list(f.lines)) for f in report.splits[0].findings if f.other]
    assert leaks == [("leak", "valid", [32]), ("leak-source", "test", [33])]
    assert find(report, "leak").examples[0].detail == "line 2 of valid"
    assert [(f.other, list(f.lines)) for f in report.splits[1].of_kind("leak")] == [("test", [3])]


def test_a_slip_is_told_with_the_line(tmp_path: Path) -> None:
    pairs = [(f"item {n * 7 % 100} costs {n}", f"Ware {n * 7 % 100}: {n}") for n in range(400)]
    shifted = [(s, t) for (s, _), (_, t) in zip(pairs, pairs[:200] + pairs[201:], strict=False)]
    finding = find(check([write(tmp_path, "train", shifted)], OPTIONS), "misaligned")
    assert finding.lines[0] == pytest.approx(201, abs=2)
    assert finding.examples[0].detail.startswith("from line 20")
    assert "N-1 of the target" in finding.examples[0].detail


def test_different_numbers_of_lines_are_searched_for_the_slip_too(tmp_path: Path) -> None:
    pairs = [(f"item {n * 7 % 100} costs {n}", f"Ware {n * 7 % 100}: {n}") for n in range(400)]
    files = write(tmp_path, "train", pairs)
    assert files.target is not None
    lines = files.target.read_text("utf-8").split("\n")
    files.target.write_text("\n".join(lines[:100] + lines[101:]), "utf-8")
    report = check([files], OPTIONS)
    assert "has 400 lines but" in find(report, "line-count").details[0]
    assert find(report, "misaligned").lines[0] == pytest.approx(101, abs=2)


def test_without_a_tokenizer_the_one_of_training_is_made(tmp_path: Path) -> None:
    pairs = [*GOOD, ("cat " * 300, "Katze"), ("cat", "\u732b")]
    files = [write(tmp_path, "train", pairs), write(tmp_path, "valid", [("cat", "\u72ac")])]
    report = check(files, CheckOptions(pieces=330))
    assert report.tokenizer == "the vocabulary of 330 pieces that training would make"
    assert list(find(report, "overlong").lines) == [31]
    assert (report.splits[0].usable, report.splits[0].exact) == (31, True)
    assert [each.char for each in report.splits[1].missing_characters] == ["\u72ac"]
    assert report.splits[1].missing_characters[0].in_train == 0


@pytest.mark.parametrize("pieces", [20, 9000])
def test_a_vocabulary_that_cannot_be_trained_is_an_error(tmp_path: Path, pieces: int) -> None:
    report = check([write(tmp_path, "train", GOOD)], CheckOptions(pieces=pieces))
    with pytest.raises(DataError) as error:
        train_tokenizer(GOOD, pieces)
    assert find(report, "vocabulary").details[0] == str(error.value)
    assert find(report, "vocabulary").severity == "error"


def test_of_many_pairs_words_and_characters_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "MOST_TO_TRAIN_ON", 10)
    pairs = [*GOOD, ("cat " * 300, "x"), ("x", "\u732b" * 700), ("cat", "caterpillar" * 150)]
    report = check([write(tmp_path, "train", pairs)], CheckOptions(pieces=400))
    assert report.tokenizer.startswith("counts of words and characters")
    assert list(find(report, "overlong").lines) == [31]
    assert find(report, "overlong").examples[0].detail == "at least 301 tokens"
    assert list(find(report, "maybe-overlong").lines) == [32, 33]
    assert (report.splits[0].usable, report.splits[0].exact) == (32, False)
    few = check([write(tmp_path, "train", pairs)], CheckOptions(pieces=261))
    assert "is too small" in find(few, "vocabulary").details[0]


def test_valid_alone_can_be_checked(tmp_path: Path) -> None:
    report = check([write(tmp_path, "valid", GOOD)], CheckOptions())
    assert report.tokenizer == "none: give the training split or a tokenizer"
    assert not report.splits[0].findings


def test_examples_are_as_many_as_asked_for(tmp_path: Path) -> None:
    pairs = [*GOOD, *[("cat &amp; dog", f"Katze {n}") for n in range(9)]]
    options = CheckOptions(tokenizer=tiny_tokenizer(), examples=2)
    finding = find(check([write(tmp_path, "train", pairs)], options), "markup", "source")
    assert (len(finding.lines), len(finding.examples)) == (9, 2)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        check([SplitFiles(split="train", source=tmp_path / "nowhere")], OPTIONS)


def test_report_reads_well(tmp_path: Path) -> None:
    pairs = [*GOOD, ("cat &amp; dog", "Katze\u200b"), ("", "x"), ("c\u732b", "d")]
    report = check([write(tmp_path, "train", pairs)], OPTIONS)
    lines = report.render().split("\n")
    assert lines[1] == "  33 pairs, of which training can use 32; source Latin, target Latin"
    assert "  warning  empty: 1 line: no visible text on one side; 32" in lines
    assert '           line 31: "Katze\\u200b" (U+200B at character 6)' in lines
    assert "1 warning" not in lines[-1]
    assert lines[-1] == "4 warnings, 1 note"
    assert any(
        "\u732b U+732B CJK UNIFIED IDEOGRAPH-732B: once; first in line 33" in x for x in lines
    )
    record = report.to_json()
    assert (record["errors"], record["warnings"], record["notes"]) == (0, 4, 1)
    (found,) = [f for f in record["splits"]["train"]["findings"] if f["kind"] == "empty"]
    assert (found["count"], found["lines"]) == (1, [[32, 32]])
    assert found["what"] == KINDS["empty"].text
