from __future__ import annotations

import dataclasses
import logging
import math
import zlib

import numpy as np
import pytest
from support.fake_backend import EOS, SPECIAL_IDS, FakeBackend, Logits
from support.tiny_tokenizer import tiny_tokenizer

from model.errors import DataError
from model.evaluation.bootstrap import PairedDifference
from model.evaluation.metrics import bleu
from model.evaluation.search_tuning import Trial, Tuning, tune_search, validation_set
from model.evaluation.sets import EvaluationFiles, EvaluationSet
from model.evaluation.systems import System
from model.samples import Samples
from runtime.errors import OptionError
from runtime.options import SearchOptions
from runtime.translator import Translator

LINES = [
    "in 3 days the cat number 21 sat on the cat",
    "the cat number 7 sat on été",
    "the cat sat",
    "in 5 days",
    "the number 14 sat in 2 days on the cat",
    "in days the number sat",
]


def hasty_logits(vocab_size: int) -> Logits:
    """A model that repeats its source, but often has enough of it before the end."""

    def logits(source: tuple[int, ...], prefix: tuple[int, ...]) -> np.ndarray:
        row = np.full(vocab_size, -12.0, dtype=np.float32)
        chance = zlib.crc32(repr((source, prefix)).encode()) % 100
        row[EOS] = math.log(0.1 + chance / 200)
        row[source[len(prefix)] if len(prefix) < len(source) else EOS] = math.log(0.6)
        return row

    return logits


def translator(defaults: SearchOptions | None = None) -> Translator:
    tokenizer = tiny_tokenizer()
    backend = FakeBackend(hasty_logits(tokenizer.size), tokenizer.size)
    return Translator(backend, tokenizer, SPECIAL_IDS, defaults=defaults)


def lines_of(*lines: str) -> EvaluationSet:
    return EvaluationSet.from_pairs([(line, line) for line in lines])


def test_every_trial_scores_what_a_search_of_its_own_does() -> None:
    found = tune_search(
        translator(),
        lines_of(*LINES),
        base=SearchOptions(),
        length_penalties=(0.0, 0.5, 1.0, 1.5),
        beam_sizes=(2, 5),
    )
    options = [(t.options.beam_size, t.options.length_penalty) for t in found.trials]
    grid = [(beam_size, penalty) for beam_size in (2, 5) for penalty in (0.0, 0.5, 1.0, 1.5)]
    assert options == sorted([*grid, (4, 1.0)])  # the present options as well
    for trial in found.trials:
        texts = [t.text for t in translator().translate(LINES, trial.options)]
        assert trial.score == bleu(texts, LINES)
    assert len({trial.score for trial in found.trials}) > 3  # penalties do change something here
    assert found.best.score == max(trial.score for trial in found.trials)
    assert found.present.options == SearchOptions()
    assert found.difference.difference == found.best.score - found.present.score
    by_penalty = [t for t in found.trials if t.options.beam_size == 5]
    assert by_penalty[0].length_ratio < by_penalty[-1].length_ratio <= 1.0
    assert found.num_lines == 6


def test_one_search_serves_all_penalties() -> None:
    ours = translator()
    tune_search(ours, lines_of(*LINES), base=SearchOptions(), beam_sizes=(1, 4))
    assert isinstance(ours.backend, FakeBackend)
    begun = ours.backend.begun
    assert sum(sentences for sentences, _ in begun) == 2 * len(LINES)


def test_the_metric_is_the_one_that_was_named() -> None:
    references = EvaluationSet.from_pairs([(line, line.upper()) for line in LINES])
    tunings = [
        tune_search(
            translator(), references, base=SearchOptions(), length_penalties=(2,), metric_name=name
        )
        for name in ("BLEU", "BLEU -lc")
    ]
    assert tunings[0].best.score < tunings[1].best.score
    assert "case:lc" in tunings[1].signature
    assert "BLEU -lc" in tunings[1].render()


def test_equal_scores_leave_the_present_options(caplog: pytest.LogCaptureFixture) -> None:
    found = tune_search(
        translator(SearchOptions(beam_size=1, length_penalty=0.6)),
        lines_of(*LINES),
        base=SearchOptions(beam_size=1, length_penalty=0.6),  # greedy: no penalty says anything
        length_penalties=(0.0, 1.0),
    )
    assert len({trial.score for trial in found.trials}) == 1
    assert found.best is found.present
    assert found.difference.p_value == 1.0
    assert "already: --beam-size 1 --length-penalty 0.6" in found.render()


def test_lines_that_the_model_does_not_read_whole_are_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        found = tune_search(
            translator(),
            lines_of(*LINES, "", "cat " * 200),
            base=SearchOptions(),
            length_penalties=(1,),
        )
    assert found.num_lines == 6
    assert "2 of 8 lines are left out: they are empty, or longer than" in caplog.text
    with pytest.raises(DataError, match="none of 1 validation lines can be used"):
        tune_search(translator(), lines_of(""), base=SearchOptions())


def test_options_that_cannot_be_served_are_refused_first() -> None:
    with pytest.raises(OptionError, match="length_penalty is 99"):
        tune_search(translator(), lines_of(*LINES), base=SearchOptions(), length_penalties=(99,))
    ours = translator()
    with pytest.raises(OptionError, match="max_length is 999; this model makes at most 64"):
        tune_search(ours, lines_of(*LINES), base=SearchOptions(max_length=999))
    assert isinstance(ours.backend, FakeBackend)
    assert ours.backend.begun == []


def tuning(best: float, *others: float) -> Tuning:
    trials = tuple(
        Trial(options=SearchOptions(length_penalty=penalty), score=50.0, length_ratio=0.99)
        for penalty in (best, *others)
    )
    difference = PairedDifference(difference=0.5, low=-0.1, high=1.1, p_value=0.09, resamples=1000)
    return Tuning(
        trials=trials, best=trials[0], present=trials[-1], difference=difference, metric="BLEU",
        signature="nrefs:1", num_lines=1014,
    )  # fmt: skip


def test_table() -> None:
    text = tuning(1.4, 0.6, 2.0, 1.0).render().splitlines()
    assert text[0].split() == ["beam", "length", "penalty", "BLEU", "length"]
    assert text[1].split() == ["4", "1.4", "50.00", "0.990", "<-", "best"]
    assert text[-2] == "on 1,014 validation lines; nrefs:1"
    assert text[-1] == (
        "--beam-size 4 --length-penalty 1.4 against beam 4, length penalty 1: "
        "+0.50 (95%: -0.10 to +1.10, p 0.090)"
    )


def test_a_best_at_the_edge_says_so() -> None:
    assert tuning(2.0, 0.6, 1.0).render().endswith("at the edge of what was tried: try some beyond")
    assert not tuning(1.0, 0.6, 2.0).at_edge
    assert not tuning(1.0).at_edge


def test_json_holds_every_trial() -> None:
    values = tuning(1.4, 1.0).to_json()
    assert [t["options"]["length_penalty"] for t in values["trials"]] == [1.4, 1.0]
    assert values["difference"]["p_value"] == 0.09


def test_validation_lines_are_the_checkpoints_where_no_files_are_given() -> None:
    samples = Samples(calibration=(), valid=(("a", "A"), ("b", "B")))
    system = System(translator=translator(), source="checkpoint 1234", samples=samples)
    assert validation_set(system, EvaluationFiles()).sources == ("a", "b")
    without = dataclasses.replace(system, samples=None)
    with pytest.raises(OptionError, match="checkpoint 1234 carries no validation lines; give some"):
        validation_set(without, EvaluationFiles())
