"""Reading the user's corpora: what is kept, and what each mistake is told."""

from __future__ import annotations

import gzip
import logging
from pathlib import Path

import pytest

from model.corpora.files import read_lines, read_parallel, read_tsv
from model.errors import DataError


def _file(folder: Path, data: bytes | str, name: str = "text") -> Path:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        ("a\nb\n", ["a", "b"]),
        ("a\nb", ["a", "b"]),
        ("a\r\n\r\nb\r\n", ["a", "", "b"]),
        ("a\n\n", ["a", ""]),
        ("\n", [""]),
        ("\ufeffa\n", ["a"]),
        # Line breaks to Python, text to us: a split there would shift every later pair.
        ("a\u2028b\x0bc\x0cd\x1ee\x85f\rg\n", ["a\u2028b\x0bc\x0cd\x1ee\x85f\rg"]),
        ("a\x00b\n", ["a\x00b"]),
    ],
)
def test_lines_end_at_newline_alone(tmp_path: Path, data: str, lines: list[str]) -> None:
    assert read_lines(_file(tmp_path, data)) == lines


def test_gzip_is_told_by_its_bytes(tmp_path: Path) -> None:
    packed = gzip.compress(b"eins\nzwei\n")
    assert read_lines(_file(tmp_path, packed, "no-suffix")) == ["eins", "zwei"]
    assert read_lines(_file(tmp_path, b"plain\n", "plain.gz")) == ["plain"]


def test_parallel_pairs_lines_and_drops_empty_sides(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    src = _file(tmp_path, "one\n\nthree\n \nfive\n", "src")
    tgt = _file(tmp_path, gzip.compress("eins\nzwei\ndrei\nvier\n\u3000\n".encode()), "tgt")
    with caplog.at_level(logging.WARNING):
        assert read_parallel(src, tgt) == [("one", "eins"), ("three", "drei")]
    assert caplog.messages == [
        f"{src} and {tgt}: dropped 3 of 5 pairs, which have an empty source or target"
    ]


def test_nothing_is_logged_where_nothing_is_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    src, tgt = _file(tmp_path, "a\n", "src"), _file(tmp_path, "b\n", "tgt")
    assert read_parallel(str(src), str(tgt)) == [("a", "b")]
    assert not caplog.messages


def test_tsv_takes_the_first_two_columns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = _file(tmp_path, 'one\teins\tnote\t"x\n\n"two\tzwei"\r\nthree\t\n', "t.tsv")
    assert read_tsv(path) == [("one", "eins"), ('"two', 'zwei"')]
    assert "dropped 2 of 4 pairs" in caplog.text


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no/such does not exist; expected a text file"):
        read_lines(tmp_path / "no" / "such")


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is a directory; expected a text file"):
        read_lines(tmp_path)


@pytest.mark.parametrize("name", ["text/below", "nul\0"])
def test_a_path_that_cannot_be_read_is_told(tmp_path: Path, name: str) -> None:
    _file(tmp_path, "a\n")
    with pytest.raises(DataError, match=r"cannot be read \(.+\); expected a text file"):
        read_lines(tmp_path / name)


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf", gzip.compress(b"")])
def test_an_empty_file_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(DataError, match=r"text is empty; expected lines of text"):
        read_lines(_file(tmp_path, data))


def test_text_that_is_not_utf8_is_told_with_its_line_and_byte(tmp_path: Path) -> None:
    path = _file(tmp_path, b"eins\nzw\xf6lf\n")
    expected = (
        r"text, line 2 is not UTF-8: byte 0xf6 at byte 3 of the line \(invalid start byte\); "
        r"convert the file to UTF-8"
    )
    with pytest.raises(DataError, match=expected):
        read_lines(path)


def test_utf16_is_not_utf8(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"line 1 is not UTF-8: byte 0xff at byte 1 of the line"):
        read_lines(_file(tmp_path, "eins\n".encode("utf-16")))


def test_gzip_that_was_cut_off_is_told(tmp_path: Path) -> None:
    packed = gzip.compress(b"eins\nzwei\n" * 100)
    with pytest.raises(DataError, match=r"is gzip that ends too early; it was cut off"):
        read_lines(_file(tmp_path, packed[:-12]))


@pytest.mark.parametrize("place", [-6, 12])
def test_damaged_gzip_is_told(tmp_path: Path, place: int) -> None:
    packed = bytearray(gzip.compress(bytes(range(32, 127)) * 20))
    packed[place] ^= 0xFF
    with pytest.raises(DataError, match=r"is damaged gzip \(.+\); copy or download it again"):
        read_lines(_file(tmp_path, bytes(packed)))


def test_misaligned_files_are_told_with_both_counts(tmp_path: Path) -> None:
    src, tgt = _file(tmp_path, "a\nb\nc\n", "src"), _file(tmp_path, "x\ny\n", "tgt")
    with pytest.raises(DataError, match=r"src has 3 lines but .*tgt has 2; expected line N"):
        read_parallel(src, tgt)


def test_pairs_that_are_all_empty_are_refused(tmp_path: Path) -> None:
    src, tgt = _file(tmp_path, "a\n\n", "src"), _file(tmp_path, "\nb\n", "tgt")
    with pytest.raises(DataError, match=r"tgt: all 2 lines have an empty source or target"):
        read_parallel(src, tgt)
    with pytest.raises(DataError, match=r"t.tsv: all 2 lines have an empty source or target"):
        read_tsv(_file(tmp_path, "\tb\n\n", "t.tsv"))


def test_a_line_without_a_tab_is_told_with_its_number(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"t.tsv, line 2 has no tab; expected the source text"):
        read_tsv(_file(tmp_path, "a\tb\nc d\n", "t.tsv"))
