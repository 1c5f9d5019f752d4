"""What is odd about one text, before anything is known of the corpus that it is in."""

from __future__ import annotations

import contextlib
import functools
import html
import re
import unicodedata
from collections.abc import Iterator

from runtime.normalizer import normalize_source

Oddity = tuple[str, str]
"""A kind of `kinds.KINDS`, and what exactly was seen."""

LINE_BREAKS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
_BREAK = re.compile(f"[{LINE_BREAKS}]")
_STRAY_SPACE = re.compile(r"^ | $|  |\t")
_MARKUP = re.compile(
    r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,31});"
    r"|</?[a-zA-Z][a-zA-Z0-9]{0,15}(?:\s[^<>]*)?/?>"
)


def oddities(text: str) -> Iterator[Oddity]:
    """Everything about the spelling of a line that training would learn from, or stumble on."""
    if found := _STRAY_SPACE.search(text):
        yield "spaces", _where(found)
    if ("&" in text or "<" in text) and (found := _markup(text)):
        yield "markup", found[0]
    if text.isascii() and text.isprintable():
        return
    if found := _BREAK.search(text):
        yield "line-breaks", _where(found)
    if found := _patterns()[0].search(text):
        yield "control", _where(found)
    if found := _patterns()[1].search(text):
        yield "unusual-spaces", _where(found)
    if "\ufffd" in text:
        yield "replacement", f"at character {text.index(chr(0xFFFD)) + 1}"
    if mended := demojibake(text):
        yield "mojibake", f"{mended[0]} for {mended[1]}"


def _markup(text: str) -> re.Match[str] | None:
    for found in _MARKUP.finditer(text):
        if found[0][0] == "<" or html.unescape(found[0]) != found[0]:
            return found
    return None


def _where(found: re.Match[str]) -> str:
    char = found[0][:1]
    if char in " \t":
        return f"{'tab' if char == chr(9) else 'space'} at character {found.start() + 1}"
    return f"U+{ord(char):04X} at character {found.start() + 1}"


@functools.cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """What normalize_source drops, and what it takes for a space, besides what other kinds name.

    Asked of the normalizer itself, so that it can't say otherwise.
    """
    dropped, spaces = [], []
    for char in map(chr, (*range(0x20000), *range(0xE0000, 0xE1000))):  # all that is assigned
        if unicodedata.category(char) not in ("Cc", "Cf", "Zs", "Zl", "Zp"):
            continue
        if char in LINE_BREAKS or char in " \t":
            continue
        normal = normalize_source(f"a{char}b")
        if normal == "ab":
            dropped.append(char)
        elif normal == "a b":
            spaces.append(char)
    return (
        re.compile(f"[{re.escape(''.join(dropped))}]"),
        re.compile(f"[{re.escape(''.join(spaces))}]"),
    )


def drop_controls(text: str) -> str:
    """Without what normalize_source drops."""
    return _patterns()[0].sub("", text)


def plain_spaces(text: str) -> str:
    """Tabs and line breaks become spaces, runs of spaces one; none of any kind stands at the ends.

    No-break spaces inside, which French and others mean, stay.
    """
    return re.sub(" +", " ", re.sub(f"[{LINE_BREAKS}\t]", " ", text)).strip()


def unescape(text: str) -> str:
    """HTML entities as what they stand for; still one line and no tab."""
    return re.sub(f"[{LINE_BREAKS}\t]", " ", html.unescape(text)) if "&" in text else text


# UTF-8 of two to four bytes, read as Latin-1 or as Windows-1252.
_BYTES = {chr(byte): byte for byte in range(128, 256)} | {
    bytes([byte]).decode("cp1252", "replace"): byte for byte in range(128, 160)
}
del _BYTES["\ufffd"]
_CONTINUATIONS = "".join(re.escape(char) for char, byte in _BYTES.items() if byte < 0xC0)
_GARBLED = re.compile(
    f"[\u00c2-\u00df][{_CONTINUATIONS}]"
    f"|[\u00e0-\u00ef][{_CONTINUATIONS}]{{2}}"
    f"|[\u00f0-\u00f4][{_CONTINUATIONS}]{{3}}"
)
_LOST_IN_GBK = "\u951f\u65a4\u62f7"  # the bytes of two U+FFFD, read as GBK


def demojibake(text: str) -> tuple[str, str] | None:
    """The first characters that are another one's UTF-8 bytes, and that other one; None if the text
    is as it should be.

    One sequence alone counts where it stands for a letter of Latin-1 or for punctuation, which is
    what mojibake of European text nearly always is. Others happen in good text too (an accented
    capital before a closing quote): they count where a third of the text is such sequences.
    """
    if _LOST_IN_GBK in text:
        return _LOST_IN_GBK, "\ufffd\ufffd"
    garbled: list[tuple[str, str]] = []
    for found in _GARBLED.finditer(text):
        with contextlib.suppress(UnicodeDecodeError):
            garbled.append((found[0], bytes(_BYTES[char] for char in found[0]).decode("utf-8")))
    for pair in garbled:
        if "\u00a0" <= pair[1] <= "\u00ff" or "\u2010" <= pair[1] <= "\u203a":
            return pair
    dense = len(garbled) > 1 and 3 * sum(len(chars) for chars, _ in garbled) >= len(text)
    return garbled[0] if dense else None


# First words of Unicode names that name no script.
_NO_SCRIPT = frozenset(
    (
        "FULLWIDTH", "HALFWIDTH", "MODIFIER", "MATHEMATICAL", "SUPERSCRIPT", "SUBSCRIPT",
        "FEMININE", "MASCULINE", "MICRO", "OHM", "KELVIN", "ANGSTROM", "DOUBLE-STRUCK", "SCRIPT",
        "BLACK-LETTER", "PARENTHESIZED", "CIRCLED", "SQUARED", "NEGATIVE", "VERTICAL",
        "IDEOGRAPHIC", "INFORMATION", "TURNED", "EULER", "PLANCK",
    )
)  # fmt: skip
_ONE_SCRIPT = dict.fromkeys(("CJK", "HIRAGANA", "KATAKANA", "BOPOMOFO"), "HAN")
_ASCII_LETTER = re.compile("[A-Za-z]")


def script_of(text: str) -> str:
    """The script of more than half of the letters, by its name in Unicode ("LATIN"); "" for none.

    Chinese and Japanese count as one, and each of their characters as three letters.
    """
    if text.isascii():
        return "LATIN" if _ASCII_LETTER.search(text) else ""
    counts: dict[str, int] = {}
    for char in text:
        if script := _script(char):
            counts[script] = counts.get(script, 0) + (3 if script == "HAN" else 1)
    if not counts:
        return ""
    best = max(counts, key=lambda script: counts[script])
    return best if counts[best] * 2 > sum(counts.values()) else ""


@functools.lru_cache(maxsize=1 << 16)
def _script(char: str) -> str:
    if not char.isalpha():
        return ""
    word = unicodedata.name(char, "").partition(" ")[0]
    return "" if word in _NO_SCRIPT else _ONE_SCRIPT.get(word, word)


def shown(text: str, width: int = 80) -> str:
    """For a terminal: what can't be printed escaped, and cut to width characters."""
    escaped = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode()
        for char in text[: width + 1]
    )
    return escaped if len(escaped) <= width else f"{escaped[: width - 1]}\u2026"
