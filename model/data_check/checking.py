"""All checks over the splits of a corpus: one reading of every file, and a second for examples."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from model.data_check.characters import (
    CharacterCounts,
    list_missing,
    missing_from_tokenizer,
    missing_if_trained,
)
from model.data_check.columns import Columns, GrowingSide
from model.data_check.kinds import Side
from model.data_check.progress import ReadingProgress
from model.data_check.reading import ReportBytes, Row, SplitFiles, SplitReader, fetch
from model.data_check.report import Example, Finding, Report, SplitReport
from model.data_check.slips import find_slips
from model.data_check.texts import oddities
from model.errors import DataError
from model.tokenizer_training import train_tokenizer
from model.training.settings import TrainingSettings
from runtime.normalizer import normalize_source, normalize_target
from runtime.tokenizer import Tokenizer

MOST_TO_TRAIN_ON = 100_000
"""Pairs of a training split whose vocabulary is trained here, as training would: a minute or so."""

_LETTERS_A_PIECE = 4.0
_WIDE_A_PIECE = 1.5  # Chinese and other scripts without spaces

Held: TypeAlias = "tuple[array[int], list[tuple[str, str]]]"
"""Line numbers, and their pairs."""


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """What is checked against what.

    max_source, max_target: the model's limits in tokens, EOS counted. pieces: of the vocabulary
    that training would make. tokenizer: the one to check with, which is called tokenizer_name;
    None: the one that training would make. examples: lines shown of each finding.
    """

    max_source: int = TrainingSettings.max_source
    max_target: int = TrainingSettings.max_target
    pieces: int = TrainingSettings().pieces
    tokenizer: Tokenizer | None = None
    tokenizer_name: str = "the tokenizer given"
    examples: int = 3


def check(splits: Sequence[SplitFiles], options: CheckOptions, *, quiet: bool = False) -> Report:
    """Reads the splits, each at most once, train first, and tells what was found.

    quiet: no progress bar. Raises DataError for a file that can't be opened; all else that is wrong
    with them is in the report.
    """
    tokenizer, name = options.tokenizer, options.tokenizer_name
    checks: list[_SplitCheck] = []
    train: CharacterCounts | None = None
    with ReadingProgress(sum(_size(files) for files in splits), quiet=quiet) as progress:
        for files in splits:
            progress.name(files.split)
            found = _SplitCheck(files, options, tokenizer)
            found.read(progress.advance)
            if files.split == "train":
                train = found.characters
                if tokenizer is None:
                    tokenizer, name = found.train_tokenizer()
            checks.append(found)
    for found in checks:
        found.finish(tokenizer, train)
    _find_leaks(checks)
    for found in checks:
        found.add_examples()
    return Report(
        tokenizer=name if tokenizer or train else "none: give the training split or a tokenizer",
        max_source=options.max_source,
        max_target=options.max_target,
        splits=tuple(found.report for found in checks),
    )


def _size(files: SplitFiles) -> int:
    return sum(path.stat().st_size for path in files.paths if path.is_file())


class _SplitCheck:
    """One split under way."""

    def __init__(
        self, files: SplitFiles, options: CheckOptions, tokenizer: Tokenizer | None
    ) -> None:
        self.files, self.options, self.tokenizer = files, options, tokenizer
        self.report = SplitReport(split=files.split, files=tuple(map(str, files.paths)))
        self.characters = CharacterCounts()
        self._findings: dict[tuple[str, str | None, str | None], Finding] = {}
        self._sides = GrowingSide(), GrowingSide()
        self._usable = array("b")
        self._learned_invisible = 0
        trains = files.split == "train" and tokenizer is None
        self._held: Held | None = (array("q"), []) if trains else None
        self._bounds: list[tuple[str, int, str]] = []
        self.columns: Columns

    def add(self, kind: str, line: int, *, side: Side | None = None, detail: str = "") -> None:
        """One more line of this kind; 0: said of the whole file."""
        finding = self._findings.get((kind, side, None))
        if finding is None:
            finding = self._findings[kind, side, None] = Finding(kind=kind, side=side)
        if not line:
            said = finding.details.get(0)
            finding.details[0] = f"{said}; {detail}" if said else detail
            return
        finding.lines.append(line)
        if len(finding.details) < self.options.examples:
            finding.details[line] = detail

    def add_finding(self, finding: Finding) -> None:
        self._findings[finding.kind, finding.side, finding.other] = finding

    def read(self, report_bytes: ReportBytes) -> None:
        """All rows; what is odd about the files as files."""
        reader = SplitReader(self.files, report_bytes)
        for row in reader:
            self._look_at(row)
        for text in reader.texts:
            if text.damage:
                self.add("unreadable", 0, detail=f"{text.path} is damaged: {text.damage}")
            elif not text.lines:
                self.add("empty-file", 0, detail=f"{text.path} is empty; expected lines of text")
            if text.has_bom:
                self.add("byte-order-mark", 0, detail=f"{text.path} starts with one; it is skipped")
            if text.crlf:
                share = "all" if text.crlf == text.lines else f"{text.crlf:,} of {text.lines:,}"
                self.add(
                    "line-ends", 0,
                    detail=f"{share} lines of {text.path} end in CR LF; the CR is taken off",
                )  # fmt: skip
        counts = [text.lines for text in reader.texts]
        if len(set(counts)) > 1 and not any(text.damage for text in reader.texts):
            first, second = self.files.paths
            self.add(
                "line-count", 0,
                detail=f"{first} has {counts[0]:,} lines but {second} has {counts[1]:,}; line N of "
                "the second must translate line N of the first",
            )  # fmt: skip

    def _look_at(self, row: Row) -> None:
        forms = normalize_source(row.source), normalize_source(row.target)
        for side, text, form in zip(self._sides, (row.source, row.target), forms, strict=True):
            if row.missing != ("source" if side is self._sides[0] else "target"):
                side.add(text, form)
        if row.missing is not None:
            return
        self.report.pairs += 1
        for side_name, fault in row.faults:
            self.add(
                "not-utf8", row.number, detail=fault,
                side=None if self.files.target is None else side_name,
            )  # fmt: skip
        if row.no_tab:
            self.add("no-tab", row.number)
        usable = not row.faults and not row.no_tab and not self._is_empty(row, forms)
        self._usable.append(usable)
        if usable:
            self._look_at_texts(row, forms)
            self._measure(row)

    def _is_empty(self, row: Row, forms: tuple[str, str]) -> bool:
        sides: tuple[Side, Side] = ("source", "target")
        for side, text, form in zip(sides, (row.source, row.target), forms, strict=True):
            if not form:
                detail = f"the {side} is empty"
                if text.strip():
                    detail = f"the {side} holds invisible characters only"
                if text.strip() and side == "target":
                    detail += ", which training would learn"
                    self._learned_invisible += 1
                self.add("empty", row.number, detail=detail)
                return True
        return False

    def _look_at_texts(self, row: Row, forms: tuple[str, str]) -> None:
        self.characters.add(forms[0], row.number)
        self.characters.add(normalize_target(row.target), row.number)
        for kind, detail in oddities(row.source):
            self.add(kind, row.number, side="source", detail=detail)
        for kind, detail in oddities(row.target):
            self.add(kind, row.number, side="target", detail=detail)
        if forms[0] == forms[1] and any(map(str.isalpha, forms[0])):
            self.add("copy", row.number)

    def _measure(self, row: Row) -> None:
        """Lengths in tokens, or what words and characters say about them."""
        if self.tokenizer is not None:
            self._measure_tokens(row.number, row.source, row.target, self.tokenizer)
            return
        if self._held is not None:
            self._held[0].append(row.number)
            self._held[1].append((row.source, row.target))
            if len(self._held[1]) > MOST_TO_TRAIN_ON:
                self._held = None
        limits = self.options.max_source, self.options.max_target
        for text, limit in zip((row.source, row.target), limits, strict=True):
            if len(text) < limit:
                continue
            words = sum(map(bool, text.split(" "))) + 1
            if words > limit:
                self._bounds.append(("overlong", row.number, f"at least {words} tokens"))
                return
            wide = sum(char >= "\u0e00" for char in text)
            pieces = round((len(text) - wide) / _LETTERS_A_PIECE + wide / _WIDE_A_PIECE) + 1
            if pieces > limit:
                self._bounds.append(("maybe-overlong", row.number, f"about {pieces} tokens"))
                return

    def _measure_tokens(self, line: int, source: str, target: str, tokenizer: Tokenizer) -> None:
        lengths = len(tokenizer.encode_source(source)), len(tokenizer.encode_target(target))
        if lengths[0] > self.options.max_source or lengths[1] > self.options.max_target:
            self.add("overlong", line, detail=f"{lengths[0]} and {lengths[1]} tokens")

    def train_tokenizer(self) -> tuple[Tokenizer | None, str]:
        """The one that training would make of this split, where that is quick; and what to call it,
        or what stands in for it."""
        if self._held is None:
            return None, (
                f"counts of words and characters: more than {MOST_TO_TRAIN_ON:,} pairs are too "
                f"many to train a vocabulary in passing, of which {self.options.pieces} pieces are "
                "assumed"
            )
        lines, pairs = self._held
        self._held = None
        if not pairs:
            return None, "nothing: no pair to train a vocabulary on"
        try:
            tokenizer = Tokenizer(train_tokenizer(pairs, self.options.pieces))
        except DataError as error:
            self.add("vocabulary", 0, detail=str(error))
            return None, "counts of words: no vocabulary could be trained"
        for line, (source, target) in zip(lines, pairs, strict=True):
            self._measure_tokens(line, source, target, tokenizer)
        self._bounds.clear()
        self.tokenizer = tokenizer
        return tokenizer, f"the vocabulary of {tokenizer.size} pieces that training would make"

    def finish(self, tokenizer: Tokenizer | None, train: CharacterCounts | None) -> None:
        """What only the whole split tells."""
        for kind, line, detail in self._bounds:
            self.add(kind, line, detail=detail)
        usable = np.frombuffer(self._usable, dtype=np.int8).astype(np.bool_)
        source, target = (side.finish() for side in self._sides)
        self.columns = Columns(source=source, target=target, usable=usable)
        overlong = self._findings.get(("overlong", None, None))
        report = self.report
        report.exact = self.tokenizer is not None
        report.usable = int(usable.sum()) + self._learned_invisible
        report.usable -= len(overlong.lines) if overlong else 0
        if report.pairs and not report.usable:
            self.add(
                "no-pairs",
                0,
                detail=f"none of the {report.pairs:,} pairs is one that training uses",
            )
        self._find_repeats()
        self._find_odd_lengths()
        self._find_scripts()
        self._find_slips()
        self._find_missing(tokenizer, train)

    def _find_repeats(self) -> None:
        for kind, (places, firsts) in (
            ("duplicate", self.columns.repeated_pairs()),
            ("several-targets", self.columns.other_targets()),
        ):
            for place, first in zip(places.tolist(), firsts.tolist(), strict=True):
                self.add(kind, place + 1, detail=f"as in line {first + 1}")

    def _find_odd_lengths(self) -> None:
        places, ratios = self.columns.odd_ratios()
        for place, ratio in zip(places.tolist(), ratios.tolist(), strict=True):
            times, side = (ratio, "target") if ratio > 1 else (1 / ratio, "source")
            self.add("length-ratio", place + 1, detail=f"the {side} is {times:.1f} times too long")

    def _find_scripts(self) -> None:
        usable = self.columns.usable
        for side, columns in (("source", self.columns.source), ("target", self.columns.target)):
            main = columns.main_script()
            name: Side = "source" if side == "source" else "target"
            self.report.scripts[name] = main
            for place in columns.in_another_script(main).tolist():
                if place < len(usable) and usable[place]:
                    own = columns.script_names[columns.scripts[place]]
                    self.add(
                        "wrong-script", place + 1, side=name, detail=f"{own}, the others {main}"
                    )

    def _find_slips(self) -> None:
        alignment = find_slips(self.columns.source, self.columns.target)
        if not alignment.related:
            self.add(
                "unrelated", 0,
                detail="nothing ties source to target: neither lengths nor numbers, punctuation or "
                "names; are these files of one corpus, in one order?",
            )  # fmt: skip
        for slip in alignment.slips:
            finding = self._findings.setdefault(
                ("misaligned", None, None), Finding(kind="misaligned")
            )
            finding.lines.extend(range(slip.first, slip.last + 1))
            finding.details[slip.first] = slip.describe()

    def _find_missing(self, tokenizer: Tokenizer | None, train: CharacterCounts | None) -> None:
        if tokenizer is not None:
            missing = missing_from_tokenizer(self.characters.first, tokenizer)
        elif train is not None and train.texts and not self._lacks_vocabulary():
            try:
                missing = missing_if_trained(self.characters.first, train, self.options.pieces)
            except DataError as error:
                if self.files.split == "train":
                    self.add("vocabulary", 0, detail=str(error))
                return
        else:
            return
        listed = list_missing(
            self.characters, missing, None if self.files.split == "train" else train
        )
        if not listed:
            return
        self.report.missing_characters = listed
        count, total = sum(each.count for each in listed), self.characters.counts.total()
        self.add(
            "missing-characters", 0,
            detail=f"{count:,} of {total:,} characters of the text, {len(listed):,} different "
            "ones, have no piece of their own in the vocabulary",
        )  # fmt: skip

    def _lacks_vocabulary(self) -> bool:
        return ("vocabulary", None, None) in self._findings

    def add_examples(self) -> None:
        """Puts the findings into the report, with the texts of their first lines."""
        findings = self.report.findings = list(self._findings.values())
        wanted = {line for finding in findings for line in finding.details if line}
        rows = fetch(self.files, wanted)
        for finding in findings:
            for line, detail in finding.details.items():
                if row := rows.get(line):
                    finding.examples.append(self._example(finding, row, detail))

    def _example(self, finding: Finding, row: Row, detail: str) -> Example:
        file = "" if finding.side is None else str(self.files.path(finding.side))
        return Example(
            line=row.number,
            file=file or str(self.files.source if len(self.files.paths) == 1 else ""),
            source=row.source if finding.side != "target" else "",
            target=row.target if finding.side != "source" else "",
            detail=detail,
        )


def _find_leaks(checks: Sequence[_SplitCheck]) -> None:
    """What is in two splits; told of the earlier one of them."""
    for position, mine in enumerate(checks):
        for theirs in checks[position + 1 :]:
            pairs = mine.columns.shared_with(theirs.columns, pairs=True)
            sources = mine.columns.shared_with(theirs.columns, pairs=False)
            alone = ~np.isin(sources[0], pairs[0])
            for kind, (places, others) in (
                ("leak", pairs),
                ("leak-source", (sources[0][alone], sources[1][alone])),
            ):
                if not len(places):
                    continue
                other = theirs.files.split
                finding = Finding(kind=kind, other=other, lines=array("q", (places + 1).tolist()))
                for place, line in list(zip(places.tolist(), others.tolist(), strict=True))[
                    : mine.options.examples
                ]:
                    finding.details[place + 1] = f"line {line + 1} of {other}"
                mine.add_finding(finding)
