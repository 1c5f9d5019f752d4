"""A cleaned copy of a corpus: files of the same form, without the lines that a report names.

Text stays as it is, but for what is asked for: line ends become LF and a byte order mark goes, as
training reads it anyway.
"""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from model.data_check.kinds import CANNOT_BE_TRAINED_ON, DROPPABLE, DROPPED
from model.data_check.reading import GZIP, Row, SplitFiles, SplitReader
from model.data_check.report import FORMAT, Report, SplitReport, ranges, show_ranges
from model.data_check.texts import drop_controls, plain_spaces, shown, unescape
from model.errors import DataError
from model.training.recipe import Split
from runtime.directory import recover, replace_directory
from runtime.errors import OptionError

JSON_REPORT, TEXT_REPORT = "report.json", "report.txt"
MENDS: dict[str, Callable[[str], str]] = {
    "markup": unescape,
    "control": drop_controls,
    "spaces": plain_spaces,
}
"""Kinds that can be mended, in the order in which they are."""

_HOPELESS = ("unreadable", "empty-file", "line-count", "no-pairs")
KEEPABLE = tuple(kind for kind in DROPPED if kind not in CANNOT_BE_TRAINED_ON)


@dataclass(frozen=True, kw_only=True)
class FixOptions:
    """drop: kinds whose lines the training split loses; what can't be trained on is always lost, in
    every split. mend: kinds that are put right instead, in all splits, from MENDS: markup (entities
    become characters; tags stay), control (dropped), spaces (runs become one, none at the ends).
    """

    drop: tuple[str, ...] = DROPPED
    mend: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, kinds, known in (("drop", self.drop, DROPPABLE), ("mend", self.mend, MENDS)):
            for kind in kinds:
                if kind not in known:
                    raise OptionError(f"{name} is {kind!r}; expected one of {', '.join(known)}")

    def dropped_in(self, split: Split) -> tuple[str, ...]:
        """Valid and test lose what can't be used only: what is measured stays comparable."""
        return (*CANNOT_BE_TRAINED_ON, *(self.drop if split == "train" else ()))


@dataclass(kw_only=True)
class FixedSplit:
    """What became of one split. files: names in the new directory. dropped: kind -> lines, each
    line under one kind only. changed: mend -> (lines, the first one before, and after)."""

    files: tuple[str, ...]
    read: int = 0
    written: int = 0
    dropped: dict[str, list[int]] = field(default_factory=dict)
    changed: dict[str, tuple[list[int], str, str]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "files": list(self.files),
            "read": self.read,
            "written": self.written,
            "dropped": {
                kind: {"count": len(lines), "lines": ranges(lines)}
                for kind, lines in self.dropped.items()
            },
            "changed": {
                mend: {
                    "count": len(lines), "lines": ranges(lines), "before": before, "after": after
                }
                for mend, (lines, before, after) in self.changed.items()
            },
        }  # fmt: skip


Fixed = Mapping[Split, FixedSplit]


def check_target(out: Path, splits: Sequence[SplitFiles]) -> None:
    """Raises OptionError where a copy can't go to `out`: it holds something else than an earlier
    copy, or a file that is to be read.
    """
    inside = [path for files in splits for path in files.paths if _is_inside(path, out)]
    if inside:
        raise OptionError(
            f"{out} holds {inside[0]}, which is read; a cleaned copy replaces its directory, so "
            "give it one of its own"
        )
    recover(out)
    if not out.exists():
        return
    copied = _files_of_copy(out)
    others = sorted({path.name for path in out.iterdir()} - copied) if out.is_dir() else []
    if not out.is_dir() or (others and not copied):
        raise OptionError(
            f"{out} exists and holds no cleaned copy; expected a new or empty directory, or an "
            "earlier copy to replace"
        )
    if others:
        raise OptionError(
            f"{out} holds {others[0]} beside an earlier copy; a cleaned copy replaces its whole "
            "directory, so move that away, or give another --out"
        )


def _is_inside(path: Path, out: Path) -> bool:
    return path.resolve().is_relative_to(out.resolve())


def _files_of_copy(out: Path) -> set[str]:
    """What an earlier copy wrote there; nothing where there is none."""
    with contextlib.suppress(OSError, ValueError, AttributeError, KeyError, TypeError):
        report = json.loads((out / JSON_REPORT).read_bytes())
        if report.get("format") == FORMAT:
            files = [name for split in report["fixed"].values() for name in split["files"]]
            return {*files, JSON_REPORT, TEXT_REPORT}
    return set()


