from __future__ import annotations

import sys
import time
import unicodedata

import pytest

from runtime.normalizer import NORMALIZER_VERSION, normalize_source, normalize_target

# (input, what the model reads): literal, because a change here needs a new NORMALIZER_VERSION.
SOURCES = [
    ("", ""),
    ("a b", "a b"),
    ("  a \t b  ", "a b"),
    ("a\u00a0b\u202fc\u3000d\u2009e\u1680f\u2000g", "a b c d e f g"),
    ("a\nb\rc\x0bd\x0ce\x85f\u2028g\u2029h\x1ci", "a b c d e f g h i"),
    ("a\x00b\x08c\x7fd\x9fe", "abcde"),
    ("a \x00 b", "a b"),
    ("\ufeffa\u200bb\u2066c\u2069d\xade\u202ef", "abcdef"),
    ("\ud83d A \udc00", "\ufffd A \ufffd"),
    ("Cafe\u0301", "Caf\u00e9"),
    ("e\u200b\u0301", "\u00e9"),  # NFC comes after dropping
    ("\u212b \u2126", "\u00c5 \u03a9"),  # canonical singletons
    ("\uff26\uff55 \ufb01 \u00bd \u2460", "\uff26\uff55 \ufb01 \u00bd \u2460"),  # no NFKC
    ("\u1112\u1161\u11ab", "\ud55c"),
    ("\u0645\u06cc\u200c\u062e\u0648", "\u0645\u06cc\u200c\u062e\u0648"),
    ("a" + "\u0344" * 40, "\u00e4" + "\u0301\u0308" * 15),
    ("\U0001f468\u200d\U0001f469 \u2764\ufe0f", "\U0001f468\u200d\U0001f469 \u2764\ufe0f"),
    ("\u0600\u0661", "\u0600\u0661"),  # a visible format character
    ("a\U000e0041\U000e007fb", "ab"),  # tags can hide text
    ("\u200b\u200d \ufe0f\u200c", ""),
    (" \t\u00a0\u3000\u2028", ""),
    ("\ue000 \U0010ffff", "\ue000 \U0010ffff"),
]


@pytest.mark.parametrize(("text", "expected"), SOURCES)
def test_normalize_source(text: str, expected: str) -> None:
    assert normalize_source(text) == expected
    assert normalize_source(expected) == expected
    assert NORMALIZER_VERSION == 1


def test_normalize_source_covers_unicode() -> None:
    """Every character of this Python's Unicode table is a space, dropped, or left standing."""
    kept_format = {0x200C, 0x200D, *range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2}
    kept_format |= {0x110BD, 0x110CD, *range(0x13430, 0x13440)}
    for code in range(sys.maxunicode + 1):
        char = chr(code)
        category = unicodedata.category(char)
        if category == "Cs":
            expected = "a\ufffdb"
        elif char.isspace() or category in ("Zs", "Zl", "Zp"):
            expected = "a b"
        elif category == "Cc" or (category == "Cf" and code not in kept_format):
            expected = "ab"
        else:
            expected = unicodedata.normalize("NFC", f"a{char}b")
        assert normalize_source(f"a{char}b") == expected, hex(code)


def test_normalize_source_long_mark_runs_are_cut_and_quick() -> None:
    start = time.perf_counter()
    result = normalize_source("x" + "\u0329\u0301" * 100_000 + "y")
    assert time.perf_counter() - start < 5
    assert len(result) == 32
    assert result.endswith("y")
    assert normalize_source(result) == result


def test_normalize_target_keeps_spaces_and_marks() -> None:
    assert normalize_target("1\u202f000\u00a0\uff0c e\u0301\ud800\u200b ") == (
        "1\u202f000\u00a0\uff0c \u00e9\ufffd\u200b "
    )
