from __future__ import annotations

import pytest

from model.training.best import Best, Score
from model.training.selection import Candidate, Scored, candidates, choose
from model.training.state import Position

SCORE = Score(loss=2.0, bleu=3.0, bleu_lc=4.0)
LAST = Candidate(name="last weights", updates=(30,))


@pytest.mark.parametrize(
    ("snapshots", "best", "expected"),
    [
        ([30], None, [LAST]),
        ([30], 30, [LAST]),
        (
            [20, 30],
            None,
            [Candidate(name="average of the last 2 saves", updates=(20, 30)), LAST],
        ),
        (
            [30],
            20,
            [
                LAST,
                Candidate(name="best validated weights (update 20)", updates=(20,), score=SCORE),
            ],
        ),
    ],
)
def test_what_there_is_to_choose_from(snapshots: list[int], best: int | None, expected) -> None:
    found = None if best is None else Best(updates=best, score=SCORE)
    position = Position(updates=30, snapshots=snapshots, best=found)
    assert candidates(position) == expected


@pytest.mark.parametrize(
    ("scores", "chosen"),
    [
        ([(1.0, 2.0), (3.0, 2.0), (2.0, 1.0)], 1),
        ([(3.0, 2.0), (3.0, 1.9), (3.0, 1.95)], 1),
        ([(3.0, 2.0), (3.0, 2.0)], 0),
    ],
)
def test_the_highest_bleu_is_chosen(scores: list[tuple[float, float]], chosen: int) -> None:
    scored = [
        Scored(name=str(i), updates=(i,), score=Score(loss=loss, bleu=bleu, bleu_lc=0.0))
        for i, (bleu, loss) in enumerate(scores)
    ]
    assert choose(scored) is scored[chosen]
