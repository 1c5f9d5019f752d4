"""Duplicates, leaks and odd lengths, found from a few numbers of every line."""

from __future__ import annotations

import numpy as np

from model.data_check.columns import Columns, GrowingSide
from runtime.normalizer import normalize_source


def columns(pairs: list[tuple[str, str]], unusable: tuple[int, ...] = ()) -> Columns:
    sides = GrowingSide(), GrowingSide()
    for pair in pairs:
        for side, text in zip(sides, pair, strict=True):
            side.add(text, normalize_source(text))
    usable = np.array([place not in unusable for place in range(len(pairs))])
    return Columns(source=sides[0].finish(), target=sides[1].finish(), usable=usable)


def as_lists(found: tuple[np.ndarray, ...]) -> tuple[list[int], ...]:
    return tuple(array.tolist() for array in found)


def test_repeated_pairs_after_the_first() -> None:
    found = columns([("a", "x"), ("b", "y"), ("a", "x"), ("a ", " x"), ("b", "z"), ("a", "x")])
    assert as_lists(found.repeated_pairs()) == ([2, 3, 5], [0, 0, 0])


def test_other_targets_are_no_repeats() -> None:
    found = columns([("a", "x"), ("a", "y"), ("a", "x"), ("a", "y"), ("b", "x")])
    assert as_lists(found.repeated_pairs()) == ([2, 3], [0, 1])
    assert as_lists(found.other_targets()) == ([1], [0])


def test_what_is_not_usable_is_no_repeat() -> None:
    found = columns([("a", "x"), ("a", "x"), ("a", "x")], unusable=(0,))
    assert as_lists(found.repeated_pairs()) == ([2], [1])


def test_shared_pairs_and_sources() -> None:
    train = columns([("a", "x"), ("b", "y"), ("c", "z"), ("d", "v")], unusable=(3,))
    test = columns([("q", "x"), ("c", "other"), ("b", "y"), ("b", "y"), ("d", "v")])
    assert as_lists(train.shared_with(test, pairs=True)) == ([1], [2])
    assert as_lists(train.shared_with(test, pairs=False)) == ([1, 2], [2, 1])


def test_odd_ratios_are_measured_against_the_corpus() -> None:
    pairs = [("abc " * n, "x" * n) for n in range(1, 40)]  # the target has a fourth of the length
    pairs += [("abc " * 20, "x" * 75), ("abc " * 20, "x" * 2)]
    places, ratios = columns(pairs).odd_ratios()
    assert places.tolist() == [39, 40]
    assert ratios[0] > 3
    assert ratios[1] < 1 / 3
    assert columns([]).odd_ratios()[0].tolist() == []


def test_scripts_of_a_side() -> None:
    side = columns([("a", "\u4f60")] * 20 + [("a", "ok"), ("a", "1")]).target
    assert side.main_script() == "HAN"
    assert side.in_another_script("HAN").tolist() == [20]
    assert columns([("a", "\u4f60"), ("a", "ok")]).target.main_script() == ""
    assert side.in_another_script("").tolist() == []
    assert side.in_another_script("GREEK").tolist() == list(range(21))
