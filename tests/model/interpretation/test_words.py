from __future__ import annotations

import io

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from support.nasty_lines import NASTY_LINES
from support.tiny_tokenizer import tiny_tokenizer

from model.interpretation.words import Words, merge, source_words, split_words, target_words
from runtime.errors import TextError
from runtime.normalizer import normalize_source
from runtime.tokenizer import Tokenizer


def words_of(text: str) -> list[str]:
    return [text[begin:end] for begin, end in split_words(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("in 3 days", ["in", "3", "days"]),
        ("  a\t\u00a0b\u3000c\n", ["a", "b", "c"]),
        ("3天后", ["3", "天", "后"]),
        ("你好，world！ ok", ["你", "好", "，", "world", "！", "ok"]),
        ("カ\u3099ス", ["カ\u3099", "ス"]),  # a mark goes with what it marks
        ("神\U000e0100社", ["神\U000e0100", "社"]),
        ("한국어 단어", ["한국어", "단어"]),  # Korean has spaces
        ("ＡＢＣ。", ["ＡＢＣ", "。"]),
        ("สวัสดีชาวโลก", ["สวัสดีชาวโลก"]),
        ("", []),
    ],
)
def test_split_words(text: str, expected: list[str]) -> None:
    assert words_of(text) == expected


@given(st.text())
def test_words_are_all_of_the_text_but_its_spaces(text: str) -> None:
    assert "".join(words_of(text)) == "".join(text.split())


@given(st.text(st.characters(max_codepoint=0x2FFF)))
def test_words_without_scripts_that_lack_spaces_are_those_of_split(text: str) -> None:
    assert words_of(text) == text.split()


def check_source(text: str) -> None:
    """Each piece but EOS belongs to a word, each word that survives the normalizer has pieces."""
    tokenizer = tiny_tokenizer()
    words = source_words(tokenizer, text)
    assert list(words.texts) == words_of(text)
    ids = tokenizer.encode_source(text)
    assert words.overlaps.shape == (len(ids), len(words.texts))
    assert not words.overlaps[-1].any()
    if not normalize_source(text):
        return
    assert words.overlaps[:-1].any(axis=1).all()
    for word, has_pieces in zip(words.texts, words.overlaps.any(axis=0), strict=True):
        assert has_pieces == (normalize_source(f"{word} .") != ".")
    firsts = words.overlaps[:-1].argmax(axis=1)
    assert (np.diff(firsts) >= 0).all()  # pieces and words stand in the same order


@given(st.text())
def test_source_words_and_their_pieces(text: str) -> None:
    check_source(text)


@pytest.mark.parametrize("text", NASTY_LINES, ids=lambda text: ascii(text)[:40])
def test_source_words_of_nasty_lines(text: str) -> None:
    check_source(text)


def test_a_word_of_invisible_characters_has_no_pieces() -> None:
    words = source_words(tiny_tokenizer(), "in \u200b days")
    assert words.texts == ("in", "\u200b", "days")
    assert words.overlaps.any(axis=0).tolist() == [True, False, True]


@settings(max_examples=300)
@given(st.lists(st.integers(0, tiny_tokenizer().size - 1)))
def test_target_words_are_those_of_the_translation(ids: list[int]) -> None:
    """Any pieces whatever, bytes that are no text or break lines included."""
    tokenizer = tiny_tokenizer()
    ids = [token_id for token_id in ids if token_id != tokenizer.special_ids.unk_id]
    words = target_words(tokenizer, ids)
    decoded = tokenizer.decode(ids)
    # How many U+FFFD stand for bytes that are no text is SentencePiece's affair.
    expected = [word.replace("\ufffd", "") for word in words_of(decoded)]
    assert [text.replace("\ufffd", "") for text in words.texts] == expected
    assert words.overlaps.shape == (len(ids), len(expected))
    assert (words.overlaps.sum(axis=0) > 0).all()


def test_control_pieces_belong_to_no_word_and_unknown_ones_do() -> None:
    tokenizer = tiny_tokenizer()
    special = tokenizer.special_ids
    ids = [special.bos_id, *tokenizer.encode_target("in")[:-1], special.unk_id, special.eos_id]
    words = target_words(tokenizer, ids)
    assert words.texts == ("in\u2047",)
    assert words.overlaps.any(axis=1).tolist() == [False, *[True] * (len(ids) - 2), False]


def test_a_lone_space_goes_with_the_word_behind_it() -> None:
    tokenizer = tiny_tokenizer()
    space = next(i for i in range(tokenizer.size) if tokenizer.pieces([i]) == ["▁"])
    (zero,) = (i for i in range(tokenizer.size) if tokenizer.pieces([i]) == ["<0x30>"])
    words = target_words(tokenizer, [zero, space, zero, space])
    assert words.texts == ("0", "0")
    assert words.overlaps.argmax(axis=1).tolist() == [0, 1, 1, 1]


def test_merge_sums_columns_and_averages_rows() -> None:
    rows = Words(texts=("a", "b"), overlaps=np.array([[1, 0], [1, 0], [0, 2]], np.float32))
    # The last piece spells one character of each word.
    columns = Words(texts=("x", "y"), overlaps=np.array([[3, 0], [0, 2], [1, 1]], np.float32))
    weights = np.array([[[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [0.0, 1.0, 0.0]]], np.float32)
    expected = [[[(0.6 + 0.5) / 2, (0.4 + 0.5) / 2], [0.0, 1.0]]]
    merged = merge(weights, rows, columns)
    np.testing.assert_allclose(merged, expected, rtol=1e-6)
    assert merged.dtype == np.float32


def test_a_tokenizer_that_does_not_know_all_characters_is_told_of() -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["in 3 days", "the cat sat on the mat"]),
        model_writer=model, model_type="char", vocab_size=20, hard_vocab_limit=False,
        normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2,
        pad_id=0, unk_id=1, bos_id=2, eos_id=3,
    )  # fmt: skip
    tokenizer = Tokenizer(model.getvalue())
    assert source_words(tokenizer, "in 3 days").texts == ("in", "3", "days")
    with pytest.raises(TextError, match="words need a tokenizer that changes nothing"):
        source_words(tokenizer, "in 3 ŵ")
