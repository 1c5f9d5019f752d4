"""What was found in a corpus: values, their JSON, and a text to read."""

from __future__ import annotations

import textwrap
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from model.data_check.characters import MissingCharacter
from model.data_check.kinds import KINDS, Severity, Side
from model.data_check.texts import shown
from model.training.recipe import Split
from runtime.version import __version__

FORMAT = "leanseq-data-check"
SCHEMA = 1
_WIDTH = 100
_INDENT = " " * 11
_SHOWN_RANGES = 5
_SHOWN_CHARACTERS = 12
_ORDER: dict[Severity, int] = {"error": 0, "warning": 1, "note": 2}


@dataclass(frozen=True, kw_only=True)
class Example:
    """A line that something was found in. file: where; text: the line, source and target; detail:
    what exactly was seen."""

    line: int
    file: str = ""
    source: str = ""
    target: str = ""
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if value != ""}


@dataclass(kw_only=True)
class Finding:
    """One kind of thing, found in one split.

    side: the side it is on; None: in the pair. other: the split that a leak leads to. lines: where,
    in order, from 1; empty for what is found in a file as a whole. details: of the first lines what
    exactly was seen; under 0 what is said of the whole. examples: filled in at the end.
    """

    kind: str
    side: Side | None = None
    other: Split | None = None
    lines: array[int] = field(default_factory=lambda: array("q"))
    details: dict[int, str] = field(default_factory=dict)
    examples: list[Example] = field(default_factory=list)

    @property
    def severity(self) -> Severity:
        return KINDS[self.kind].severity_on(self.side)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "severity": self.severity,
            "what": KINDS[self.kind].text,
            "side": self.side,
            "other": self.other,
            "count": len(self.lines),
            "lines": ranges(self.lines),
            **({"detail": self.details[0]} if 0 in self.details else {}),
            "examples": [example.to_json() for example in self.examples],
        }


