"""What is odd about a text: each kind found where it is, and not where it isn't."""

from __future__ import annotations

import unicodedata

import pytest

from model.data_check.texts import (
    demojibake,
    drop_controls,
    oddities,
    plain_spaces,
    script_of,
    shown,
    unescape,
)
from runtime.normalizer import normalize_source


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A man walks.", []),
        ("Größe: 5 °C, 50 %, «né» – “it’s” 20 €", []),
        ("\u4ed6\u8d70\u4e86\u3002\u201c\u597d\u201d", []),
        (" A", [("spaces", "space at character 1")]),
        ("A ", [("spaces", "space at character 2")]),
        ("A  b", [("spaces", "space at character 2")]),
        ("A\tb", [("spaces", "tab at character 2")]),
        ("5\u00a0km", [("unusual-spaces", "U+00A0 at character 2")]),
        ("a\u3000b", [("unusual-spaces", "U+3000 at character 2")]),
        ("a\u2028b", [("line-breaks", "U+2028 at character 2")]),
        ("a\rb", [("line-breaks", "U+000D at character 2")]),
        ("a\x07b", [("control", "U+0007 at character 2")]),
        ("a\u200bb", [("control", "U+200B at character 2")]),
        ("\u0645\u06cc\u200c\u062e", []),
        ("a\ufffdb", [("replacement", "at character 2")]),
        ("R&amp;D", [("markup", "&amp;")]),
        ("&#39;s", [("markup", "&#39;")]),
        ("<b>bold</b>", [("markup", "<b>")]),
        ('<a href="x">', [("markup", '<a href="x">')]),
        ("R&D; a < b > c, x<3, <- &c; AT&T", []),
        ("F\u00c3\u00bcr", [("mojibake", "\u00c3\u00bc for \u00fc")]),
    ],
)
def test_oddities(text: str, found: list[tuple[str, str]]) -> None:
    assert list(oddities(text)) == found


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
@pytest.mark.parametrize("text", ["Französisch", "das große Öl", "\u00fcber", "Ça va à Noël"])
def test_utf8_read_as_something_else_is_mojibake(text: str, encoding: str) -> None:
    garbled = text.encode().decode(encoding, "replace")
    assert demojibake(garbled) is not None
    assert demojibake(text) is None


@pytest.mark.parametrize(
    "text",
    ["it\u2019s \u201cgood\u201d", "\u043f\u0440\u0438\u0432\u0435\u0442", "\u4f60\u597d\u5417"]
)  # fmt: skip
def test_other_scripts_as_mojibake(text: str) -> None:
    assert demojibake(text.encode().decode("latin-1"))
    assert not demojibake(text)


@pytest.mark.parametrize(
    "text",
    [
        "«\u00a0CAFÉ», à «\u00a0X\u00a0» et à «\u00a0Y\u00a0»",
        "ÂGE, ÊTRE, CÔTÉ, ÄÖÜ, SÃO PAULO",
        "Ã\u0081".removesuffix("\u0081") + " n.",
    ],
)
def test_accented_capitals_are_no_mojibake(text: str) -> None:
    assert demojibake(text) is None


def test_text_that_lost_characters_in_gbk_is_mojibake() -> None:
    assert demojibake("a\u951f\u65a4\u62f7b")


def test_control_is_what_the_normalizer_drops() -> None:
    for code in (*range(0x3100), *range(0xFE00, 0x10000), 0xE0001, 0xE0067, 0x1D173):
        text = f"a{chr(code)}b"
        kinds = {kind for kind, _ in oddities(text)}
        if unicodedata.category(chr(code)) == "Cs":
            continue
        assert ("control" in kinds) == (normalize_source(text) == "ab"), hex(code)


@pytest.mark.parametrize(
    ("mend", "text", "mended"),
    [
        (plain_spaces, " a  b\tc \u3000", "a b c"),
        (plain_spaces, "5\u00a0km\u2028weit", "5\u00a0km weit"),
        (drop_controls, "a\u200b\x07b\ufeff", "ab"),
        (unescape, "R&amp;D &lt;b&gt;&#10;x", "R&D <b> x"),
        (unescape, "a\u2028b", "a\u2028b"),
    ],
)
def test_mends(mend, text: str, mended: str) -> None:
    assert mend(text) == mended
    assert mend(mended) == mended


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("A man", "LATIN"),
        ("Größe", "LATIN"),
        ("12 %", ""),
        ("\u4ed6\u8d70\u4e86 OK", "HAN"),
        ("\u3053\u308c\u306f\u672c", "HAN"),
        ("\u043f\u0440\u0438\u0432\u0435\u0442, A", "CYRILLIC"),
        ("Tom \u4ed6\u8d70", "HAN"),
        ("abcdef \u4ed6\u8d70", ""),
        ("\uff21\u00b5", ""),
    ],
)
def test_scripts(text: str, script: str) -> None:
    assert script_of(text) == script


def test_shown_is_short_and_printable() -> None:
    assert shown("a\x1b[31m\u200bb\u4e2d") == "a\\x1b[31m\\u200bb\u4e2d"
    assert shown("x" * 100, 10) == "x" * 9 + "\u2026"
    assert shown("x" * 10, 10) == "x" * 10
    assert len(shown("\u200b" * 10, 20)) == 20
