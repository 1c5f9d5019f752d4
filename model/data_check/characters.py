"""Characters that have no piece of their own in the vocabulary.

A vocabulary that leanseq trains spells them in bytes, two to four tokens that were hardly ever
trained; one that was made without byte fallback has only <unk> for them.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from model.errors import DataError
from model.tokenizer_training import NUM_CONTROL_AND_BYTES, character_coverage
from runtime.tokenizer import Tokenizer


class CharacterCounts:
    """How often each character occurs in texts, and in which line first."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.first: dict[str, int] = {}
        self.texts = 0

    def add(self, text: str, line: int) -> None:
        """text: as a normalizer leaves it."""
        self.texts += 1
        self.counts.update(text)
        for char in set(text).difference(self.first):
            self.first[char] = line


@dataclass(frozen=True, kw_only=True)
class MissingCharacter:
    """count: in the split. line: the first that it is in. in_train: how often it is in training
    text; None where there is none. spelling: "3 bytes" or "<unk>"."""

    char: str
    count: int
    line: int
    in_train: int | None
    spelling: str

    @property
    def name(self) -> str:
        """Code point and name in Unicode."""
        return f"U+{ord(self.char):04X} {unicodedata.name(self.char, '')}".rstrip()

    def to_json(self) -> dict[str, object]:
        return {
            "char": self.char,
            "name": self.name,
            "count": self.count,
            "line": self.line,
            "in_train": self.in_train,
            "spelling": self.spelling,
        }


def missing_from_tokenizer(chars: Iterable[str], tokenizer: Tokenizer) -> dict[str, str]:
    """Of these characters those without a piece, and how they are spelt instead."""
    missing = {}
    for char in chars:
        if char == " ":
            continue
        ids = tokenizer.encode_target(char)[:-1]
        pieces = tokenizer.pieces(ids)
        if tokenizer.special_ids.unk_id in ids:
            missing[char] = "<unk>"
        elif any(piece.startswith("<0x") and piece.endswith(">") for piece in pieces):
            missing[char] = _in_bytes(char)
    return missing


def missing_if_trained(chars: Iterable[str], train: CharacterCounts, pieces: int) -> dict[str, str]:
    """The same for the vocabulary of `pieces` that training would make of these counts, without
    making it. Raises DataError where the characters alone would not fit into it.
    """
    covered = _covered(train, pieces)
    least = NUM_CONTROL_AND_BYTES + len(covered)
    if least > pieces:
        raise DataError(
            f"vocab_size {pieces} is too small: 256 bytes, 4 control pieces and the characters of "
            f"the text need {least}; use --vocab-size {least} or above"
        )
    return {char: _in_bytes(char) for char in chars if char != " " and char not in covered}


def _covered(train: CharacterCounts, pieces: int) -> set[str]:
    """As SentencePiece chooses: the most frequent, until their share of the text is the coverage.

    It counts the space before every word, and one at the start of every line, as characters.
    """
    coverage = np.float32(character_coverage(train.counts, pieces))
    counts = Counter(train.counts)
    counts["\u2581"] += counts.pop(" ", 0) + train.texts
    total, done = counts.total(), 0
    covered: set[str] = set()
    for char, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if np.float32(done / total) >= coverage:
            break
        done += count
        covered.add(char)
    return covered


def list_missing(
    found: CharacterCounts, missing: Mapping[str, str], train: CharacterCounts | None
) -> list[MissingCharacter]:
    """Most frequent first."""
    listed = [
        MissingCharacter(
            char=char,
            count=found.counts[char],
            line=found.first[char],
            in_train=None if train is None else train.counts[char],
            spelling=spelling,
        )
        for char, spelling in missing.items()
        if char in found.counts
    ]
    return sorted(listed, key=lambda each: (-each.count, each.char))


def _in_bytes(char: str) -> str:
    count = len(char.encode("utf-8", "replace"))
    return "1 byte" if count == 1 else f"{count} bytes"
