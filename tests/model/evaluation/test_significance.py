from __future__ import annotations

import pytest

from model.errors import DataError
from model.evaluation.metrics import METRIC_NAMES, evaluate
from model.evaluation.significance import check_paired_resamples, compare
from runtime.errors import OptionError

REFERENCES = [f"the little dog number {i} sleeps under the red house" for i in range(50)]
NEARLY = [line.replace("red", "big") if i == 7 else line for i, line in enumerate(REFERENCES)]
WORSE = [line.replace("sleeps under", "runs to") for line in REFERENCES]


def test_a_difference_that_every_line_has_is_no_chance() -> None:
    found = compare(WORSE, REFERENCES, REFERENCES)
    assert tuple(found) == METRIC_NAMES
    scores = evaluate(WORSE, REFERENCES).metrics
    for name, difference in found.items():
        assert difference.difference == pytest.approx(scores[name].score - 100)
        assert difference.high < 0
        assert difference.p_value == pytest.approx(2 / 1001)
        assert (difference.resamples, difference.seed) == (1000, 12345)


def test_a_difference_of_one_line_may_be_chance() -> None:
    (found,) = compare(NEARLY, REFERENCES, REFERENCES, names=("BLEU -lc",)).values()
    assert found.difference < 0
    assert found.high == 0
    assert 0.6 < found.p_value < 0.85  # a resample leaves one of 50 lines out with chance 0.364


def test_systems_changed_round_differ_the_other_way() -> None:
    one = compare(WORSE, NEARLY, REFERENCES, resamples=100, names=("BLEU",))["BLEU"]
    other = compare(NEARLY, WORSE, REFERENCES, resamples=100, names=("BLEU",))["BLEU"]
    assert (other.difference, other.low, other.high) == (-one.difference, -one.high, -one.low)
    assert other.p_value == one.p_value


def test_case_counts_where_it_should() -> None:
    upper = [line.title() for line in REFERENCES]
    lower = [line.lower() for line in REFERENCES]
    found = compare(lower, upper, upper, resamples=100)
    assert found["BLEU"].difference < 0
    assert found["BLEU -lc"].difference == 0


def test_lines_that_do_not_fit() -> None:
    with pytest.raises(DataError, match="50 source lines but 49 references"):
        compare(WORSE, REFERENCES, REFERENCES[1:])
    with pytest.raises(DataError, match="50 lines but 3 of the baseline; expected its"):
        compare(WORSE, REFERENCES[:3], REFERENCES)


def test_no_resamples_tell_nothing() -> None:
    with pytest.raises(OptionError, match="0 bootstrap resamples can't tell two systems apart"):
        check_paired_resamples(0)
    with pytest.raises(OptionError, match="12 bootstrap resamples asked for; expected at least 40"):
        compare(WORSE, REFERENCES, REFERENCES, resamples=12)
