from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import pytest

from model.evaluation import bootstrap
from model.evaluation.bootstrap import (
    SEED,
    PairedDifference,
    check_resamples,
    interval,
    paired_difference,
    resampled_scores,
    score,
    sentence_counts,
)
from model.evaluation.metrics import METRIC_NAMES, make_metrics
from runtime.errors import OptionError

WORDS = ["a", "the", "little", "dog", "cat", "house", "runs", "under", "red", "Sees", ",", "."]


def sentences(count: int, seed: int) -> list[str]:
    generator = random.Random(seed)
    return [" ".join(generator.choices(WORDS, k=generator.randint(4, 12))) for _ in range(count)]


def corrupted(lines: list[str], share: float, seed: int) -> list[str]:
    generator = random.Random(seed)
    return [
        " ".join(word if generator.random() > share else "x" for word in line.split())
        for line in lines
    ]


REFERENCES = sentences(60, seed=0)
GOOD, BAD = corrupted(REFERENCES, 0.1, seed=1), corrupted(REFERENCES, 0.4, seed=2)
SEVERAL = [[line, *([other] if i % 3 else [])] for i, (line, other) in
           enumerate(zip(REFERENCES, sentences(60, seed=3), strict=True))]  # fmt: skip


@pytest.mark.parametrize("place", range(3), ids=METRIC_NAMES)
@pytest.mark.parametrize("several", [[[line] for line in REFERENCES], SEVERAL], ids=["1", "1-2"])
def test_scores_and_intervals_are_sacrebleus(place: int, several: list[list[str]]) -> None:
    metric, oracle = make_metrics("")[place], make_metrics("")[place]
    counts = sentence_counts(metric, GOOD, several)
    found = interval(resampled_scores([(metric, counts)], 200)[0])
    streams = [[refs[i] if i < len(refs) else None for refs in several] for i in range(2)]
    streams = streams if any(streams[1]) else streams[:1]
    expected = oracle.corpus_score(GOOD, streams, n_bootstrap=200)
    assert score(metric, counts) == pytest.approx(expected.score, abs=1e-9)
    assert found.mean == pytest.approx(expected._mean, abs=1e-4)  # its sums are float32
    assert (found.high - found.low) / 2 == pytest.approx(expected._ci, abs=1e-4)
    assert found.low < expected.score < found.high
    metric.n_bootstrap, metric.seed = 200, SEED
    assert str(metric.get_signature()) == str(oracle.get_signature())


def bleu_counts(*systems: list[str]) -> list[tuple[Any, Any]]:
    several = [[line] for line in REFERENCES]
    metric = make_metrics("")[0]
    return [(metric, sentence_counts(metric, lines, several)) for lines in systems]


def test_paired_difference_is_that_of_whole_resampled_files() -> None:
    """The oracle writes each resample out and lets sacrebleu score it."""
    parts = bleu_counts(GOOD, BAD)
    good, bad = resampled_scores(parts, 40)
    oracle = make_metrics("")[0]
    draws = np.random.default_rng(SEED).choice(60, size=(40, 60))
    for r, rows in enumerate(draws.tolist()):
        references = [[REFERENCES[i] for i in rows]]
        for system, found in ((GOOD, good), (BAD, bad)):
            expected = oracle.corpus_score([system[i] for i in rows], references).score
            assert found[r] == pytest.approx(expected, abs=1e-9)
    whole = score(*parts[0]) - score(*parts[1])
    found = paired_difference(whole, good, bad)
    differences = sorted(good - bad)
    assert (found.low, found.high) == (differences[1], differences[-2])
    assert found.low < whole < found.high


def test_large_sets_are_drawn_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = bleu_counts(GOOD)
    whole = resampled_scores(parts, 50)[0]
    monkeypatch.setattr(bootstrap, "_DRAWS_AT_ONCE", 7 * 60)
    assert resampled_scores(parts, 50)[0].tolist() == whole.tolist()


def test_a_repeat_gives_the_same() -> None:
    one, two = (resampled_scores(bleu_counts(GOOD), 40)[0] for _ in range(2))
    assert one.tolist() == two.tolist()
    assert one.std() > 0


def test_systems_that_say_the_same_do_not_differ() -> None:
    good, same = resampled_scores(bleu_counts(GOOD, list(GOOD)), 100)
    assert paired_difference(0.0, good, same) == PairedDifference(
        difference=0.0, low=0.0, high=0.0, p_value=1.0, resamples=100
    )


@pytest.mark.parametrize(
    ("differences", "p_value"),
    [
        ([1.0] * 99, 2 / 100),  # never the other way
        ([-1.0] * 99, 2 / 100),
        ([1.0] * 94 + [-1.0] * 5, 12 / 100),
        ([1.0] * 94 + [0.0] * 5, 12 / 100),  # no difference speaks for none
        ([1.0] * 50 + [-1.0] * 49, 1.0),
    ],
)
def test_p_value_is_two_sided(differences: list[float], p_value: float) -> None:
    ours = np.array(differences)
    found = paired_difference(1.0, ours, np.zeros_like(ours))
    assert found.p_value == pytest.approx(p_value)


def test_p_value_below_5_percent_means_that_the_interval_leaves_0_out() -> None:
    for others in range(100):
        ours = np.array([-1.0] * others + [1.0] * (1000 - others))
        found = paired_difference(1.0, ours, np.zeros_like(ours))
        assert found.low > 0 or found.p_value >= 0.05


@pytest.mark.parametrize("resamples", [-1, 1, 39])
def test_too_few_resamples(resamples: int) -> None:
    with pytest.raises(OptionError, match=rf"{resamples} bootstrap resamples .* at least 40, or 0"):
        check_resamples(resamples)


def test_text_of_a_difference() -> None:
    found = PairedDifference(difference=-0.001, low=-0.3, high=0.256, p_value=0.666, resamples=9)
    assert found.text == "+0.00 (95%: -0.30 to +0.26, p 0.67)"
    assert dataclasses.replace(found, p_value=0.014).text.endswith("p 0.014)")
