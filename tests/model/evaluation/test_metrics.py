from __future__ import annotations

import sys

import pytest

from model.errors import DataError
from model.evaluation.metrics import bleu, evaluate, render
from runtime.errors import MissingExtraError, OptionError

OURS = ["in 3 Tagen kommt der Zug", "vor 2 Wochen war es kalt", "IN 5 JAHREN IST ES WARM"]
THEIRS = ["in 3 Tagen kommt der Zug", "vor 2 Wochen war es warm", "in 5 Jahren ist es warm"]


def test_scores_and_signatures() -> None:
    found = evaluate(OURS, THEIRS, families=["b", "a", "a"])
    assert found.exact_match == pytest.approx(1 / 3)
    assert found.by_family == {"a": 0.0, "b": 1.0}
    assert found.bleu_lc.score > found.bleu.score > 0
    assert "case:lc" in found.bleu_lc.signature
    assert "case:mixed" in found.bleu.signature
    assert found.chrf.signature.startswith("nrefs:1|case:mixed|eff:yes|nc:6")
    assert found.to_json()["by_family"] == {"a": 0.0, "b": 1.0}


def test_equal_lines_score_100() -> None:
    found = evaluate(THEIRS, THEIRS)
    assert [found.bleu.score, found.chrf.score] == pytest.approx([100.0, 100.0])
    assert found.exact_match == 1.0


def test_the_table() -> None:
    lines = render(evaluate(THEIRS, THEIRS, families=["x", "y", "y"])).split("\n")
    assert lines[0].startswith("BLEU          100.00  nrefs:1|case:mixed")
    assert lines[3:] == [
        "exact match   100.0%  3 lines",
        "  x           100.0%",
        "  y           100.0%",
    ]


def test_intervals_are_shown_and_told_in_the_signature() -> None:
    found = evaluate(OURS, THEIRS, resamples=100)
    for metric in found.metrics.values():
        assert metric.interval is not None
        assert metric.interval.low < metric.score < metric.interval.high
        assert metric.signature.startswith("nrefs:1|bs:100|seed:12345|case:")
    assert found.to_json()["bleu"]["interval"]["resamples"] == 100
    assert evaluate(OURS, THEIRS).bleu.interval is None
    lines = render(found).split("\n")
    bounds = found.bleu.interval
    assert bounds is not None
    assert f"  95%: {bounds.low:.2f} to {bounds.high:.2f}" in lines[0]
    assert lines[3].endswith("3 lines")


def test_several_references_of_a_line() -> None:
    several = [[THEIRS[0], "something else"], [THEIRS[1], OURS[1]], THEIRS[2]]
    one, found = evaluate(OURS, THEIRS), evaluate(OURS, several)
    assert found.exact_match == pytest.approx(2 / 3)
    assert found.bleu.score > one.bleu.score
    assert "nrefs:var" in found.bleu.signature
    assert "nrefs:2" in evaluate(OURS, [[line, "x"] for line in THEIRS]).chrf.signature


def test_bleu_alone_is_the_same() -> None:
    assert bleu(OURS, THEIRS) == evaluate(OURS, THEIRS).bleu.score
    chinese = ["三天后到达那里"], ["三天后到达这里"]
    assert bleu(*chinese) == evaluate(*chinese, target_language="zh").bleu.score > 0


def test_too_few_resamples() -> None:
    with pytest.raises(OptionError, match="7 bootstrap resamples asked for"):
        evaluate(OURS, THEIRS, resamples=7)


def test_chinese_is_split_into_characters() -> None:
    found = evaluate(["三天后到达这里"], ["三天后到达那里"], target_language="zh")
    assert "tok:zh" in found.bleu.signature


@pytest.mark.parametrize(
    ("references", "splits"),
    [
        (["三天后到达那里", "OK", "3:30"], "zh"),
        (["三天后到达那里の"] * 4, "13a"),
        (["三日後にそこへ着きます"], "13a"),
        (["the word 茶 is Chinese"], "13a"),
        (["3:30"], "13a"),
    ],
)
def test_chinese_is_told_by_its_characters(references: list[str], splits: str) -> None:
    assert f"tok:{splits}" in evaluate(references, references).bleu.signature


def test_a_language_that_is_named_counts() -> None:
    found = evaluate(["三天后到达这里"], ["三天后到达那里"], target_language="en")
    assert "tok:13a" in found.bleu.signature


@pytest.mark.parametrize(
    ("language", "splits"),
    [
        ("zh-CN", "zh"),
        ("zh_Hant", "zh"),
        ("ZH", "zh"),
        ("cmn", "zh"),
        ("de-AT", "13a"),
        ("", "13a"),
    ],
)
def test_a_language_is_known_by_more_than_one_code(language: str, splits: str) -> None:
    found = evaluate(["a b"], ["a b"], target_language=language)
    assert f"tok:{splits}" in found.bleu.signature


@pytest.mark.parametrize("language", ["Chinese", "z", "-", "中文"])
def test_what_is_no_language_is_refused(language: str) -> None:
    with pytest.raises(OptionError, match=r"expected a code of two or three letters, such as de"):
        evaluate(OURS, THEIRS, target_language=language)


def test_lists_that_do_not_fit() -> None:
    with pytest.raises(DataError, match="there are no lines to evaluate"):
        evaluate([], [])
    with pytest.raises(DataError, match="3 source lines but 2 references; expected one for each"):
        evaluate(OURS, THEIRS[:2])
    with pytest.raises(DataError, match="3 source lines but 1 families"):
        evaluate(OURS, THEIRS, families=["a"])


def test_missing_sacrebleu_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    with pytest.raises(MissingExtraError, match=r"needs the package sacrebleu.*'\.\[train\]"):
        evaluate(OURS, THEIRS)


def test_a_language_whose_words_cannot_be_split_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "MeCab", None)
    with pytest.raises(OptionError, match=r"'ja', whose words .* pip install 'sacrebleu\[ja\]'"):
        evaluate(OURS, THEIRS, target_language="ja")
