"""Which source word each word of a translation comes from, by the decoder's cross-attention.

A target piece is linked to the source piece that it looks at most, by the mean of a few views; two
words are linked where any of their pieces are. A piece that looks most at the end of the source has
no link. Which layer and head align differs from model to model, and so does whether they do in the
step that writes a piece or in the next, which reads it (Chen et al. 2020, "Accurate Word Alignment
Induction from Neural Machine Translation"). `choose_views` finds it out without alignments to learn
from; docs/attention.md has what was measured.

Letters: S source pieces (EOS counted), T target pieces (EOS not counted), L decoder layers, H
heads.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from model.checkpoint import Checkpoint
from model.interpretation.maps import AttentionReader
from model.interpretation.words import source_words, target_words
from runtime.backend import FloatArray
from runtime.tokenizer import Tokenizer

log = logging.getLogger(__name__)

_PAIRS_TO_CHOOSE_WITH = 100

Link = tuple[int, int]
"""Source, target: the indices of two words, from 0; or the ids of two pieces."""


@dataclass(frozen=True, kw_only=True)
class View:
    """Where to look at. layer: of the decoder, from 0. head: from 0, or the mean of all where None.
    after: in the step that reads a piece, not in the one that writes it."""

    layer: int
    head: int | None = None
    after: bool

    def __str__(self) -> str:
        head = "all heads" if self.head is None else f"head {self.head + 1}"
        step = "reads" if self.after else "writes"
        return f"layer {self.layer + 1}, {head}, in the step that {step} a token"

    def weights(self, cross: FloatArray, length: int) -> FloatArray:
        """cross [L,H,steps,S] -> [T,S], T being length. The last piece that the model has positions
        for is read by no step: there it is the step that writes it."""
        seen = cross[self.layer]
        rows = seen.mean(axis=0) if self.head is None else seen[self.head]  # [steps,S]
        steps = np.minimum(np.arange(length) + self.after, len(rows) - 1)
        chosen: FloatArray = rows[steps]
        return chosen


class Aligner:
    """Aligns a checkpoint's translations. views: choose_views' if not given."""

    def __init__(self, checkpoint: Checkpoint, views: Sequence[View] | None = None) -> None:
        self._reader = AttentionReader(checkpoint.model)
        self._tokenizer = Tokenizer(checkpoint.tokenizer_proto)
        if views is None:
            views = choose_views(self._reader, self._tokenizer, pairs_to_choose_with(checkpoint))
            log.info("alignment by decoder %s", "; and ".join(map(str, views)))
        self.views = tuple(views)

    def align(self, source: str, target_ids: Sequence[int]) -> tuple[Link, ...]:
        """source: a line as it was given, of which the model reads no more than it can. target_ids:
        [T], without EOS. Gives links in ascending order; model.interpretation.words says what a
        word is.

        Raises TextError where the tokenizer does not spell the source.
        """
        src_ids = _cut(self._tokenizer.encode_source(source), self._reader.config.max_source)
        if len(src_ids) == 1 or not target_ids:
            return ()
        words = source_words(self._tokenizer, source)
        translated = target_words(self._tokenizer, target_ids)
        cross = _read(self._reader, src_ids, target_ids)
        weights = mean_weights(self.views, cross, len(target_ids))
        links: set[Link] = set()
        for piece, seen in enumerate(weights.argmax(axis=-1).tolist()):
            if seen < len(src_ids) - 1:
                links.update(
                    itertools.product(
                        np.flatnonzero(words.overlaps[seen]).tolist(),
                        np.flatnonzero(translated.overlaps[piece]).tolist(),
                    )
                )
        return tuple(sorted(links))


def pharaoh(links: Iterable[Link]) -> str:
    """`0-0 1-2 ...`: source word, hyphen, target word."""
    return " ".join(f"{source}-{target}" for source, target in links)


def mean_weights(views: Sequence[View], cross: FloatArray, length: int) -> FloatArray:
    """cross [L,H,steps,S] -> [T,S], T being length: all views in equal parts."""
    weights: FloatArray = np.mean([view.weights(cross, length) for view in views], axis=0)
    return weights


def pairs_to_choose_with(checkpoint: Checkpoint) -> tuple[tuple[str, str], ...]:
    """For choose_views: some of the validation pairs that the checkpoint keeps, if it does."""
    return () if checkpoint.samples is None else checkpoint.samples.valid[:_PAIRS_TO_CHOOSE_WITH]


def choose_views(
    reader: AttentionReader, tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]
) -> tuple[View, ...]:
    """The mean over heads and the single head whose links tell most about which target piece goes
    with which source piece.

    pairs: sources and translations. Measured is the mutual information of the two pieces of a link,
    over all links: a view that aligns links the same source piece with the same target piece again
    and again, one that looks at positions, ends or neighbours does not. Without pairs that fit the
    model: the last layer, in the step that writes.
    """
    config = reader.config
    layers, heads = range(config.decoder.num_layers), range(config.decoder.num_heads)
    means = [View(layer=i, after=after) for i in layers for after in (False, True)]
    singles = [dataclasses.replace(view, head=head) for view in means for head in heads]
    links: dict[View, Counter[Link]] = {view: Counter() for view in (*means, *singles)}
    for source, target in pairs:
        src_ids, ids = tokenizer.encode_source(source), tokenizer.encode_target(target)[:-1]
        if len(src_ids) > config.max_source or not 0 < len(ids) < config.max_target:
            continue
        cross = _read(reader, src_ids, ids)
        for view, counts in links.items():
            seen = view.weights(cross, len(ids)).argmax(axis=-1).tolist()
            counts.update(zip((src_ids[place] for place in seen), ids, strict=True))
    if not links[means[0]]:
        return (View(layer=layers[-1], after=False),)
    information = {view: _mutual_information(counts) for view, counts in links.items()}
    return tuple(max(group, key=lambda view: information[view]) for group in (means, singles))


def _read(reader: AttentionReader, src_ids: Sequence[int], target_ids: Sequence[int]) -> FloatArray:
    """float32 [L,H,T+1,S]: the cross-attention of the step that reads the start token, and those
    that read target_ids [T], of which the last may be one too many for the model."""
    input_ids = [reader.config.special_ids.decoder_start_id, *target_ids]
    return reader.read_cross(src_ids, input_ids[: reader.config.max_target])


def _mutual_information(counts: Counter[Link]) -> float:
    """Of the two sides of the pairs, in nats, as far as their counts tell."""
    sources: Counter[int] = Counter()
    targets: Counter[int] = Counter()
    for (source, target), count in counts.items():
        sources[source] += count
        targets[target] += count
    total = counts.total()
    return sum(
        count / total * math.log(count * total / (sources[source] * targets[target]))
        for (source, target), count in counts.items()
    )


def _cut(src_ids: list[int], limit: int) -> list[int]:
    """What of them the translator gives the model: the first, and EOS."""
    return src_ids if len(src_ids) <= limit else [*src_ids[: limit - 1], src_ids[-1]]
