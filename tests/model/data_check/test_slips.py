"""Slips are planted in the embedded corpus: each is found where it is, and none where none is."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from model.corpora import phrases
from model.data_check.columns import GrowingSide, SideColumns
from model.data_check.slips import LEAST_LINES, Alignment, Slip, find_slips

Texts = list[str]


@pytest.fixture(scope="module", params=["de", "zh"])
def sides(request: pytest.FixtureRequest) -> tuple[Texts, Texts]:
    """Two thousand aligned phrases."""
    pairs = phrases.make(request.param, 3000).pairs("train")[:2000]
    assert len(pairs) == 2000
    return [source for source, _ in pairs], [target for _, target in pairs]


def columns(texts: Sequence[str]) -> SideColumns:
    side = GrowingSide()
    for text in texts:
        side.add(text, text)
    return side.finish()


def find(source: Sequence[str], target: Sequence[str]) -> Alignment:
    return find_slips(columns(source), columns(target))


def assert_slips(found: Alignment, expected: list[tuple[int, int, int | None]]) -> None:
    """(first, last, shift) of each, give or take three lines."""
    assert found.related
    assert [slip.shift for slip in found.slips] == [shift for _, _, shift in expected]
    for slip, (first, last, _) in zip(found.slips, expected, strict=True):
        assert slip.first == pytest.approx(first, abs=3)
        assert slip.last == pytest.approx(last, abs=3)


@pytest.mark.parametrize("lines", [2000, 600, 250, LEAST_LINES])
def test_aligned_lines_have_no_slip(sides: tuple[Texts, Texts], lines: int) -> None:
    assert find(sides[0][:lines], sides[1][:lines]) == Alignment()


@pytest.mark.parametrize("at", [3, 700, 1940])
def test_a_line_that_the_target_lacks(sides: tuple[Texts, Texts], at: int) -> None:
    source, target = sides
    found = find(source, target[:at] + target[at + 1 :])
    assert_slips(found, [(1 if at < 5 else at + 1, 2000, -1)])


@pytest.mark.parametrize("at", [700, 1940])
def test_a_line_that_the_source_lacks(sides: tuple[Texts, Texts], at: int) -> None:
    source, target = sides
    assert_slips(find(source[:at] + source[at + 1 :], target), [(at + 1, 1999, 1)])


def test_a_line_too_many_with_equal_numbers_of_lines(sides: tuple[Texts, Texts]) -> None:
    source, target = sides
    found = find(source, [*target[:400], "etwas", *target[400:-1]])
    assert_slips(found, [(401, 2000, 1)])


def test_slips_add_up(sides: tuple[Texts, Texts]) -> None:
    source, target = sides
    found = find(source, target[:500] + target[501:1000] + target[1002:])
    assert_slips(found, [(501, 1000, -1), (1001, 2000, -3)])


def test_a_slip_that_is_mended_later(sides: tuple[Texts, Texts]) -> None:
    source, target = sides
    found = find(source, target[:500] + target[501:900] + ["etwas"] + target[900:])
    assert_slips(found, [(501, 900, -1)])


def test_all_lines_are_shifted(sides: tuple[Texts, Texts]) -> None:
    source, target = sides
    assert_slips(find(source, ["de", *target[:-1]]), [(1, 2000, 1)])


def test_a_part_in_another_order(sides: tuple[Texts, Texts]) -> None:
    source, target = sides
    mixed = target[800:1200]
    random.Random(1).shuffle(mixed)
    assert_slips(find(source, target[:800] + mixed + target[1200:]), [(801, 1200, None)])


def test_a_part_of_another_kind_is_no_slip(sides: tuple[Texts, Texts]) -> None:
    source, target = sides
    wordy = [f"{text} , {text} und so weiter" for text in target[800:1200]]
    assert find(source, target[:800] + wordy + target[1200:]).slips == ()


def test_files_that_have_nothing_to_do_with_each_other(sides: tuple[Texts, Texts]) -> None:
    source, target = sides
    mixed = target[:]
    random.Random(1).shuffle(mixed)
    assert find(source, mixed) == Alignment(related=False)


def test_few_lines_say_nothing(sides: tuple[Texts, Texts]) -> None:
    few = LEAST_LINES - 1
    assert find(sides[0][:few], sides[1][1:][:few]) == Alignment()


def test_lines_that_are_all_equal_say_nothing() -> None:
    assert find(["a"] * 300, ["x"] * 300).slips == ()


def test_a_slip_says_what_happened() -> None:
    slip = Slip(first=1501, last=2000, shift=-1, nats=99.0)
    assert slip.describe() == (
        "from line 1,501 on (to 2,000), line N of the source seems to go with line N-1 of the "
        "target: the target lacks 1 line before, or the source has as many too many"
    )
    assert "the source lacks 2 lines" in Slip(first=1, last=9, shift=2, nats=9.0).describe()
    assert "another order" in Slip(first=1, last=9, shift=None, nats=9.0).describe()
