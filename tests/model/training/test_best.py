from __future__ import annotations

import dataclasses

import pytest

from model.training.best import Best, Score


def score(bleu: float, loss: float = 2.0) -> Score:
    return Score(loss=loss, bleu=bleu, bleu_lc=bleu)


@pytest.mark.parametrize(
    ("one", "other", "better"),
    [
        (score(2.0), None, True),
        (score(2.0), score(1.0), True),
        (score(2.0), score(2.0), False),
        (score(2.0, loss=1.9), score(2.0), True),
        (score(1.9, loss=1.0), score(2.0), False),
    ],
)
def test_bleu_decides_and_then_the_loss(one: Score, other: Score | None, better: bool) -> None:
    assert one.better_than(other) == better


def test_validations_without_a_better_one_are_counted() -> None:
    best = Best(updates=10, score=score(2.0))
    best = best.after(20, score(1.0)).after(30, score(2.0))
    assert best == Best(updates=10, score=score(2.0), since=2)
    assert best.after(40, score(2.5)) == Best(updates=40, score=score(2.5))


def test_json_round_trip() -> None:
    best = Best(updates=10, score=Score(loss=2.125, bleu=30.1, bleu_lc=1 / 3), since=4)
    assert Best.from_json(dataclasses.asdict(best)) == best


def test_numbers_that_are_none() -> None:
    with pytest.raises(ValueError, match="the score holds nan; expected numbers"):
        score(float("nan"))
    with pytest.raises(ValueError, match="counts something that can't be counted"):
        Best(updates=-1, score=score(1.0))
