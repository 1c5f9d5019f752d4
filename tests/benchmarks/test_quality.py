from __future__ import annotations

import sys

import pytest

from benchmarks.quality import exact_match, score
from runtime.errors import MissingExtraError, OptionError


def test_score_of_perfect_translations() -> None:
    found = score(["der kleine Hund läuft"], ["der kleine Hund läuft"])
    assert found.bleu == pytest.approx(100.0)
    assert found.chrf == pytest.approx(100.0)
    assert found.exact_match == 1.0
    assert found.bleu_signature.startswith("nrefs:1|case:mixed|")
    assert "tok:13a" in found.bleu_signature
    assert found.chrf_signature.startswith("nrefs:1|case:mixed|")


def test_score_of_a_wrong_word() -> None:
    found = score(["der kleine Hund läuft heute"], ["der kleine Hund schläft heute"])
    assert 0 < found.bleu < 60
    assert 50 < found.chrf < 100
    assert found.exact_match == 0.0


def test_chinese_is_cut_into_characters() -> None:
    assert "tok:zh" in score(["三天后"], ["三天后"], target_language="zh").bleu_signature


def test_exact_match_by_family() -> None:
    overall, families = exact_match(
        ["a", "b", "c", "x"], ["a", "b", "c", "d"], ["u", "t", "u", "t"]
    )
    assert overall == 0.75
    assert families == {"t": 0.5, "u": 1.0}


def test_exact_match_without_families() -> None:
    assert exact_match(["a"], ["a"]) == (1.0, {})


def test_lists_of_different_lengths_are_an_error() -> None:
    with pytest.raises(OptionError, match=r"2 lines but 1 references; expected one for each line"):
        score(["a", "b"], ["a"])
    with pytest.raises(OptionError, match=r"1 lines but 2 families"):
        score(["a"], ["a"], families=["x", "y"])


def test_nothing_to_score_is_an_error() -> None:
    with pytest.raises(OptionError, match="there are no lines to measure"):
        score([], [])


def test_missing_sacrebleu_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    with pytest.raises(MissingExtraError, match=r"needs the package sacrebleu.*leanseq\[train\]"):
        score(["a"], ["a"])


def test_a_language_whose_words_cannot_be_split_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "MeCab", None)
    with pytest.raises(OptionError, match=r"'ja', whose words .* pip install 'sacrebleu\[ja\]'"):
        score(["a"], ["a"], target_language="ja")
