"""The user's own corpora: two aligned text files, or one TSV, plain or gzip.

A line ends at "\\n" (a "\\r" before it goes with it) and nowhere else: other characters that Python
counts as line breaks are text. Text is UTF-8, a byte order mark at the start aside. Whether a file
is gzip is told by its first bytes, not by its name.
"""

from __future__ import annotations

import gzip
import logging
import os
import zlib
from pathlib import Path

from model.errors import DataError

StrPath = str | os.PathLike[str]

_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_log = logging.getLogger(__name__)


def read_lines(path: StrPath) -> list[str]:
    """The lines of a file, empty ones included.

    Raises DataError for a file that is missing, a directory, empty, damaged or not UTF-8.
    """
    file = Path(path)
    data = _read(file).removeprefix(_BOM)
    if not data:
        raise DataError(f"{file} is empty; expected lines of text")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        start = data.rfind(b"\n", 0, error.start) + 1
        raise DataError(
            f"{file}, line {line} is not UTF-8: byte 0x{data[error.start]:02x} at byte "
            f"{error.start - start + 1} of the line ({error.reason}); convert the file to UTF-8"
        ) from error
    lines = text.removesuffix("\n").split("\n")
    return [line.removesuffix("\r") for line in lines]


def read_parallel(src: StrPath, tgt: StrPath) -> list[tuple[str, str]]:
    """(source, target) of every line of two aligned files.

    Pairs with an empty side are dropped, and their number is logged. Raises DataError as
    `read_lines` does, for files with different numbers of lines, and where no pair is left.
    """
    sources, targets = read_lines(src), read_lines(tgt)
    if len(sources) != len(targets):
        raise DataError(
            f"{Path(src)} has {len(sources)} lines but {Path(tgt)} has {len(targets)}; expected "
            "line N of the second to translate line N of the first"
        )
    return _keep(list(zip(sources, targets, strict=True)), f"{Path(src)} and {Path(tgt)}")


def read_tsv(path: StrPath) -> list[tuple[str, str]]:
    """(source, target) from the first two columns of a file of tab-separated values.

    Further columns are ignored, and quotes are text like any other. Pairs with an empty side, and
    blank lines, are dropped, and their number is logged. Raises DataError as `read_lines` does, for
    a line without a tab, and where no pair is left.
    """
    pairs = []
    for number, line in enumerate(read_lines(path), start=1):
        columns = line.split("\t", 2)
        if len(columns) < 2 and line.strip():
            raise DataError(
                f"{Path(path)}, line {number} has no tab; expected the source text, a tab and the "
                "target text"
            )
        pairs.append((columns[0], columns[1] if len(columns) > 1 else ""))
    return _keep(pairs, str(Path(path)))


def _keep(pairs: list[tuple[str, str]], where: str) -> list[tuple[str, str]]:
    """The pairs with text on both sides."""
    kept = [(source, target) for source, target in pairs if source.strip() and target.strip()]
    if not kept:
        raise DataError(
            f"{where}: all {len(pairs)} lines have an empty source or target; expected text on "
            "both sides"
        )
    if len(kept) < len(pairs):
        _log.warning(
            "%s: dropped %d of %d pairs, which have an empty source or target",
            where,
            len(pairs) - len(kept),
            len(pairs),
        )
    return kept


def _read(file: Path) -> bytes:
    """The bytes of a file, unzipped where it is gzip."""
    try:
        data = file.read_bytes()
    except FileNotFoundError as error:
        raise DataError(f"{file} does not exist; expected a text file") from error
    except IsADirectoryError as error:
        raise DataError(f"{file} is a directory; expected a text file") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"{file} cannot be read ({reason}); expected a text file") from error
    if not data.startswith(_GZIP):
        return data
    try:
        return gzip.decompress(data)
    except EOFError as error:
        raise DataError(
            f"{file} is gzip that ends too early; it was cut off: copy or download it again"
        ) from error
    except (OSError, zlib.error) as error:
        raise DataError(f"{file} is damaged gzip ({error}); copy or download it again") from error
