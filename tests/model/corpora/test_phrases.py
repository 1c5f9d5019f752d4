"""What a corpus promises: one target a source, disjoint splits, known names, equal shares."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from random import Random
from typing import Any, get_args

import pytest

from model.corpora import families, phrases
from model.corpora.cldr import Language
from model.corpora.families import Meaning
from model.corpora.phrases import HELD_OUT, SPLITS, Parameters, PhraseCorpus, Target
from model.errors import DataError
from runtime.errors import OptionError
from runtime.normalizer import normalize_source, normalize_target

SMALL: dict[str, Any] = {"pairs": 3000, "valid": 60, "calibration": 100, "test": 300}


@pytest.fixture(scope="module", params=get_args(Target))
def corpus(request: pytest.FixtureRequest) -> PhraseCorpus:
    return phrases.make(request.param, seed=1, **SMALL)


@pytest.fixture(scope="module")
def full() -> PhraseCorpus:
    """The corpus that is made by default."""
    return phrases.make()


def _digest(corpus: PhraseCorpus) -> str:
    text = repr([(split, corpus.splits[split]) for split in SPLITS])
    return hashlib.sha256(text.encode()).hexdigest()


def test_sizes_are_those_asked_for(corpus: PhraseCorpus, full: PhraseCorpus) -> None:
    assert [len(corpus.splits[split]) for split in SPLITS] == [3000, 60, 100, 300]
    assert [len(full.splits[split]) for split in SPLITS] == [30_000, 500, 500, 1_000]


def test_every_process_makes_the_same_corpus() -> None:
    code = (
        "from model.corpora import phrases; import hashlib\n"
        f"c = phrases.make('de', seed=1, **{SMALL!r})\n"
        "t = repr([(s, c.splits[s]) for s in phrases.SPLITS])\n"
        "print(hashlib.sha256(t.encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path), "LC_ALL": locale},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed, locale in (("1", "C"), ("2", "de_DE.UTF-8"))
    }
    assert digests == {_digest(phrases.make("de", seed=1, **SMALL))}


def test_another_seed_makes_another_corpus() -> None:
    one, two = (phrases.make("de", seed=seed, **SMALL) for seed in (1, 2))
    assert _digest(one) != _digest(two)
    held_out = [{pair for split in HELD_OUT for pair in c.pairs(split)} for c in (one, two)]
    assert len(held_out[0] & held_out[1]) < 0.3 * len(held_out[0])


def test_no_source_occurs_twice(corpus: PhraseCorpus, full: PhraseCorpus) -> None:
    for made in (corpus, full):
        counts = Counter(source for split in SPLITS for source, _ in made.pairs(split))
        assert set(counts.values()) == {1}


def test_every_family_has_its_share_of_every_split(
    corpus: PhraseCorpus, full: PhraseCorpus
) -> None:
    assert len(families.FAMILIES) >= 10
    for made in (corpus, full):
        for split in SPLITS:
            counts = made.family_counts(split)
            assert sorted(counts) == sorted(families.FAMILIES)
            assert min(counts.values()) >= 0.05 * len(made.splits[split])


def test_the_smallest_corpus_keeps_its_promises() -> None:
    for seed in range(10):
        made = phrases.make("de", 1500, valid=50, calibration=50, test=50, seed=seed)
        for split in SPLITS:
            assert min(made.family_counts(split).values()) >= 0.05 * len(made.splits[split])


def test_families_are_mixed_within_a_split(full: PhraseCorpus) -> None:
    first = [phrase.family for phrase in full.splits["train"][:100]]
    assert len(set(first)) >= 10


def test_sources_stand_as_the_normalizer_leaves_them(corpus: PhraseCorpus) -> None:
    for split in SPLITS:
        for source, target in corpus.pairs(split):
            assert normalize_source(source) == source
            assert normalize_target(target) == target
            assert len(target.splitlines()) == 1
            assert target.strip() == target != ""


def test_targets_keep_the_spaces_of_cldr(corpus: PhraseCorpus) -> None:
    targets = "".join(target for _, target in corpus.pairs("train"))
    found = {char for char in targets if unicodedata.category(char) == "Zs"}
    expected = {
        "de": {" ", "\xa0", "\u2009"},
        "fr": {" ", "\xa0", "\u2009", "\u202f"},
        "zh": {" ", "\u2009"},
    }
    assert found == expected[corpus.parameters.target]


def test_names_of_held_out_phrases_are_trained_on(corpus: PhraseCorpus, full: PhraseCorpus) -> None:
    for made in (corpus, full):
        trained = _names(source for source, _ in made.pairs("train"))
        for split in HELD_OUT:
            held_out = _names(source for source, _ in made.pairs(split))
            assert len(held_out) > 40
            assert not set(held_out) - set(trained)


def test_what_is_tested_is_trained_on_often(full: PhraseCorpus) -> None:
    trained = _names(source for source, _ in full.pairs("train"))
    held_out = _names(source for split in HELD_OUT for source, _ in full.pairs(split))
    assert len(held_out) > 200
    assert {name: trained[name] for name in held_out if trained[name] < 20} == {}


def _names(sources: Iterable[str]) -> Counter[str]:
    """How often the English names of the inventories stand in the sources, longest match first."""
    english = Language("en")
    names = {english.month(month) for month in range(1, 13)}
    names |= {english.weekday(day) for day in range(7)}
    names |= {english.territory(code) for code in families.TERRITORIES}
    names |= {english.language(code) for code in families.LANGUAGES}
    names |= {english.currency(code) for code in families.CURRENCIES}
    for number in (Decimal(1), Decimal(2)):
        names |= {english.unit(number, unit).split(" ", 1)[1] for unit in families.UNITS}
        names |= {english.money_name(number, code).split(" ", 1)[1] for code in families.CURRENCIES}
    longest_first = sorted(names, key=lambda name: (-len(name), name))
    pattern = re.compile(rf"\b({'|'.join(re.escape(name) for name in longest_first)})\b")
    return Counter(name for source in sources for name in pattern.findall(source))


_TAGE = {
    "second": ("Sekunde", "Sekunden"),
    "minute": ("Minute", "Minuten"),
    "hour": ("Stunde", "Stunden"),
    "day": ("Tag", "Tagen"),
    "week": ("Woche", "Wochen"),
    "month": ("Monat", "Monaten"),
    "year": ("Jahr", "Jahren"),
}


def test_german_relative_times_are_right(full: PhraseCorpus) -> None:
    """Against a second way to make them: the dative, by hand."""
    checked = 0
    for phrase in (phrase for split in SPLITS for phrase in full.splits[split]):
        if phrase.family != "relative-times":
            continue
        found = re.fullmatch(r"(in )?(\d+) ([a-z]+?)s?( ago)?", phrase.source)
        assert found
        future, number, unit, past = found.groups()
        assert bool(future) != bool(past)
        dative = _TAGE[unit][number != "1"]
        assert phrase.target == f"{'in' if future else 'vor'} {number} {dative}"
        checked += 1
    assert checked > 2000


def test_what_the_demo_says_is_a_phrase_of_the_corpus(full: PhraseCorpus) -> None:
    targets = dict(pair for split in SPLITS for pair in full.pairs(split))
    assert targets["in 3 days"] == "in 3 Tagen"


@pytest.mark.parametrize("family", list(families.FAMILIES))
def test_a_family_says_what_it_is_for(family: str) -> None:
    """The examples of a family's docstring are phrases that it draws, but for their names."""

    def shape(text: str) -> str:
        return re.sub(r"[A-Z]?[a-zü]+|\d+|[€$£¥]", "x", text)

    docstring = families.FAMILIES[family].__doc__
    assert docstring
    examples = {shape(example) for example in docstring.removesuffix(".").split("; ")}
    random, english = Random(3), Language("en")
    drawn = {
        shape(phrases._plain(families.FAMILIES[family](random).say(english))) for _ in range(3000)
    }
    assert examples <= drawn


