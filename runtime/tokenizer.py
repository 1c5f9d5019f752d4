"""Text to token ids and back: a SentencePiece model behind our own normalizer.

Knows nothing of the model that reads the ids, nor of limits on length.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import sentencepiece

from runtime.errors import TextError
from runtime.normalizer import normalize_source, normalize_target

# A translation is one line. Byte pieces can spell any of the characters that end one.
_LINE_BREAK = re.compile("\r\n|[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")


@dataclass(frozen=True, kw_only=True)
class SpecialIds:
    """The ids of the four control pieces. leanseq trains tokenizers with 0, 1, 2 and 3."""

    pad_id: int
    unk_id: int
    bos_id: int
    eos_id: int

    def __contains__(self, token_id: object) -> bool:
        return token_id in (self.pad_id, self.unk_id, self.bos_id, self.eos_id)


class Tokenizer:
    """Thread-safe: all methods read only.

    model_proto is the content of a SentencePiece `.model` file. Raises TextError if it is damaged
    or lacks one of the four control pieces.
    """

    def __init__(self, model_proto: bytes) -> None:
        self._processor = _load(model_proto)
        self.model_proto = model_proto
        self.size: int = self._processor.get_piece_size()
        self.special_ids = SpecialIds(
            pad_id=self._processor.pad_id(),
            unk_id=self._processor.unk_id(),
            bos_id=self._processor.bos_id(),
            eos_id=self._processor.eos_id(),
        )
        for name, value in vars(self.special_ids).items():
            if value < 0:
                raise TextError(
                    f"the tokenizer model has no {name.removesuffix('_id')} piece; expected pad, "
                    "unk, bos and eos: train it with all four"
                )
        self._control_ids = frozenset(vars(self.special_ids).values())

    def encode_source(self, text: str) -> list[int]:
        """normalize_source, then pieces, then EOS. Control pieces spelt in the text stay text."""
        return self._encode(normalize_source(text))

    def encode_target(self, text: str) -> list[int]:
        """normalize_target, then pieces, then EOS; no start id."""
        return self._encode(normalize_target(text))

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._processor.encode(text)
        ids.append(self.special_ids.eos_id)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """One line of text: control ids are skipped, line breaks become spaces.

        Byte pieces that are no valid UTF-8 become U+FFFD. Raises TextError for an id outside the
        vocabulary.
        """
        text: str = self._processor.decode(
            [token_id for token_id in self._checked(ids) if token_id not in self._control_ids]
        )
        return _LINE_BREAK.sub(" ", text)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The piece of each id, as SentencePiece spells it (U+2581 for a space, <0x0A> for a byte).

        Raises TextError for an id outside the vocabulary.
        """
        checked = self._checked(ids)
        return list(self._processor.id_to_piece(checked)) if checked else []

    def _checked(self, ids: Iterable[int]) -> list[int]:
        checked = [int(token_id) for token_id in ids]
        if checked and (min(checked) < 0 or max(checked) >= self.size):
            outside = next(token_id for token_id in checked if not 0 <= token_id < self.size)
            raise TextError(
                f"token id {outside} is outside the tokenizer's vocabulary of {self.size}; "
                "the model and the tokenizer do not belong together"
            )
        return checked


def _load(model_proto: bytes) -> sentencepiece.SentencePieceProcessor:
    problem = f"the tokenizer model ({len(model_proto)} bytes) is empty or damaged; expected the "
    problem += "content of a SentencePiece .model file"
    if not model_proto:  # SentencePiece would leave the processor without a model, and say nothing
        raise TextError(problem)
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=model_proto)
    except (RuntimeError, OSError, ValueError) as error:
        raise TextError(problem) from error
