"""The judge itself, on backends that are wrong on purpose."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from support.fake_backend import EOS, SPECIAL_IDS, FakeBackend, Logits

from export.errors import ParityError
from export.parity import TIE, TOLERANCES, check_parity
from runtime.options import SearchOptions

VOCAB = 12
SOURCES = [[5, 6, EOS], [7, EOS], [8, 9, 10, EOS], [5, EOS]]


def favouring(token: int, *, margin: float = 3.0, shift: float = 0.0, bump: int = 4) -> Logits:
    """A model that says `token` once, then ends; `shift` is added to the logit of `bump`."""

    def logits(source: tuple[int, ...], prefix: tuple[int, ...]) -> Any:
        row = np.zeros(VOCAB, dtype=np.float32)
        row[EOS if len(prefix) >= 1 else token] = margin
        row[bump] += shift
        return row

    return logits


def fake(logits: Logits, precision: str = "fp32") -> FakeBackend:
    backend = FakeBackend(logits, VOCAB, max_source=16, max_target=16)
    backend.capabilities = dataclasses.replace(backend.capabilities, precision=precision)
    return backend


def compare(reference: Logits, candidate: Logits, precision: str = "fp32") -> Any:
    return check_parity(
        fake(reference), fake(candidate, precision), SOURCES, SPECIAL_IDS, batch_size=3
    )


def test_the_same_model_is_in_parity() -> None:
    report = compare(favouring(6), favouring(6))
    assert (report.equal, report.ties, report.different) == (4, 0, 0)
    assert report.steps == 8  # two tokens a sentence
    assert report.log_prob_max == report.log_prob_mean == 0
    assert report.passed
    report.require()
    assert report.summary == (
        "against fake fp32, beam 4: 4 of 4 equal, 0 ties, 0 different (at most 0%); log-probs over "
        "8 steps differ by up to 0.0e+00 (at most 0.0001), on average by 0.0e+00 (at most 1e-05)"
    )


def test_other_translations_fail_and_are_named() -> None:
    report = compare(favouring(6), favouring(7))
    assert (report.equal, report.ties, report.different) == (0, 0, 4)
    first = report.disagreements[0]
    assert (first.index, first.reference_ids, first.candidate_ids) == (0, (6,), (7,))
    assert first.reference_score > first.candidate_score + TIE
    with pytest.raises(
        ParityError,
        match=r"fake fp32 does not compute what fake fp32 computes: .*4 of 4 translations differ, "
        r"allowed 0%; the first is sentence 0. Build again",
    ):
        report.require()
    as_json = json.loads(json.dumps(report.to_json()))
    assert as_json["passed"] is False
    assert as_json["disagreements"][0]["candidate_ids"] == [7]


def test_equally_good_translations_are_ties() -> None:
    """The reference gives tokens 6 and 7 the same probability, but for less than TIE."""

    def nearly(first: int, second: int) -> Logits:
        def logits(source: tuple[int, ...], prefix: tuple[int, ...]) -> Any:
            row = np.zeros(VOCAB, dtype=np.float32)
            row[EOS if prefix else first] = 3.0
            if not prefix:
                row[second] = 3.0 - 2e-5
            return row

        return logits

    report = compare(nearly(6, 7), nearly(7, 6))
    assert (report.equal, report.ties, report.different) == (0, 4, 0)
    assert report.passed, report.problems


def test_log_probs_beyond_the_tolerance_fail() -> None:
    report = compare(favouring(6), favouring(6, shift=2e-3))
    assert report.equal == 4
    assert report.log_prob_max == pytest.approx(2e-3, rel=0.2)
    assert "log-probabilities differ by up to 0.0019, allowed 0.0001" in report.problems
    assert any("on average, allowed 1e-05" in problem for problem in report.problems)
    assert compare(favouring(6), favouring(6, shift=2e-3), "int8").passed


def test_int8_may_find_other_words_but_no_worse_ones() -> None:
    def nearly(first: int, second: int, less: float) -> Logits:
        def logits(source: tuple[int, ...], prefix: tuple[int, ...]) -> Any:
            row = np.zeros(VOCAB, dtype=np.float32)
            row[EOS if prefix else first] = 3.0
            if not prefix:
                row[second] = 3.0 - less
            return row

        return logits

    as_good = compare(nearly(6, 7, 0.01), nearly(7, 6, 0.01), "int8")
    assert (as_good.different, as_good.problems) == (4, [])
    assert as_good.score_loss == pytest.approx(0.005, rel=0.01)  # 0.01 over two tokens
    assert as_good.summary.startswith(
        "against fake fp32, beam 4: 0 of 4 equal, 0 ties, 4 different, worse by 0.005 a token (at "
        "most 0.05); log-probs over 8 steps differ by up to 1.0e-02, on"
    )
    assert as_good.summary.endswith(" on average by 1.1e-03 (at most 0.2)")
    worse = compare(nearly(6, 7, 0.3), nearly(7, 6, 0.3), "int8")
    assert worse.score_loss == pytest.approx(0.15, rel=0.01)
    assert worse.problems == [
        "translations score 0.15 a token lower by the reference, allowed 0.05"
    ]


def test_nan_and_other_bans_fail() -> None:
    def broken(source: tuple[int, ...], prefix: tuple[int, ...]) -> Any:
        row = favouring(6)(source, prefix)
        row[4] = -1e9
        return row

    report = compare(favouring(6), broken, "int8")
    assert report.log_prob_max == report.log_prob_mean == float("inf")
    assert not report.passed


def test_no_sentences_are_an_error() -> None:
    with pytest.raises(ParityError, match="no sentences to check parity with; give at least one"):
        check_parity(fake(favouring(6)), fake(favouring(6)), [], SPECIAL_IDS)


def test_the_search_options_are_those_given() -> None:
    report = check_parity(
        fake(favouring(6)),
        fake(favouring(6)),
        SOURCES,
        SPECIAL_IDS,
        SearchOptions(beam_size=2, min_length=4, max_length=5),
    )
    assert report.beam_size == 2
    assert report.steps >= 4 * 4


def test_every_precision_has_tolerances() -> None:
    assert TOLERANCES.keys() == {"fp32", "fp16", "int8", "int8_fp16"}
    assert TOLERANCES["fp32"].different == 0
