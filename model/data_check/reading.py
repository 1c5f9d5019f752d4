"""The files of a corpus, line by line, cut and decoded as `model.corpora.files` does.

That module stops at the first thing that is wrong; this one says what it is and reads on, and holds
one line at a time.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import stat
import zlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import IO, NamedTuple

from model.data_check.kinds import Side
from model.errors import DataError
from model.training.recipe import Split

GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_REPORT_EVERY = 1 << 16

ReportBytes = Callable[[int], None]
"""Told of how many more bytes of a file were read."""


@dataclass(frozen=True, kw_only=True)
class SplitFiles:
    """Where a split is: two aligned files, or one TSV (target None)."""

    split: Split
    source: Path
    target: Path | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        return (self.source,) if self.target is None else (self.source, self.target)

    @property
    def name(self) -> str:
        return " and ".join(str(path) for path in self.paths)

    def path(self, side: Side) -> Path:
        return self.source if side == "source" or self.target is None else self.target


class Line(NamedTuple):
    """A line as training sees it. fault: why it is not UTF-8, its bytes then escaped in text."""

    text: str
    fault: str = ""


class Row(NamedTuple):
    """Line `number` of a split, from 1.

    whole: the line as it stands in a TSV, else "". missing: the side whose file has ended already.
    no_tab: a TSV's line has text but no tab. faults: side and reason where it is not UTF-8; a TSV's
    are its source's.
    """

    number: int
    source: str
    target: str
    whole: str = ""
    missing: Side | None = None
    no_tab: bool = False
    faults: tuple[tuple[Side, str], ...] = ()


class TextFile:
    """One file: iterate it once for its lines; what is odd about it as a whole is known then.

    lines: how many there were. crlf: how many of them ended in CR LF. damage: why it could not be
    read to its end. Iterating raises DataError for a file that can't be opened.
    """

    def __init__(self, path: Path, report: ReportBytes = lambda _: None) -> None:
        self.path = path
        self.lines = 0
        self.crlf = 0
        self.has_bom = False
        self.is_gzip = False
        self.damage = ""
        self._report = report

    def __iter__(self) -> Iterator[Line]:
        with _open(self.path) as raw:
            self.is_gzip = raw.peek(2)[:2] == GZIP
            stream = io.BufferedReader(gzip.GzipFile(fileobj=raw)) if self.is_gzip else raw
            with contextlib.closing(self._decoded(stream, raw)) as lines:
                yield from lines

    def _decoded(self, stream: IO[bytes], raw: IO[bytes]) -> Generator[Line, None, None]:
        reported = 0
        for data in self._undamaged(stream):
            if not self.lines and data.startswith(_BOM):
                self.has_bom = True
                data = data[len(_BOM) :]
                if not data:
                    return
            self.lines += 1
            if data.endswith(b"\n"):
                data = data[:-1]
            if data.endswith(b"\r"):
                self.crlf += 1
                data = data[:-1]
            yield self._decode(data)
            if raw.tell() - reported >= _REPORT_EVERY:
                self._report(raw.tell() - reported)
                reported = raw.tell()
        self._report(raw.tell() - reported)

    def _undamaged(self, stream: IO[bytes]) -> Iterator[bytes]:
        try:
            yield from stream
        except EOFError:
            self.damage = "gzip that ends too early"
        except (OSError, zlib.error) as error:
            self.damage = f"{getattr(error, 'strerror', None) or error}"

    def _decode(self, data: bytes) -> Line:
        try:
            return Line(data.decode("utf-8"))
        except UnicodeDecodeError as error:
            fault = f"byte 0x{data[error.start]:02x} at byte {error.start + 1}: {error.reason}"
            if self.lines == 1 and data.startswith(_UTF16):
                fault += "; the file looks like UTF-16"
            return Line(data.decode("utf-8", "backslashreplace"), fault)


def _open(path: Path) -> io.BufferedReader:
    try:
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise DataError(
                f"{path} is a pipe or a device; expected a file, since it is read more than once: "
                "write the text to one"
            )
        return path.open("rb")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"{path} cannot be read ({reason}); expected a text file") from error


class SplitReader:
    """Iterate it once for the rows of a split; `texts` then tell of the files."""

    def __init__(self, files: SplitFiles, report: ReportBytes = lambda _: None) -> None:
        self.files = files
        self.texts = [TextFile(path, report) for path in files.paths]

    def __iter__(self) -> Iterator[Row]:
        return self._tsv() if self.files.target is None else self._aligned()

    def _aligned(self) -> Iterator[Row]:
        none = Line("")
        for number, (source, target) in enumerate(zip_longest(*self.texts), start=1):
            missing: Side | None = (
                "source" if source is None else "target" if target is None else None
            )
            source, target = source or none, target or none
            sides: tuple[tuple[Side, str], ...] = (
                ("source", source.fault),
                ("target", target.fault),
            )
            yield Row(
                number,
                source.text,
                target.text,
                missing=missing,
                faults=tuple(side for side in sides if side[1]),
            )

    def _tsv(self) -> Iterator[Row]:
        for number, line in enumerate(self.texts[0], start=1):
            columns = line.text.split("\t", 2)
            yield Row(
                number,
                columns[0],
                columns[1] if len(columns) > 1 else "",
                whole=line.text,
                no_tab=len(columns) < 2 and bool(line.text.strip()),
                faults=(("source", line.fault),) if line.fault else (),
            )


def fetch(files: SplitFiles, numbers: set[int]) -> dict[int, Row]:
    """The rows of these numbers; it reads as far as the last of them."""
    found: dict[int, Row] = {}
    if not numbers:
        return found
    last = max(numbers)
    for row in SplitReader(files):
        if row.number in numbers:
            found[row.number] = row
        if row.number >= last:
            break
    return found
