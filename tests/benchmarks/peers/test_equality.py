from __future__ import annotations

import dataclasses

import pytest
from support.fake_backend import SPECIAL_IDS, FakeBackend, copying_logits

from benchmarks.peers.equality import Difference, Equality, compare_tokens
from benchmarks.peers.subjects import Found
from runtime.errors import BackendError
from runtime.options import SearchOptions

VOCAB_SIZE = 12
EOS = SPECIAL_IDS.eos
SOURCES = [[5, 6, EOS], [7, EOS], [8, 9, EOS]]


def found(*token_ids: int, finished: bool = True) -> Found:
    return Found(text="", token_ids=token_ids, finished=finished)


def compare(ours: list[Found], theirs: list[Found]) -> Equality:
    """Judged by a model that copies its source."""
    backend = FakeBackend(copying_logits(VOCAB_SIZE), VOCAB_SIZE)
    options = SearchOptions(beam_size=2)
    return compare_tokens(ours, theirs, SOURCES, backend, SPECIAL_IDS, options)


COPIES = [found(5, 6), found(7), found(8, 9)]


def test_equal_translations_are_not_scored() -> None:
    equality = compare(COPIES, COPIES)
    assert equality.summary == "beam 2: 3 of 3 equal, 0 ties, 0 different"
    equality.require()
    assert equality.to_json()["equal"] == 3


def test_two_that_the_model_likes_as_well_are_a_tie() -> None:
    """Both wrong in the last place, by tokens that the model likes as little."""
    ours, theirs = [*COPIES[:2], found(8, 10)], [*COPIES[:2], found(8, 11)]
    equality = compare(ours, theirs)
    assert equality.summary == "beam 2: 2 of 3 equal, 1 ties, 0 different"
    equality.require()


def test_a_worse_translation_is_refused() -> None:
    equality = compare(COPIES, [found(5, 6), found(9), found(8, 9)])
    (difference,) = equality.differences
    assert difference.line == 1
    assert difference.our_score > difference.their_score + 0.1
    with pytest.raises(
        BackendError,
        match=r"don't give the same translations in FP32 \(beam 2: 2 of 3 equal, 0 ties, 1 "
        r"different\); the first is line 2, which scores -\d.* check that the bundle is this",
    ):
        equality.require()


def test_one_that_did_not_end_is_another() -> None:
    equality = compare(COPIES, [found(5, 6, finished=False), *COPIES[1:]])
    assert len(equality.differences) == 1


def test_ties_are_within_the_bound() -> None:
    near = Difference(line=0, our_score=-1.0, their_score=-1.00009)
    assert near.is_tie
    assert not dataclasses.replace(near, their_score=-1.0002).is_tie


def test_lines_that_are_equal_only_alone_are_told() -> None:
    assert (
        "different (2 equal only when searched alone)"
        in Equality(beam_size=4, lines=9, alone=2).summary
    )
