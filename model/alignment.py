"""Which source word each word of a translation comes from, by the decoder's cross-attention.

A target piece is linked to the source piece that one layer, averaged over its heads, looks at most;
two words are linked where any of their pieces are. A piece that looks most at the end of the source
has no link. Which layer aligns differs from model to model, and so does whether it does in the step
that writes a piece or in the next, which reads it (Chen et al. 2020, "Accurate Word Alignment
Induction from Neural Machine Translation"): `choose_view` finds it out without alignments to learn
from. docs/attention.md has what was measured.

Letters: S source pieces (EOS counted), T target pieces (EOS not counted), L decoder layers.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from model.attention_maps import AttentionReader
from model.checkpoint import Checkpoint
from model.words import source_words, target_words
from runtime.tokenizer import Tokenizer

log = logging.getLogger(__name__)

_PAIRS_TO_CHOOSE_WITH = 100

Link = tuple[int, int]
"""Index of a source word, index of a target word, both from 0."""


@dataclass(frozen=True, kw_only=True)
class View:
    """Where alignment is read off. layer: of the decoder, from 0. after: in the step that reads a
    piece, not in the one that writes it."""

    layer: int
    after: bool

    def __str__(self) -> str:
        step = "reads" if self.after else "writes"
        return f"layer {self.layer + 1}, in the step that {step} a token"


class Aligner:
    """Aligns a checkpoint's translations. view: choose_view's if not given."""

    def __init__(self, checkpoint: Checkpoint, view: View | None = None) -> None:
        self._reader = AttentionReader(checkpoint.model)
        self._tokenizer = Tokenizer(checkpoint.tokenizer_proto)
        if view is None:
            samples = checkpoint.samples
            pairs = () if samples is None else samples.valid[:_PAIRS_TO_CHOOSE_WITH]
            view = choose_view(self._reader, self._tokenizer, pairs)
        self.view = view

    def align(self, source: str, target_ids: Sequence[int]) -> tuple[Link, ...]:
        """source: a line as it was given, of which the model reads no more than it can. target_ids:
        [T], without EOS. Gives links in ascending order; model.words says what a word is.

        Raises TextError where the tokenizer does not spell the source.
        """
        src_ids = _cut(self._tokenizer.encode_source(source), self._reader.config.max_source)
        if len(src_ids) == 1 or not target_ids:
            return ()
        words = source_words(self._tokenizer, source)
        translated = target_words(self._tokenizer, target_ids)
        best = _most_seen(self._reader, src_ids, target_ids)[self.view]  # [T]
        links: set[Link] = set()
        for piece, seen in enumerate(best):
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


def choose_view(
    reader: AttentionReader, tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]
) -> View:
    """The view whose links tell most about which target piece goes with which source piece.

    pairs: sources and translations. Measured is the mutual information of the two pieces of a link,
    over all links: a view that aligns links the same source piece with the same target piece again
    and again, one that looks at positions, ends or neighbours does not. Without pairs that fit the
    model: the last layer, in the step that writes.
    """
    counts: dict[View, Counter[tuple[int, int]]] = {}
    config = reader.config
    for source, target in pairs:
        src_ids, ids = tokenizer.encode_source(source), tokenizer.encode_target(target)[:-1]
        if len(src_ids) > config.max_source or not 0 < len(ids) < config.max_target:
            continue
        for view, best in _most_seen(reader, src_ids, ids).items():
            seen = (src_ids[place] for place in best)
            counts.setdefault(view, Counter()).update(zip(seen, ids, strict=True))
    if not counts:
        return View(layer=config.decoder.num_layers - 1, after=False)
    chosen = max(counts, key=lambda view: _mutual_information(counts[view]))
    log.info("alignment by decoder %s", chosen)
    return chosen


def _most_seen(
    reader: AttentionReader, src_ids: Sequence[int], target_ids: Sequence[int]
) -> dict[View, list[int]]:
    """For each view and target piece the place of the source piece that it looks at most: [T].

    target_ids [T] without EOS. The last piece that the model has positions for is read by no step:
    there it is the step that writes it.
    """
    config = reader.config
    input_ids = [config.special_ids.decoder_start_id, *target_ids][: config.max_target]
    weights = reader.read_cross(src_ids, input_ids)  # [L,T or T+1,S]
    best = weights.argmax(axis=-1)
    length = len(target_ids)
    reading = np.minimum(np.arange(length) + 1, best.shape[1] - 1)
    return {
        View(layer=layer, after=after): best[layer, reading if after else slice(length)].tolist()
        for layer in range(config.decoder.num_layers)
        for after in (False, True)
    }


def _mutual_information(counts: Counter[tuple[int, int]]) -> float:
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