@dataclass(kw_only=True)
class SplitReport:
    """One split. pairs: lines with both sides. usable: how many of them training takes; at most
    that many where `exact` is False, because token counts are not known. scripts: what nearly all
    lines of each side are written in."""

    split: Split
    files: tuple[str, ...]
    pairs: int = 0
    usable: int = 0
    exact: bool = True
    scripts: dict[Side, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    missing_characters: list[MissingCharacter] = field(default_factory=list)

    def sorted_findings(self) -> list[Finding]:
        """Errors first, then warnings, then notes."""
        return sorted(self.findings, key=lambda finding: _ORDER[finding.severity])

    def count(self, severity: Severity) -> int:
        return sum(finding.severity == severity for finding in self.findings)

    def of_kind(self, kind: str) -> list[Finding]:
        return [finding for finding in self.findings if finding.kind == kind]

    def to_json(self) -> dict[str, Any]:
        return {
            "files": list(self.files),
            "pairs": self.pairs,
            "usable": self.usable,
            "exact": self.exact,
            "scripts": dict(self.scripts),
            "findings": [finding.to_json() for finding in self.sorted_findings()],
            "missing_characters": [each.to_json() for each in self.missing_characters],
        }


@dataclass(frozen=True, kw_only=True)
class Report:
    """All splits. tokenizer: which one lengths and characters were checked with, in words."""

    tokenizer: str
    max_source: int
    max_target: int
    splits: tuple[SplitReport, ...]

    def count(self, severity: Severity) -> int:
        """Findings of that severity: kinds in a split, not lines."""
        return sum(split.count(severity) for split in self.splits)

    def to_json(self) -> dict[str, Any]:
        """Line numbers are ranges, [first, last] each."""
        return {
            "format": FORMAT,
            "schema": SCHEMA,
            "leanseq": __version__,
            "tokenizer": self.tokenizer,
            "max_source": self.max_source,
            "max_target": self.max_target,
            "errors": self.count("error"),
            "warnings": self.count("warning"),
            "notes": self.count("note"),
            "splits": {split.split: split.to_json() for split in self.splits},
        }

    def render(self) -> str:
        """For people: each split, its findings with their first lines, and the sum."""
        lines = []
        for split in self.splits:
            lines += [*_render_split(split), ""]
        lines += textwrap.wrap(
            f"lengths and characters checked with: {self.tokenizer}; at most {self.max_source} "
            f"source and {self.max_target} target tokens",
            _WIDTH,
        )
        counts = [
            f"{count} {severity}{'s' if count != 1 else ''}"
            for severity in _ORDER
            if (count := self.count(severity))
        ]
        lines.append(", ".join(counts) if counts else "nothing found")
        return "\n".join(lines)


def ranges(lines: Iterable[int]) -> list[list[int]]:
    """[first, last] of each run of numbers that follow each other."""
    runs: list[list[int]] = []
    for line in lines:
        if runs and runs[-1][1] == line - 1:
            runs[-1][1] = line
        else:
            runs.append([line, line])
    return runs


def show_ranges(lines: Iterable[int], most: int = _SHOWN_RANGES) -> str:
    """The first of them: "3, 5-9, 12, ..."."""
    runs = ranges(lines)
    parts = [f"{first}" if first == last else f"{first}-{last}" for first, last in runs[:most]]
    return ", ".join([*parts, "..."] if len(runs) > most else parts)


def _render_split(split: SplitReport) -> list[str]:
    usable = f"{'' if split.exact else 'at most '}{split.usable:,}"
    scripts = ", ".join(f"{side} {name.title()}" for side, name in split.scripts.items() if name)
    lines = [
        f"{split.split}: {' and '.join(split.files)}",
        f"  {split.pairs:,} pairs, of which training can use {usable}"
        + (f"; {scripts}" if scripts else ""),
    ]
    for finding in split.sorted_findings():
        lines += _render_finding(finding, split)
    return lines


def _render_finding(finding: Finding, split: SplitReport) -> list[str]:
    where = f" ({finding.side})" if finding.side else f" ({finding.other})" if finding.other else ""
    head = f"  {finding.severity:8} {finding.kind}{where}:"
    text = KINDS[finding.kind].text
    if finding.lines:
        count = len(finding.lines)
        text = f"{count:,} line{'s' if count > 1 else ''}: {text}; {show_ranges(finding.lines)}"
    if 0 in finding.details:
        text = finding.details[0] if not finding.lines else f"{text}; {finding.details[0]}"
    lines = textwrap.wrap(
        f"{head} {text}", _WIDTH, subsequent_indent=_INDENT, break_on_hyphens=False
    )
    if finding.kind == "missing-characters":
        return lines + _render_characters(split.missing_characters)
    for example in finding.examples:
        sides = {"source": (example.source,), "target": (example.target,)}
        texts = sides.get(finding.side or "", (example.source, example.target))
        quoted = " | ".join(f'"{shown(text)}"' for text in texts)
        detail = f" ({example.detail})" if example.detail else ""
        file = f"{example.file}, " if example.file and finding.severity == "error" else ""
        lines.append(f"{_INDENT}{file}line {example.line}: {quoted}{detail}")
    return lines


def _render_characters(missing: Sequence[MissingCharacter]) -> list[str]:
    lines = []
    for each in missing[:_SHOWN_CHARACTERS]:
        seen = "" if each.in_train is None else f", {_times(each.in_train)} in train"
        lines.append(
            f"{_INDENT}{shown(each.char)} {each.name}: {_times(each.count)}{seen}; first in line "
            f"{each.line}; spelt as {each.spelling}"
        )
    if len(missing) > _SHOWN_CHARACTERS:
        lines.append(f"{_INDENT}and {len(missing) - _SHOWN_CHARACTERS:,} more")
    return lines


def _times(count: int) -> str:
    return {0: "never", 1: "once"}.get(count, f"{count:,} times")
