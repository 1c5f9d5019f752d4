"""What can be found in a corpus, and how bad each of it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]
Side = Literal["source", "target"]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of finding.

    severity: error: training fails on it. warning: training leaves the pair out, or learns or is
    measured wrong because of it. note: harmless, but worth knowing. source: the severity on the
    source side, where the normalizer mends what it leaves on the target side; None: the same.
    per_line: it is found in lines, which can be dropped.
    """

    severity: Severity
    text: str
    source: Severity | None = None
    per_line: bool = True

    def severity_on(self, side: Side | None) -> Severity:
        return self.source if side == "source" and self.source is not None else self.severity


KINDS: dict[str, Kind] = {
    "unreadable": Kind(
        severity="error",
        per_line=False,
        text="the file is damaged; copy or download it again",
    ),
    "empty-file": Kind(
        severity="error", per_line=False, text="the file is empty; expected lines of text"
    ),
    "line-count": Kind(
        severity="error",
        per_line=False,
        text="the two files have different numbers of lines; line N of one must translate line N "
        "of the other",
    ),
    "no-pairs": Kind(
        severity="error", per_line=False, text="no pair is left that training could use"
    ),
    "vocabulary": Kind(
        severity="error", per_line=False, text="no vocabulary of that size can be trained"
    ),
    "not-utf8": Kind(severity="error", text="not UTF-8; convert the file, or drop these lines"),
    "no-tab": Kind(severity="error", text="no tab between source and target"),
    "misaligned": Kind(
        severity="warning", text="source and target have slipped: they don't belong together here"
    ),
    "unrelated": Kind(
        severity="warning",
        per_line=False,
        text="nothing ties source to target: are these files of one corpus, in one order?",
    ),
    "empty": Kind(severity="warning", text="no visible text on one side"),
    "overlong": Kind(severity="warning", text="longer than the model's positions: left out"),
    "maybe-overlong": Kind(
        severity="note", text="may be longer than the model's positions, by its characters"
    ),
    "duplicate": Kind(severity="warning", text="the same pair again"),
    "several-targets": Kind(severity="note", text="the same source with another target"),
    "leak": Kind(severity="warning", text="the same pair in two splits"),
    "leak-source": Kind(
        severity="warning", text="the same source in two splits, with another target"
    ),
    "length-ratio": Kind(
        severity="warning", text="one side is far longer than the other, for this corpus"
    ),
    "copy": Kind(severity="warning", text="the target is the source: not translated?"),
    "wrong-script": Kind(severity="warning", text="not in the script of nearly all other lines"),
    "mojibake": Kind(severity="warning", text="looks like UTF-8 that was read as something else"),
    "replacement": Kind(
        severity="warning", text="U+FFFD: characters were lost when the text was converted"
    ),
    "markup": Kind(severity="warning", text="HTML entities or tags"),
    "control": Kind(
        severity="warning",
        source="note",
        text="control or invisible characters; dropped in sources, learned in targets",
    ),
    "line-breaks": Kind(
        severity="warning",
        text="characters inside a line that other programs take for its end; lines may slip there",
    ),
    "spaces": Kind(
        severity="warning",
        source="note",
        text="tabs, doubled spaces or spaces at the ends; mended in sources, learned in targets",
    ),
    "unusual-spaces": Kind(
        severity="note",
        text="no-break and other unusual spaces; plain in sources, kept in targets",
    ),
    "missing-characters": Kind(
        severity="note",
        per_line=False,
        text="characters that have no piece of their own in the vocabulary",
    ),
    "byte-order-mark": Kind(
        severity="note",
        per_line=False,
        text="the file starts with a byte order mark; it is skipped",
    ),
    "line-ends": Kind(
        severity="note",
        per_line=False,
        text="lines end in CR LF, or some do; the CR is taken off",
    ),
}

CANNOT_BE_TRAINED_ON = ("not-utf8", "no-tab", "empty")
"""What a cleaned copy of any split lacks."""

DROPPED = (*CANNOT_BE_TRAINED_ON, "overlong", "duplicate", "leak")
"""What a cleaned copy of the training split lacks if nothing else is said."""

DROPPABLE = tuple(name for name, kind in KINDS.items() if kind.per_line)
