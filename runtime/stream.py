"""Lines of bytes in, lines of bytes out: what `translate` does between its input and its output."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import select
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from io import BufferedIOBase, FileIO
from pathlib import Path
from typing import Any

from runtime.errors import OptionError, WriteError
from runtime.options import SearchOptions
from runtime.os_errors import explain
from runtime.translator import Translation, Translator

log = logging.getLogger(__name__)

_CHUNK = 1 << 16  # bytes; also what a pipe holds
_FEW_BYTES = 1000  # a file of no more is no work for several workers

Target = BufferedIOBase | FileIO
"""What is written to: a FileIO where records of a full disk are to be taken back."""

Format = Callable[[int, Translation], str]
"""(number of the line, from 1; its translation) -> text without the final line break."""


def translate_stream(
    translator: Translator,
    source: BufferedIOBase,
    target: Target,
    options: SearchOptions,
    *,
    batch_tokens: int,
    line_format: Format,
) -> None:
    """Translates source into target, one record a line, in order.

    Whatever can be read without waiting is translated together and flushed as it gets ready, so a
    slow pipe or a terminal is answered line by line, and an interruption loses little. Raises
    WriteError where target can't take a record, as on a full disk: a file then holds those before
    it, whole.
    """
    number = 0
    reads = read_lines(source)
    for first in reads:
        lines = enumerate(_without_waiting(first, reads, source), start=number + 1)
        texts = (_decode(line, place) for place, line in lines)
        translations = translator.translate_iter(
            texts, options, batch_tokens=batch_tokens, first_index=number
        )
        try:
            for number, translation in enumerate(translations, start=number + 1):  # noqa: B020
                _write_record(target, line_format(number, translation).encode() + b"\n")
        finally:
            if isinstance(translations, Generator):
                translations.close()  # if nobody reads on, no worker is to go on


def _write_record(target: Target, record: bytes) -> None:
    """All of it; or, in a file, nothing of it. Raises WriteError."""
    written = 0
    try:
        if isinstance(target, BufferedIOBase):
            target.write(record)
            target.flush()
            return
        while written < len(record):
            written += target.write(record[written:])
    except BrokenPipeError:  # nobody reads on: no failure
        raise
    except OSError as error:
        if isinstance(target, FileIO):
            _take_back(target, written)
        name = getattr(target, "name", "<stdout>")
        name = "standard output" if name == "<stdout>" else name
        raise WriteError(f"{name} can't be written: {explain(error, '')}") from error


def _take_back(file: FileIO, count: int) -> None:
    """Cuts the last `count` bytes that were written to a file, if they are its last."""
    with contextlib.suppress(OSError):  # a device or pipe, of which nothing can be taken back
        end = file.tell()
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode) and file.seek(0, os.SEEK_END) == end:
            file.truncate(end - count)
            file.seek(end - count)


def read_lines(source: BufferedIOBase) -> Iterator[list[bytes]]:
    r"""Lists of lines, without their \n or \r\n: those that each read has completed, maybe none.

    Only \n ends a line. The last line may lack it.
    """
    pieces: list[bytes] = []  # of a line that is not complete yet
    while chunk := source.read1(_CHUNK):
        *complete, rest = chunk.split(b"\n")
        if complete:
            complete[0] = b"".join([*pieces, complete[0]])
            pieces = []
        pieces.append(rest)
        yield [line.removesuffix(b"\r") for line in complete]
    last = b"".join(pieces)
    if last:
        yield [last.removesuffix(b"\r")]


def _without_waiting(
    first: list[bytes], reads: Iterator[list[bytes]], source: BufferedIOBase
) -> Iterator[bytes]:
    """The lines of the first read, and of those after it for which there is something to read."""
    yield from first
    while _readable(source):
        lines = next(reads, None)
        if lines is None:
            return
        yield from lines


def _readable(source: BufferedIOBase) -> bool:
    """Whether a read would not wait; False where the system does not tell.

    What read1 was asked for is more than a buffer holds, so none of it waits in `source` itself.
    """
    try:
        return bool(select.select([source], [], [], 0)[0])
    except (OSError, ValueError):  # it has no file, or the system can't ask such a one
        return False


def holds_many_lines(path: str, stdin: Any) -> bool:
    """Whether the input is a file of more than a few lines; a pipe or a terminal may be slow."""
    try:
        status = os.fstat(stdin.fileno()) if path == "-" else Path(path).stat()
    except (OSError, AttributeError, ValueError):  # open_streams says what is wrong with it
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size > _FEW_BYTES


def _decode(line: bytes, number: int) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        log.warning(
            "line %d is not valid UTF-8 (byte %d): what is invalid is read as U+FFFD",
            number,
            error.start + 1,
        )
        return line.decode(errors="replace")


def choose_format(*, as_json: bool, options: SearchOptions) -> Format:
    """JSON, or `line ||| text ||| score` where several hypotheses are wanted, or plain text."""
    if as_json:
        return json_line
    return n_best_lines if options.num_hypotheses > 1 else plain_line


def plain_line(number: int, translation: Translation) -> str:
    return translation.text


def n_best_lines(number: int, translation: Translation) -> str:
    return "\n".join(
        f"{number} ||| {found.text} ||| {found.score:.6f}" for found in translation.hypotheses
    )


def json_line(number: int, translation: Translation) -> str:
    """One object: json_record."""
    return json.dumps(json_record(number, translation), ensure_ascii=False)


def json_record(number: int, translation: Translation) -> dict[str, Any]:
    """What `--json` tells of a line; a score that is no number (nothing could be reached) becomes
    null."""
    hypotheses: list[dict[str, Any]] = [
        {
            "text": found.text,
            "tokens": found.tokens,
            "score": found.score if math.isfinite(found.score) else None,
            "finished": found.finished,
        }
        for found in translation.hypotheses
    ]
    return {"line": number, "truncated": translation.truncated, "hypotheses": hypotheses}


@contextmanager
def open_streams(
    source_path: str, target_path: str, stdin: Any, stdout: Any
) -> Iterator[tuple[BufferedIOBase, Target]]:
    """Binary streams of both paths, "-" being the given standard stream, which stays open.

    The target is created or emptied. Raises OptionError when both are one file, redirected or
    named, or for a standard stream that is closed; WriteError where the target can't be opened.
    """
    for path, stream, flag in ((source_path, stdin, "--input"), (target_path, stdout, "--output")):
        if path == "-" and stream is None:
            raise OptionError(f"the standard stream of {flag} is closed; name a file with {flag}")
    with ExitStack() as stack:
        if source_path == "-":
            source = stdin.buffer
        else:
            source = stack.enter_context(Path(source_path).open("rb"))
        if _is_one_file(source, stdout.buffer if target_path == "-" else Path(target_path)):
            raise OptionError(f"--output is the input, {source_path}; write to another file")
        yield source, _of_stdout(stdout) if target_path == "-" else _open(target_path, stack)


def _open(path: str, stack: ExitStack) -> Target:
    try:
        return stack.enter_context(Path(path).open("wb", buffering=0))
    except OSError as error:
        raise WriteError(f"{path} can't be written: {explain(error, '')}") from error


def _of_stdout(stdout: Any) -> Target:
    """Where it is a file, one without a buffer: what a buffer holds can't be taken back."""
    raw = getattr(stdout.buffer, "raw", None)
    if isinstance(raw, FileIO) and stat.S_ISREG(os.fstat(raw.fileno()).st_mode):
        stdout.flush()
        return raw
    found: BufferedIOBase = stdout.buffer
    return found


def _is_one_file(source: BufferedIOBase, target: BufferedIOBase | Path) -> bool:
    """Whether writing to target would change the file that source reads."""
    try:
        read = os.fstat(source.fileno())
        written = target.stat() if isinstance(target, Path) else os.fstat(target.fileno())
    except OSError:  # not there yet, or a stream without a file
        return False
    return stat.S_ISREG(read.st_mode) and os.path.samestat(read, written)
