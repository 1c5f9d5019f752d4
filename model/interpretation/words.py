"""Words, and the pieces that spell them.

A word is what stands between spaces, as `str.split` sees them. Scripts that put no space between
words are cut finer: each Han character, kana and full-width punctuation mark is a word of its own,
with the marks that follow it. (Thai, Lao, Khmer and Burmese are not: a run of theirs is one word.)

Letters: S or T pieces, W words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runtime.backend import FloatArray
from runtime.errors import TextError
from runtime.normalizer import normalize_source, replace_surrogates
from runtime.tokenizer import Tokenizer

Span = tuple[int, int]
"""Where something begins and ends in a text, in characters."""

# CJK punctuation, kana, Han (with its extensions and compatibility forms), full-width punctuation,
# half-width kana.
_ALONE = re.compile(
    "[\u3001-\u303f\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff9f\U00020000-\U0003ffff]"
)
_GOES_ON = {"Mn", "Mc", "Me", "Cf"}
_UNKNOWN = "\u2047"
_BYTE = re.compile("<0x([0-9A-F]{2})>")


def split_words(text: str) -> list[Span]:
    """The words of a text, in order. Where no character stands alone: those of text.split()."""
    spans: list[Span] = []
    for run in re.finditer(r"\S+", text):
        begin = run.start()
        alone = False
        for place in range(*run.span()):
            if unicodedata.category(text[place]) in _GOES_ON:
                continue
            was_alone, alone = alone, bool(_ALONE.match(text[place]))
            if place > begin and (alone or was_alone):
                spans.append((begin, place))
                begin = place
        spans.append((begin, run.end()))
    return spans


@dataclass(frozen=True, kw_only=True)
class Words:
    """The words of one side. texts: [W]. overlaps: float32 [pieces, W], how many characters of the
    word the piece spells; all 0 for EOS, and for words that the model does not see."""

    texts: tuple[str, ...]
    overlaps: FloatArray


def source_words(tokenizer: Tokenizer, text: str) -> Words:
    """The words of a source line as it was given, and its pieces, EOS last.

    A word of invisible characters alone has no pieces. Raises TextError where the pieces do not
    spell the text.
    """
    words = [text[begin:end] for begin, end in split_words(text)]
    read = normalize_source(text)
    owners = [-1] * len(read)  # of each character, its word
    place = 0
    for index, word in enumerate(words if read else ()):
        # Beside another word: alone, invisible characters would be no line.
        *normalized, _ = normalize_source(f"{word} .").split(" ")
        place += read.startswith(" ", place)
        for part in normalized:
            assert read.startswith(part, place)
            owners[place : place + len(part)] = [index] * len(part)
            place += len(part)
    ids = tokenizer.encode_source(text)
    spelt, spellers = _spell(tokenizer, ids)
    if spelt not in (spellable := read.replace("▁", " "), f" {spellable}"):
        raise TextError(
            f"the pieces of the source spell {spelt!r}, not {read!r}; words need a tokenizer that "
            "changes nothing and knows all bytes, as leanseq trains: use subwords"
        )
    owners = [-1] * (len(spelt) - len(read)) + owners  # of the space that SentencePiece puts first
    return Words(texts=tuple(words), overlaps=_overlaps(owners, spellers, len(ids), len(words)))


def target_words(tokenizer: Tokenizer, ids: Sequence[int]) -> Words:
    """The words of a translation, as Tokenizer.decode spells it, and its pieces. Start, end and
    padding belong to none."""
    spelt, spellers = _spell(tokenizer, ids)
    spans = split_words(spelt)
    owners = [-1] * len(spelt)
    for index, (begin, end) in enumerate(spans):
        owners[begin:end] = [index] * (end - begin)
    return Words(
        texts=tuple(spelt[begin:end] for begin, end in spans),
        overlaps=_overlaps(owners, spellers, len(ids), len(spans)),
    )


def merge(weights: FloatArray, rows: Words, columns: Words) -> FloatArray:
    """weights [...,T,S] of pieces to [...,R,C] of words: the sum over the pieces of a column's
    word, the mean over those of a row's; where they cover all pieces, rows that sum to 1 still do.

    A piece that spells several words gives each its share by characters. A row's word without
    pieces gets zeros.
    """
    shares = columns.overlaps / np.maximum(columns.overlaps.sum(axis=1, keepdims=True), 1)  # [S,C]
    touching = (rows.overlaps > 0).T.astype(np.float32)  # [R,T]
    means = touching / np.maximum(touching.sum(axis=1, keepdims=True), 1)
    merged: FloatArray = (means @ weights @ shares).astype(np.float32)
    return merged


def _spell(tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[str, list[list[int]]]:
    """What the pieces spell, and for each character which of them do: several where it is in bytes.

    Bytes that are no UTF-8 become U+FFFD, an unknown piece U+2047.
    """
    content = bytearray()
    origins: list[int] = []  # of each byte
    for index, (token_id, piece) in enumerate(zip(ids, tokenizer.pieces(ids), strict=True)):
        if token_id == tokenizer.special_ids.unk_id:
            piece = _UNKNOWN
        elif token_id in tokenizer.special_ids:
            continue
        byte = _BYTE.fullmatch(piece)
        spelt = bytes([int(byte[1], 16)]) if byte else piece.replace("▁", " ").encode()
        content += spelt
        origins += [index] * len(spelt)
    text = content.decode(errors="surrogateescape")  # a character for each byte that is no UTF-8
    spellers: list[list[int]] = []
    place = 0
    for char in text:
        length = len(char.encode(errors="surrogateescape"))
        spellers.append(sorted(set(origins[place : place + length])))
        place += length
    return replace_surrogates(text), spellers


def _overlaps(
    owners: Sequence[int],
    spellers: Sequence[Sequence[int]],
    num_pieces: int,
    num_words: int,
) -> FloatArray:
    """[pieces, W]. A piece that spells no character of a word, but a space, goes with the word that
    follows, or the last."""
    overlaps = np.zeros((num_pieces, num_words), dtype=np.float32)
    for owner, pieces in zip(owners, spellers, strict=True):
        if owner >= 0:
            overlaps[pieces, owner] += 1
    if not num_words:
        return overlaps
    following = num_words - 1
    for char in range(len(spellers) - 1, -1, -1):
        following = owners[char] if owners[char] >= 0 else following
        for piece in spellers[char]:
            if not overlaps[piece].any():
                overlaps[piece, following] = 1
    return overlaps
