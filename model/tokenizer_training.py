"""One SentencePiece BPE for both languages, trained on the corpus itself."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import sentencepiece

from model.config import SpecialIds
from model.errors import DataError
from runtime.normalizer import normalize_source, normalize_target

Pair = tuple[str, str]
"""A source line and its translation."""

MAX_LINES = 2_000_000
NUM_CONTROL_AND_BYTES = 4 + 256
_LEAST_COVERAGE = 0.98
"""SentencePiece takes no less."""


def train_tokenizer(pairs: Sequence[Pair], vocab_size: int) -> bytes:
    """The SentencePiece model (a proto) of `vocab_size` pieces; equal input gives equal bytes.

    Identity normalization, since runtime.normalizer has done that work; byte fallback, so that no
    character is unknown; digits stand alone, so that numbers are spelt rather than memorised.
    Raises DataError if the text gives no vocabulary of that size, naming the size that it does.
    """
    lines = list(_training_lines(pairs))
    ids = SpecialIds()
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocab_size,
            character_coverage=character_coverage(
                Counter(char for line in lines for char in line), vocab_size
            ),
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            split_digits=True,
            max_sentence_length=1 << 20,
            num_threads=1,
            minloglevel=2,
            pad_id=ids.pad_id,
            unk_id=ids.unk_id,
            bos_id=ids.bos_id,
            eos_id=ids.eos_id,
        )
    except (RuntimeError, OSError) as error:
        raise DataError(_explain(str(error), vocab_size, len(lines))) from error
    return model.getvalue()


def _training_lines(pairs: Sequence[Pair]) -> Iterator[str]:
    """Both sides, normalised, at most MAX_LINES of them, evenly spread over the corpus."""
    stride = max(1, -(-2 * len(pairs) // MAX_LINES))
    for source, target in pairs[::stride]:
        yield from _nonempty((normalize_source(source), normalize_target(target)))


def _nonempty(lines: Iterable[str]) -> Iterator[str]:
    # SentencePiece reads a NUL as the end of a line.
    return (line for line in (line.replace("\0", " ") for line in lines) if line.strip())


def character_coverage(counts: Counter[str], vocab_size: int) -> float:
    """The share of the text whose characters get a piece of their own.

    counts: of the characters of the normalised text, spaces too. Characters take at most half of
    the pieces, or those of a large alphabet would crowd out the words; the rarest are spelt in
    bytes instead.
    """
    room = max(1, (vocab_size - NUM_CONTROL_AND_BYTES) // 2)
    if len(counts) <= room:
        return 1.0
    covered = sum(count for _, count in counts.most_common(room)) / counts.total()
    return max(covered, _LEAST_COVERAGE)


def _explain(message: str, vocab_size: int, num_lines: int) -> str:
    """SentencePiece's own words name file positions in its source; these say what to do."""
    too_large = re.search(r"too high \(\d+\).*<= (\d+)", message)
    if too_large:
        return (
            f"vocab_size {vocab_size} is too large for this text of {num_lines} lines, which gives "
            f"at most {too_large[1]} pieces; use --vocab-size {too_large[1]} or below"
        )
    too_small = re.search(r"smaller than required_chars. \d+ vs (\d+)", message)
    if too_small or vocab_size <= NUM_CONTROL_AND_BYTES:
        least = int(too_small[1]) if too_small else NUM_CONTROL_AND_BYTES + 1
        return (
            f"vocab_size {vocab_size} is too small: 256 bytes, 4 control pieces and the characters "
            f"of the text need {least}; use --vocab-size {least} or above"
        )
    return f"the tokenizer cannot be trained on this text of {num_lines} lines: {message}"
