"""Token ids of a corpus, and batches of about equal numbers of tokens.

The batches of an epoch follow from (seed, epoch) alone, so that training can go on in the middle of
one knowing only the epoch and how many batches of it are done.
"""

from __future__ import annotations

import hashlib
import logging
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model.config import ModelConfig
from model.errors import DataError
from runtime.tokenizer import Tokenizer

_log = logging.getLogger(__name__)
_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Side:
    """The token ids of all lines of one side, one after the other."""

    ids: npt.NDArray[np.int32]  # [all tokens]
    starts: _Ints  # [lines]
    lengths: _Ints  # [lines]

    def padded(self, rows: _Ints, pad_id: int) -> npt.NDArray[np.int32]:
        """int32 [len(rows), longest of them]."""
        lengths = self.lengths[rows]
        columns = np.arange(lengths.max())
        inside = columns < lengths[:, None]
        places = np.where(inside, self.starts[rows][:, None] + columns, 0)
        return np.where(inside, self.ids[places], pad_id).astype(np.int32)

    def line(self, row: int) -> list[int]:
        """The token ids of one line."""
        start = self.starts[row]
        ids: list[int] = self.ids[start : start + self.lengths[row]].tolist()
        return ids


def side_of(lines: Iterable[Sequence[int]]) -> Side:
    """Collects lines of token ids, in 4 bytes a token on the way."""
    ids, lengths = array("i"), array("q")
    for line in lines:
        ids.extend(line)
        lengths.append(len(line))
    ends = np.cumsum(np.array(lengths, dtype=np.int64))
    return Side(
        ids=np.array(ids, dtype=np.int32),
        starts=ends - np.array(lengths, dtype=np.int64),
        lengths=np.array(lengths, dtype=np.int64),
    )


@dataclass(frozen=True, kw_only=True)
class EncodedCorpus:
    """Aligned sides; every line ends with EOS. pair_rows: which of the pairs each line was."""

    source: Side
    target: Side
    pair_rows: _Ints  # [lines]

    def __len__(self) -> int:
        return len(self.source.lengths)

    def batches(self, batch_tokens: int, seed: int | None, epoch: int = 0) -> list[_Ints]:
        """The rows of each batch of one epoch; in order of length where seed is None.

        A batch holds at most batch_tokens padded tokens on either side; a longer line is alone.
        """
        longest = np.maximum(self.source.lengths, self.target.lengths)
        if seed is None:
            return _cut(np.argsort(longest, kind="stable"), longest, batch_tokens)
        rng = np.random.default_rng([seed, epoch])
        # Lines of one length stand in random order. Sorted by both lengths they would pad less, but
        # a batch would be of one kind: dates only, then lists only.
        order = np.lexsort((rng.random(len(self)), longest))
        batches = _cut(order, longest, batch_tokens)
        return [batches[i] for i in rng.permutation(len(batches))]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Teacher forcing: position t of tgt_in predicts position t of tgt_out."""

    src_ids: Tensor  # int32 [B,S]
    src_mask: Tensor  # bool [B,S]
    tgt_in: Tensor  # int32 [B,T], the start id first
    tgt_out: Tensor  # int64 [B,T], EOS last, then pad_id
    num_tokens: int  # target tokens, EOS counted, padding not

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        return replace(
            self,
            src_ids=self.src_ids.to(device),
            src_mask=self.src_mask.to(device),
            tgt_in=self.tgt_in.to(device),
            tgt_out=self.tgt_out.to(device),
        )


def make_batch(corpus: EncodedCorpus, rows: _Ints, config: ModelConfig) -> Batch:
    """The lines `rows` as padded tensors."""
    pad_id = config.special_ids.pad_id
    src_ids = corpus.source.padded(rows, pad_id)  # [B,S]
    tgt_out = corpus.target.padded(rows, pad_id)  # [B,T]
    tgt_in = np.empty_like(tgt_out)
    tgt_in[:, 0] = config.special_ids.decoder_start_id
    tgt_in[:, 1:] = tgt_out[:, :-1]
    src_mask = np.arange(src_ids.shape[1]) < corpus.source.lengths[rows][:, None]
    return Batch(
        src_ids=torch.from_numpy(src_ids),
        src_mask=torch.from_numpy(src_mask),
        tgt_in=torch.from_numpy(tgt_in),
        tgt_out=torch.from_numpy(tgt_out.astype(np.int64)),
        num_tokens=int(corpus.target.lengths[rows].sum()),
    )


def encode_corpus(
    pairs: Sequence[tuple[str, str]], tokenizer: Tokenizer, config: ModelConfig, name: str
) -> EncodedCorpus:
    """Pairs that are longer than the model's positions, or of which the normalizer leaves nothing,
    are left out, and their number logged.

    Raises DataError if none is left.
    """
    kept = array("q")
    source_ids, target_ids = [], []
    for row, (source, target) in enumerate(pairs):
        src_ids, tgt_ids = tokenizer.encode_source(source), tokenizer.encode_target(target)
        if 1 < len(src_ids) <= config.max_source and 1 < len(tgt_ids) <= config.max_target:
            kept.append(row)
            source_ids.append(array("i", src_ids))
            target_ids.append(array("i", tgt_ids))
    corpus = EncodedCorpus(
        source=side_of(source_ids),
        target=side_of(target_ids),
        pair_rows=np.array(kept, dtype=np.int64),
    )
    left_out = len(pairs) - len(corpus)
    limits = f"{config.max_source} source or {config.max_target} target tokens, or empty"
    if not len(corpus):
        raise DataError(
            f"no pair of the {name} corpus can be used: all {len(pairs)} are longer than {limits}; "
            "give lines that hold one sentence each"
        )
    if left_out:
        _log.warning("%d %s pairs left out: longer than %s", left_out, name, limits)
    return corpus


def corpus_sha256(pairs: Sequence[tuple[str, str]]) -> str:
    """Of the text of all pairs, in order."""
    digest = hashlib.sha256()
    for source, target in pairs:
        digest.update(f"{source}\t{target}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _cut(order: _Ints, longest: _Ints, batch_tokens: int) -> list[_Ints]:
    """Cuts `order` so that rows times the longest line of a batch stays within batch_tokens."""
    batches, start, widest = [], 0, 0
    for end, length in enumerate(longest[order].tolist()):
        widest = max(widest, length)
        if end > start and (end - start + 1) * widest > batch_tokens:
            batches.append(order[start:end])
            start, widest = end, length
    batches.append(order[start:])
    return batches