def test_all_of_a_bounded_inventory_is_drawn() -> None:
    random = Random(5)
    names = {name for _ in range(3000) for name in families.units(random).names}
    assert {f"unit {unit} other" for unit in families.UNITS} <= names
    assert {f"unit {unit} one" for unit in families.UNITS} <= names


def _only(word: str, count: int) -> Any:
    """A family of `count` phrases, each with a name of its own."""

    def draw(random: Random) -> Meaning:
        number = random.randrange(count)
        return Meaning(say=lambda _: f"{word} {number}", names=(f"{word} {number}",))

    return draw


def test_a_family_that_is_used_up_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phrases, "FAMILIES", {"few": _only("few", 1000)})
    expected = (
        r"the phrases of family 'few' are used up: found 1000 different ones, expected 1650 for "
        r"1500 pairs; ask for fewer pairs"
    )
    with pytest.raises(DataError, match=expected):
        phrases.make("de", 1500, valid=50, calibration=50, test=50)


def test_names_that_would_leave_training_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phrases, "FAMILIES", {"lone": _only("lone", 10**6)})
    expected = r"family 'lone' cannot hold out 150 of 1650 phrases and keep each of their names"
    with pytest.raises(DataError, match=expected):
        phrases.make("de", 1500, valid=50, calibration=50, test=50)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"target": "es"}, "target language is 'es'; expected one of de, fr, zh"),
        ({"pairs": 100}, "pairs is 100; expected a whole number of at least 1500"),
        ({"valid": 49}, "valid is 49; expected a whole number of at least 50"),
        ({"calibration": 0}, "calibration is 0; expected a whole number of at least 50"),
        ({"test": 2.5}, "test is 2.5; expected a whole number of at least 50"),
        ({"test": True}, "test is True; expected a whole number of at least 50"),
        ({"seed": -1}, "seed is -1; expected a whole number of at least 0"),
    ],
)
def test_parameters_that_cannot_be_used_are_told(values: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        Parameters(**values)
