"""The embedded corpus: parallel phrases from CLDR, English to German, French or Chinese.

`make` draws phrases family by family (see `families`), says each in both languages, and holds some
out as validation, calibration and test splits. Needs no download: the text comes from Babel (CLDR)
and unicode-rbnf alone, and is the same on every machine for the same seed and versions.
`phrase_files` writes a corpus to a directory and reads it again.
"""

from __future__ import annotations

import functools
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal, get_args

from model.corpora import cldr
from model.corpora.families import FAMILIES, Meaning
from model.errors import DataError
from runtime.errors import OptionError
from runtime.numbers import is_whole, shown

Target = Literal["de", "fr", "zh"]
Split = Literal["train", "valid", "calibration", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)
HELD_OUT: tuple[Split, ...] = ("valid", "calibration", "test")

GENERATOR = 1
"""Raised with every change to what the same parameters give: stored corpora are then made again."""

_SOURCE_LANGUAGE = "en"
_FEWEST_TRAIN = 1500
_FEWEST_HELD_OUT = 50  # fewer, and a family's share could fall below 5%
_PATIENCE = 20_000  # draws in a row that gave nothing new, after which a family is used up


@dataclass(frozen=True, kw_only=True)
class Phrase:
    """One example. `source` is NFC with U+0020 as its only space; `target` is NFC, else CLDR's."""

    source: str
    target: str
    family: str


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """What decides a corpus, together with the versions of the libraries.

    target: the language translated into; the source is English.
    pairs: phrases in the train split; valid, calibration, test: phrases held out.
    seed: another seed draws other phrases and holds out others.
    Raises OptionError for a language, a size or a seed that cannot be used.
    """

    target: Target = "de"
    pairs: int = 30_000
    valid: int = 500
    calibration: int = 500
    test: int = 1_000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.target not in get_args(Target):
            raise OptionError(
                f"target language is {self.target!r}; expected one of {', '.join(get_args(Target))}"
            )
        lowest = {"pairs": _FEWEST_TRAIN, "seed": 0}
        for name in ("pairs", "valid", "calibration", "test", "seed"):
            value, low = getattr(self, name), lowest.get(name, _FEWEST_HELD_OUT)
            if not is_whole(value, low):
                raise OptionError(
                    f"{name} is {shown(value)}; expected a whole number of at least {low} and "
                    "below 2**63"
                )

    def size(self, split: Split) -> int:
        size: int = getattr(self, "pairs" if split == "train" else split)
        return size


@dataclass(frozen=True, kw_only=True)
class PhraseCorpus:
    """The splits of one corpus, disjoint in their sources, and what they were made from."""

    parameters: Parameters
    splits: Mapping[Split, Sequence[Phrase]]
    versions: Mapping[str, str] = field(default_factory=cldr.versions)

    def pairs(self, split: Split) -> list[tuple[str, str]]:
        """(source, target) of every phrase in a split."""
        return [(phrase.source, phrase.target) for phrase in self.splits[split]]

    def family_counts(self, split: Split) -> dict[str, int]:
        """Family -> number of its phrases in a split."""
        return dict(sorted(Counter(phrase.family for phrase in self.splits[split]).items()))


def make(
    target: Target = "de",
    pairs: int = 30_000,
    *,
    valid: int = 500,
    calibration: int = 500,
    test: int = 1_000,
    seed: int = 0,
) -> PhraseCorpus:
    """Make a corpus; see `Parameters` for the arguments.

    Every family has an equal share of every split. No source occurs twice. A held-out phrase occurs
    nowhere else, but every CLDR name in it occurs in the train split, in the same form.
    Raises OptionError for arguments that cannot be used, DataError where a family has too few
    different phrases for the size asked for.
    """
    parameters = Parameters(
        target=target, pairs=pairs, valid=valid, calibration=calibration, test=test, seed=seed
    )
    shares = {split: _shares(parameters.size(split)) for split in SPLITS}
    splits: dict[Split, list[Phrase]] = {split: [] for split in SPLITS}
    taken: set[str] = set()
    for family in FAMILIES:
        wanted = {split: shares[split][family] for split in SPLITS}
        drawn = _draw(family, parameters, sum(wanted.values()), taken)
        for split, phrases in _split(family, drawn, wanted).items():
            splits[split] += phrases
    for split in SPLITS:
        Random(f"{seed} {split} order").shuffle(splits[split])
    return PhraseCorpus(parameters=parameters, splits=splits)


def _shares(size: int) -> dict[str, int]:
    """A split's size over the families, as evenly as it goes."""
    each, left = divmod(size, len(FAMILIES))
    return {family: each + (place < left) for place, family in enumerate(FAMILIES)}


def _draw(
    family: str, parameters: Parameters, count: int, taken: set[str]
) -> list[tuple[Phrase, Meaning]]:
    """`count` phrases of a family whose sources are new to `taken`, which gets them."""
    # Seeded with text, which random hashes with SHA-512: the same in every process.
    random = Random(f"{parameters.seed} {family}")
    source_language, target_language = _language(_SOURCE_LANGUAGE), _language(parameters.target)
    drawn: list[tuple[Phrase, Meaning]] = []
    idle = 0
    while len(drawn) < count:
        meaning = FAMILIES[family](random)
        source = _plain(meaning.say(source_language))
        if source in taken:
            idle += 1
            if idle == _PATIENCE:
                raise DataError(
                    f"the phrases of family {family!r} are used up: found {len(drawn)} different "
                    f"ones, expected {count} for {parameters.pairs} pairs; ask for fewer pairs"
                )
            continue
        idle = 0
        taken.add(source)
        target = unicodedata.normalize("NFC", meaning.say(target_language))
        drawn.append((Phrase(source=source, target=target, family=family), meaning))
    random.shuffle(drawn)  # short numbers are drawn first, and are used up first
    return drawn


def _split(
    family: str, drawn: Sequence[tuple[Phrase, Meaning]], wanted: Mapping[Split, int]
) -> dict[Split, list[Phrase]]:
    """Hold phrases out as long as each of their names is left in the train split."""
    left = Counter(name for _, meaning in drawn for name in set(meaning.names))
    splits: dict[Split, list[Phrase]] = {split: [] for split in SPLITS}
    places = [split for split in HELD_OUT for _ in range(wanted[split])]
    for phrase, meaning in drawn:
        names = set(meaning.names)
        if places and all(left[name] > 1 for name in names):
            left.subtract(names)
            splits[places.pop()].append(phrase)
        else:
            splits["train"].append(phrase)
    if places:
        raise DataError(
            f"family {family!r} cannot hold out {sum(wanted[split] for split in HELD_OUT)} of "
            f"{len(drawn)} phrases and keep each of their names in training; ask for more pairs"
        )
    return splits


@functools.cache
def _language(code: str) -> cldr.Language:
    return cldr.Language(code)


def _plain(text: str) -> str:
    """NFC, every space a U+0020: what the source normalizer would make of it."""
    spaced = "".join(" " if unicodedata.category(char) == "Zs" else char for char in text)
    return unicodedata.normalize("NFC", spaced)
