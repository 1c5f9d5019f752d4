"""Calibration text: what is read, what is left out, what is refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from calibration.errors import CalibrationError
from calibration.sentences import evenly_spread, read_sentences


def test_reads_plain_and_gzip_and_leaves_empty_lines_out(tmp_path: Path):
    text = "\ufeffone\r\n\n \t\u200b\u00a0\nzwei ß\u2028x\n".encode()
    (tmp_path / "a.txt").write_bytes(text)
    (tmp_path / "a.gz").write_bytes(gzip.compress(text))
    plain = read_sentences(tmp_path / "a.txt")
    assert [line.strip() for line in plain] == ["one", "zwei ß\u2028x"]
    assert read_sentences(tmp_path / "a.gz") == plain


def test_refuses_missing_damaged_and_foreign_files(tmp_path: Path):
    with pytest.raises(CalibrationError, match=r"can't be read \(No such file"):
        read_sentences(tmp_path / "missing")
    with pytest.raises(CalibrationError, match=r"can't be read \(Is a directory"):
        read_sentences(tmp_path)
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"some text\n" * 100)[:-12])
    with pytest.raises(CalibrationError, match="can't be read"):
        read_sentences(tmp_path / "cut.gz")
    (tmp_path / "plain.gz").write_bytes(b"not gzip")
    with pytest.raises(CalibrationError, match="can't be read"):
        read_sentences(tmp_path / "plain.gz")
    (tmp_path / "latin1").write_bytes(b"fine\nM\xfcller\n")
    with pytest.raises(CalibrationError, match=r"line 2: not UTF-8 \(byte 0xfc\)"):
        read_sentences(tmp_path / "latin1")


def test_refuses_a_file_of_empty_lines(tmp_path: Path):
    (tmp_path / "empty").write_bytes(b"\n \n")
    with pytest.raises(CalibrationError, match="has 3 lines, all empty"):
        read_sentences(tmp_path / "empty")


def test_spread_takes_from_everywhere():
    lines = [str(i) for i in range(10)]
    assert evenly_spread(lines, 4) == ["0", "2", "5", "7"]
    assert evenly_spread(lines, 10) == evenly_spread(lines, 99) == lines
