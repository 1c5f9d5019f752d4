"""BPE dropout: another segmentation of the same line in every epoch.

Provilkov et al. 2020, arXiv 1910.13267, section 3.2: each merge of the byte-pair encoding is left
out with probability p whenever it could be made, so that a model sees a word in many ways and
learns what its parts mean. Translation and validation segment without it.

SentencePiece samples too, but its draws differ from process to process, and a training that goes on
after a kill has to see what it would have seen.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import sentencepiece

from model.config import ModelConfig
from model.training.batching import EncodedCorpus, Side, encode_corpus
from runtime.normalizer import normalize_source, normalize_target
from runtime.tokenizer import Tokenizer

Pairs = Sequence[tuple[str, str]]
_SPACE = "\u2581"
_MOST_CUTS = 8
"""Segmentations drawn for one word in one epoch; frequent words share them."""


class Merges:
    """The byte-pair merges of a SentencePiece model."""

    def __init__(self, model_proto: bytes) -> None:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model_proto)
        ids = range(processor.get_piece_size())
        self._bytes = [processor.piece_to_id(f"<0x{value:02X}>") for value in range(256)]
        special = {i for i in ids if processor.is_control(i) or processor.is_unknown(i)}
        special.update(self._bytes)
        self._ids = {processor.id_to_piece(i): i for i in ids if i not in special}
        self._ranks = {piece: -processor.get_score(i) for piece, i in self._ids.items()}

    def cut(self, word: str, p: float, rng: random.Random) -> list[int]:
        """The ids of one word, which begins with U+2581 where a space stood: from characters up,
        the earliest merge of those not left out, the leftmost first, until none is possible.
        Characters without a piece are spelt in bytes."""
        symbols = list(word)
        while True:
            best, place = None, -1
            for index in range(len(symbols) - 1):
                rank = self._ranks.get(symbols[index] + symbols[index + 1])
                if rank is None or (best is not None and rank >= best):
                    continue
                if not p or rng.random() >= p:
                    best, place = rank, index
            if best is None:
                break
            symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]
        ids: list[int] = []
        for symbol in symbols:
            known = self._ids.get(symbol)
            ids += [known] if known is not None else [self._bytes[b] for b in symbol.encode()]
        return ids


@dataclass(frozen=True, kw_only=True)
class _Words:
    """The lines of one side as words."""

    kinds: list[str]  # each word once
    counts: npt.NDArray[np.int64]  # [kinds]: how often it stands in the lines
    tokens: npt.NDArray[np.int32]  # [all words]: the kind of each
    per_line: npt.NDArray[np.int64]  # [lines]

    @classmethod
    def of(cls, lines: Sequence[str]) -> _Words:
        kinds: dict[str, int] = {}
        tokens = []
        per_line = []
        for line in lines:
            words = words_of(line)
            tokens += [kinds.setdefault(word, len(kinds)) for word in words]
            per_line.append(len(words))
        found = np.array(tokens, dtype=np.int32)
        return cls(
            kinds=list(kinds),
            counts=np.bincount(found, minlength=len(kinds)),
            tokens=found,
            per_line=np.array(per_line),
        )

    def cut(self, merges: Merges, plain: Side, *, p: float, seed: int, longest: int) -> Side:
        """All lines anew, with EOS. A line that would be longer than `longest` tokens keeps its
        plain segmentation."""
        rng = random.Random(seed)
        num_cuts = np.minimum(self.counts, _MOST_CUTS)
        cuts = [
            merges.cut(word, p, rng)
            for word, count in zip(self.kinds, num_cuts.tolist(), strict=True)
            for _ in range(count)
        ]
        cut_lengths = np.array([len(cut) for cut in cuts], dtype=np.int64)
        cut_ids = np.array([i for cut in cuts for i in cut], dtype=np.int32)
        cut_starts = np.cumsum(cut_lengths) - cut_lengths
        first = np.cumsum(num_cuts) - num_cuts
        draws = np.random.default_rng(seed).random(len(self.tokens))
        chosen = first[self.tokens] + (draws * num_cuts[self.tokens]).astype(np.int64)
        firsts = np.cumsum(self.per_line) - self.per_line
        lengths = np.add.reduceat(cut_lengths[chosen], firsts)
        starts = np.cumsum(lengths) - lengths
        # Each line takes a span of one pool, of what was drawn or of what is plain, and then EOS.
        drawn = cut_ids[_spans(cut_starts[chosen], cut_lengths[chosen])]
        pool = np.concatenate((drawn, plain.ids))
        stays = lengths + 1 > longest
        starts = np.where(stays, plain.starts + len(drawn), starts)
        lengths = np.where(stays, plain.lengths - 1, lengths)
        new_starts = np.cumsum(lengths + 1) - (lengths + 1)
        ids = np.full(int((lengths + 1).sum()), plain.ids[-1], dtype=np.int32)
        ids[_spans(new_starts, lengths)] = pool[_spans(starts, lengths)]
        return Side(ids=ids, starts=new_starts, lengths=lengths + 1)


def words_of(line: str) -> list[str]:
    """The words of a normalised line as SentencePiece sees them: U+2581 stands for the space before
    each, and a space that follows another is a word of its own."""
    return [_SPACE + word for word in line.replace(_SPACE, " ").split(" ")]


def _spans(starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The places start, start + 1, ..., start + length - 1 of each span, one after the other."""
    offsets = np.cumsum(lengths) - lengths
    places: npt.NDArray[np.int64] = np.repeat(starts - offsets, lengths)
    return places + np.arange(int(lengths.sum()))


@dataclass(frozen=True, kw_only=True)
class EpochCorpus:
    """The training corpus as one epoch sees it. p: of BPE dropout; 0 gives `plain` every time."""

    plain: EncodedCorpus
    p: float
    seed: int
    _merges: Merges | None
    _source: _Words
    _target: _Words

    @classmethod
    def encode(
        cls, pairs: Pairs, tokenizer: Tokenizer, config: ModelConfig, *, p: float, seed: int
    ) -> EpochCorpus:
        """Raises DataError if no pair can be used (model.training.batching.encode_corpus)."""
        plain = encode_corpus(pairs, tokenizer, config, "training")
        kept = [pairs[row] for row in plain.pair_rows] if p else []
        return cls(
            plain=plain,
            p=p,
            seed=seed,
            _merges=Merges(tokenizer.model_proto) if p else None,
            _source=_Words.of([normalize_source(source) for source, _ in kept]),
            _target=_Words.of([normalize_target(target) for _, target in kept]),
        )

    def of_epoch(self, epoch: int, config: ModelConfig) -> EncodedCorpus:
        """What the epoch trains on; follows from (seed, epoch) alone."""
        if self._merges is None:
            return self.plain
        seeds = np.random.SeedSequence([self.seed, epoch]).generate_state(2).tolist()
        sides = [
            words.cut(self._merges, plain, p=self.p, seed=seed, longest=longest)
            for words, plain, seed, longest in (
                (self._source, self.plain.source, seeds[0], config.max_source),
                (self._target, self.plain.target, seeds[1], config.max_target),
            )
        ]
        return EncodedCorpus(source=sides[0], target=sides[1], pair_rows=self.plain.pair_rows)
