"""The characters without a piece: of a tokenizer at hand, and as training would make one."""

from __future__ import annotations

import random

import pytest
from support.tiny_tokenizer import tiny_tokenizer, train_proto

from model.data_check.characters import (
    CharacterCounts,
    list_missing,
    missing_from_tokenizer,
    missing_if_trained,
)
from model.errors import DataError
from model.tokenizer_training import train_tokenizer
from runtime.normalizer import normalize_source, normalize_target
from runtime.tokenizer import Tokenizer


def count(pairs: list[tuple[str, str]]) -> CharacterCounts:
    counts = CharacterCounts()
    for number, (source, target) in enumerate(pairs, 1):
        counts.add(normalize_source(source), number)
        counts.add(normalize_target(target), number)
    return counts


def rare_characters(alphabet: int, lines: int) -> list[tuple[str, str]]:
    """Words of letters, and Chinese characters as rare as in text (Zipf)."""
    rng = random.Random(5)
    weights = [1 / (rank + 1) for rank in range(alphabet)]
    return [
        (
            f"{rng.choice('abcdefg')}{rng.choice('uvwx')} number {number}",
            "".join(chr(0x4E00 + c) for c in rng.choices(range(alphabet), weights, k=12)),
        )
        for number in range(lines)
    ]


@pytest.mark.parametrize(
    ("alphabet", "lines", "pieces"), [(50, 300, 420), (900, 1500, 900), (2000, 1500, 1500)]
)
def test_what_training_would_miss_is_known_without_training(
    alphabet: int, lines: int, pieces: int
) -> None:
    pairs = rare_characters(alphabet, lines)
    counts = count(pairs)
    tokenizer = Tokenizer(train_tokenizer(pairs, pieces))
    found = missing_from_tokenizer(counts.first, tokenizer)
    assert missing_if_trained(counts.first, counts, pieces) == found
    assert bool(found) == (alphabet > 100)


def test_characters_that_do_not_fit_are_an_error_as_in_training() -> None:
    pairs = rare_characters(2000, 1500)
    counts = count(pairs)
    with pytest.raises(DataError, match=r"vocab_size 500 is too small: .* need (\d+)") as predicted:
        missing_if_trained(counts.first, counts, 500)
    with pytest.raises(DataError, match=r"vocab_size 500 is too small") as trained:
        train_tokenizer(pairs, 500)
    assert str(predicted.value) == str(trained.value)


def test_spelling_of_what_is_missing() -> None:
    found = missing_from_tokenizer("a\u732b\u00fc \U0001f600", tiny_tokenizer())
    assert found == {"\u732b": "3 bytes", "\u00fc": "2 bytes", "\U0001f600": "4 bytes"}
    without_bytes = Tokenizer(train_proto(byte_fallback=False))
    assert missing_from_tokenizer("a\u732b", without_bytes) == {"\u732b": "<unk>"}


def test_missing_characters_are_listed_with_their_first_line() -> None:
    train, test = count([("abc", "x")]), count([("a", "b"), ("\u732b", "\u732b\u00fc"), ("c", "b")])
    listed = list_missing(test, {"\u732b": "3 bytes", "\u00fc": "2 bytes", "q": "1 byte"}, train)
    assert [(each.char, each.count, each.line, each.in_train) for each in listed] == [
        ("\u732b", 2, 2, 0),
        ("\u00fc", 1, 2, 0),
    ]
    assert listed[0].name == "U+732B CJK UNIFIED IDEOGRAPH-732B"
    assert list_missing(test, {"\u732b": "3 bytes"}, None)[0].in_train is None