def fix(splits: Sequence[SplitFiles], report: Report, options: FixOptions, out: Path) -> Fixed:
    """Writes a copy of the splits that were checked, all of it or nothing, and the report beside.

    Raises what check_target raises, and DataError where a split can't be mended by dropping lines,
    nothing would be left of it, or the directory can't be written.
    """
    check_target(out, splits)
    for found in report.splits:
        _refuse_hopeless(found)
    names = _names(splits)
    fixed: dict[Split, FixedSplit] = {}
    try:
        with replace_directory(out) as folder:
            for files, found in zip(splits, report.splits, strict=True):
                fixed[files.split] = _write_split(
                    files, found, options, [folder / name for name in names[files.split]]
                )
            record = report.to_json() | {"fixed": to_json(fixed)}
            text = json.dumps(record, indent=1, ensure_ascii=False)
            (folder / JSON_REPORT).write_text(f"{text}\n", "utf-8", newline="\n")
            text = f"{report.render()}\n\n{render(fixed)}\n"
            (folder / TEXT_REPORT).write_text(text, "utf-8", newline="\n")
    except OSError as error:
        raise DataError(
            f"the copy cannot be written to {out} ({error.strerror}); expected a directory that "
            "can be made and written to, with room left"
        ) from error
    return fixed


def _refuse_hopeless(found: SplitReport) -> None:
    for kind in _HOPELESS:
        for finding in found.of_kind(kind):
            raise DataError(
                f"{found.split} can't be mended by dropping lines: {finding.details[0]}; put that "
                "right first"
            )


def _names(splits: Sequence[SplitFiles]) -> dict[Split, list[str]]:
    """Those of the inputs; with the split before them where two would be one."""
    plain = [path.name for files in splits for path in files.paths]
    unique = len({*plain, JSON_REPORT, TEXT_REPORT}) == len(plain) + 2
    return {
        files.split: [
            path.name if unique else f"{files.split}.{number}.{path.name}"
            for number, path in enumerate(files.paths, 1)
        ]
        for files in splits
    }


def _write_split(
    files: SplitFiles, found: SplitReport, options: FixOptions, targets: Sequence[Path]
) -> FixedSplit:
    result = FixedSplit(files=tuple(target.name for target in targets))
    dropped = _dropped(found, options.dropped_in(files.split))
    mends = {name: mend for name, mend in MENDS.items() if name in options.mend}
    with ExitStack() as stack:
        pairs = zip(files.paths, targets, strict=True)
        writers = [stack.enter_context(_writer(path, target)) for path, target in pairs]
        for row in SplitReader(files):
            result.read += 1
            if kind := dropped.get(row.number):
                result.dropped.setdefault(kind, []).append(row.number)
                continue
            texts = _mended(row, mends, result)
            if files.target is None:
                texts = ("\t".join([*texts, *row.whole.split("\t", 2)[2:]]),)
            for writer, text in zip(writers, texts, strict=True):
                writer.write(text.encode() + b"\n")
            result.written += 1
    if not result.written:
        raise DataError(
            f"nothing would be left of {files.split}: all {result.read} lines would be dropped "
            f"({', '.join(result.dropped)}); drop fewer kinds"
        )
    return result


def _dropped(found: SplitReport, kinds: Sequence[str]) -> dict[int, str]:
    """Line number -> why it goes, the first of these kinds that it is of."""
    lines: dict[int, str] = {}
    for kind in kinds:
        for finding in found.of_kind(kind):
            for line in finding.lines:
                lines.setdefault(line, kind)
    return lines


def _mended(
    row: Row, mends: Mapping[str, Callable[[str], str]], result: FixedSplit
) -> tuple[str, ...]:
    texts = [row.source, row.target]
    for name, mend in mends.items():
        new = [mend(text) for text in texts]
        if new != texts:
            side = 0 if new[0] != texts[0] else 1
            result.changed.setdefault(name, ([], texts[side], new[side]))[0].append(row.number)
            texts = new
    return tuple(texts)


@contextlib.contextmanager
def _writer(source: Path, target: Path) -> Iterator[IO[bytes]]:
    """To a file that is gzip where the source is; equal text gives equal bytes."""
    with source.open("rb") as file:
        packed = file.read(2) == GZIP
    with target.open("wb") as raw:
        if not packed:
            yield raw
            return
        with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as zipped:
            yield cast(IO[bytes], zipped)


def to_json(fixed: Fixed) -> dict[str, Any]:
    """Split -> what became of it; line numbers are ranges, [first, last] each."""
    return {split: result.to_json() for split, result in fixed.items()}


def render(fixed: Fixed) -> str:
    """What was dropped and changed, and why, for people."""
    lines = []
    for split, result in fixed.items():
        lines.append(
            f"{split}: {result.written:,} of {result.read:,} lines written to "
            f"{' and '.join(result.files)}"
        )
        for kind, numbers in result.dropped.items():
            lines.append(f"  dropped  {kind}: {len(numbers):,} ({show_ranges(numbers)})")
        for mend, (numbers, before, after) in result.changed.items():
            lines.append(
                f"  changed  {mend}: {len(numbers):,} ({show_ranges(numbers)}), first "
                f'"{shown(before)}" to "{shown(after)}"'
            )
    return "\n".join(lines)
