"""Calibration sentences from a text file: plain or gzip, UTF-8, one a line."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path

from calibration.errors import CalibrationError
from runtime.normalizer import normalize_source


def read_sentences(path: Path) -> list[str]:
    """The lines that are not empty once normalized.

    Raises CalibrationError when the file can't be read, is not UTF-8 or holds no such line.
    """
    try:
        raw = path.read_bytes()
        if path.suffix == ".gz":
            raw = gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CalibrationError(
            f"{path} can't be read ({reason}); expected UTF-8 text, one sentence a line, plain or "
            "gzip named .gz"
        ) from error
    try:
        lines = raw.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise CalibrationError(
            f"{path}, line {line}: not UTF-8 (byte 0x{raw[error.start]:02x}); convert the file to "
            "UTF-8"
        ) from error
    sentences = [line for line in lines if normalize_source(line)]
    if not sentences:
        raise CalibrationError(
            f"{path} has {len(lines)} lines, all empty; expected sentences like those that will be "
            "translated, 500 or so"
        )
    return sentences


def evenly_spread(sentences: Sequence[str], count: int) -> list[str]:
    """At most `count` of them, in order and at even distances, so that no part is left out."""
    if len(sentences) <= count:
        return list(sentences)
    return [sentences[i * len(sentences) // count] for i in range(count)]
