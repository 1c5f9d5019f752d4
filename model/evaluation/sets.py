"""What a model is scored on: source lines and all references of each, as files hold them.

Two or more aligned files (a source and its references), or one TSV. A source that stands on several
lines, each with another reference, as in Tatoeba, is one source with several references.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from model.corpora.files import read_lines, read_tsv
from model.errors import DataError
from model.evaluation.metrics import check_aligned
from runtime.errors import OptionError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class EvaluationSet:
    """Sources [n], all references of each, and perhaps its family. sources: None where only
    references were given, for lines that are translated already. rows [n]: the line of the file,
    from 0, that each stood on first; num_rows: the lines of the file."""

    sources: tuple[str, ...] | None
    references: tuple[tuple[str, ...], ...]
    families: tuple[str, ...] | None = None
    rows: tuple[int, ...]
    num_rows: int

    def pick(self, lines: Sequence[str], where: str) -> list[str]:
        """Of a translation of each line of the file, those of the sources: [n].

        Raises DataError where there are more or fewer.
        """
        if len(lines) != self.num_rows:
            raise DataError(
                f"{where} has {len(lines):,} lines, the test set {self.num_rows:,}; expected a "
                "translation of each"
            )
        return [lines[row] for row in self.rows]

    @classmethod
    def from_pairs(cls, pairs: Sequence[tuple[str, str]]) -> EvaluationSet:
        """(source, reference) of each line, as they stand. Raises DataError for none."""
        sources, references = [source for source, _ in pairs], [target for _, target in pairs]
        check_aligned(sources, references)
        return _make(sources, [(reference,) for reference in references], None, None)


@dataclass(frozen=True, kw_only=True)
class EvaluationFiles:
    """Which files hold it: src and refs, line by line, or a TSV. families: a name for each line.
    group: whether equal sources are one, with all their references; None: those of a TSV are."""

    src: Path | None = None
    refs: tuple[Path, ...] = ()
    tsv: Path | None = None
    families: Path | None = None
    group: bool | None = None

    @property
    def any_given(self) -> bool:
        return self.src is not None or bool(self.refs) or self.tsv is not None

    def read(self, *, need_sources: bool = True) -> EvaluationSet:
        """Raises OptionError unless they are one or the other, DataError for files that can't be
        read or do not fit together."""
        grouped = self.tsv is not None if self.group is None else self.group
        needs_src = need_sources or grouped
        if self.tsv is not None and (self.src is not None or self.refs):
            raise OptionError("--tsv holds sources and references; leave out --src and --ref")
        if self.tsv is None and not (self.refs and (self.src is not None or not needs_src)):
            raise OptionError("give --src and --ref, or --tsv")
        sources: list[str] | None = None
        if self.tsv is not None:
            pairs = read_tsv(self.tsv)
            sources, columns = [source for source, _ in pairs], [[target for _, target in pairs]]
        else:
            columns = [read_lines(ref) for ref in self.refs]
            sources = None if self.src is None else read_lines(self.src)
        if not any(line.strip() for column in columns for line in column):
            raise DataError(f"all {len(columns[0]):,} references are empty; expected translations")
        families = None if self.families is None else read_lines(self.families)
        for column in columns:
            check_aligned(columns[0] if sources is None else sources, column, families)
        references = [_without_empty(several) for several in zip(*columns, strict=True)]
        keys = sources if grouped else None
        return _make(sources, references, families, keys)


def _make(
    sources: list[str] | None,
    references: list[tuple[str, ...]],
    families: list[str] | None,
    keys: list[str] | None,
) -> EvaluationSet:
    """One source for each of different keys [rows], or for each row where there are no keys."""
    first: dict[str | int, int] = {}  # key -> the row that it stood on first
    gathered: dict[int, list[str]] = {}
    for row, several in enumerate(references):
        place = first.setdefault(row if keys is None else keys[row], row)
        gathered.setdefault(place, []).extend(several)
    rows = tuple(gathered)
    if len(rows) < len(references):
        _log.info(
            "%s lines hold %s different sources: each is scored once, against all its references",
            f"{len(references):,}",
            f"{len(rows):,}",
        )
    return EvaluationSet(
        sources=None if sources is None else tuple(sources[row] for row in rows),
        references=tuple(tuple(dict.fromkeys(gathered[row])) for row in rows),
        families=None if families is None else tuple(families[row] for row in rows),
        rows=rows,
        num_rows=len(references),
    )


def _without_empty(references: tuple[str, ...]) -> tuple[str, ...]:
    """An empty line among several references says that there is no further one."""
    return tuple(line for line in references if line.strip()) or references[:1]
