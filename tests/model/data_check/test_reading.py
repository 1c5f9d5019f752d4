"""Reading in a stream gives the lines that reading for training gives, and says what is wrong."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from model.corpora.files import read_lines
from model.data_check.reading import Row, SplitFiles, SplitReader, TextFile, fetch
from model.errors import DataError


def _file(folder: Path, data: bytes, name: str = "text") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize(
    "data",
    [
        b"a\nb\n",
        b"a\nb",
        b"a\r\n\r\nb\r\n",
        b"a\n\n",
        b"\n",
        b"\r",
        b"a\r\r\n",
        b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n",
        b"\xef\xbb\xbf\n",
        "a\u2028b\x0bc\x0cd\x1ee\x85f\rg\n".encode(),
        b"a\x00b\n",
    ],
)
def test_lines_are_those_of_training(tmp_path: Path, data: bytes, pack) -> None:
    path = _file(tmp_path, pack(data))
    assert [line.text for line in TextFile(path)] == read_lines(path)


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf"])
def test_an_empty_file_has_no_lines(tmp_path: Path, data: bytes) -> None:
    text = TextFile(_file(tmp_path, data))
    assert list(text) == []
    assert (text.lines, text.damage) == (0, "")


def test_what_is_odd_about_a_file_is_counted(tmp_path: Path) -> None:
    text = TextFile(_file(tmp_path, b"\xef\xbb\xbfa\r\nb\nc\r\n"))
    list(text)
    assert (text.has_bom, text.crlf, text.lines) == (True, 2, 3)


def test_bytes_that_are_not_utf8_are_told_and_shown(tmp_path: Path) -> None:
    lines = list(TextFile(_file(tmp_path, "eins\nzw\u00f6lf\n".encode("latin-1"))))
    assert [bool(line.fault) for line in lines] == [False, True]
    assert lines[1].text == "zw\\xf6lf"
    assert lines[1].fault == "byte 0xf6 at byte 3: invalid start byte"


def test_utf16_is_named(tmp_path: Path) -> None:
    first = next(iter(TextFile(_file(tmp_path, "eins\n".encode("utf-16")))))
    assert first.fault.endswith("; the file looks like UTF-16")


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda packed: packed[:-12], "gzip that ends too early"),
        (lambda packed: packed[:60] + b"\xff" * 8 + packed[68:], "."),
        (lambda packed: packed + b"more", "Not a gzipped file"),
    ],
)
def test_damaged_gzip_is_told(tmp_path: Path, damage, text: str) -> None:
    packed = gzip.compress(bytes(range(32, 127)) * 50 + b"\n" + b"eins zwei\n" * 2000)
    path = _file(tmp_path, damage(packed))
    with pytest.raises(DataError):
        read_lines(path)
    file = TextFile(path)
    list(file)
    assert text.strip(".") in file.damage
    assert file.damage


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere cannot be read \(No such file or directory\)"):
        list(TextFile(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"cannot be read \(Is a directory\); expected a text file"):
        list(TextFile(tmp_path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_pipe_is_refused_before_it_is_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match=r"pipe is a pipe or a device; expected a file, since it"):
        list(TextFile(tmp_path / "pipe"))


def test_rows_of_two_files_go_on_where_one_has_ended(tmp_path: Path) -> None:
    files = SplitFiles(
        split="train",
        source=_file(tmp_path, b"a\nb\n", "src"),
        target=_file(tmp_path, b"x\n\xff\nz\n", "tgt"),
    )
    rows = list(SplitReader(files))
    assert [(row.source, row.missing) for row in rows] == [("a", None), ("b", None), ("", "source")]
    assert [side for side, _ in rows[1].faults] == ["target"]


def test_rows_of_a_tsv(tmp_path: Path) -> None:
    path = _file(tmp_path, b"a\tx\t1\t2\nb c\n\n\ty\n")
    rows = list(SplitReader(SplitFiles(split="train", source=path)))
    assert rows == [
        Row(1, "a", "x", whole="a\tx\t1\t2"),
        Row(2, "b c", "", whole="b c", no_tab=True),
        Row(3, "", ""),
        Row(4, "", "y", whole="\ty"),
    ]


def test_all_bytes_are_reported(tmp_path: Path) -> None:
    path = _file(tmp_path, gzip.compress(bytes(range(97, 120)) * 3 + b"\n" + b"eins\n" * 50_000))
    counts: list[int] = []
    list(TextFile(path, counts.append))
    assert sum(counts) == path.stat().st_size


def test_fetch_gives_the_rows_asked_for(tmp_path: Path) -> None:
    path = _file(tmp_path, b"".join(b"s%d\tt%d\n" % (n, n) for n in range(1, 10)))
    files = SplitFiles(split="train", source=path)
    assert {n: row.target for n, row in fetch(files, {2, 7}).items()} == {2: "t2", 7: "t7"}
    assert fetch(files, set()) == {}
