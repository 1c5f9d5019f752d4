"""Attention as a heat map: its rows, columns and weights, and which of its maps is shown.

`model.interpretation.page` and `model.interpretation.image` draw it.

Letters: L layers, H heads, S source tokens, T decoder steps; R rows and C columns of one map.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from model.checkpoint import Checkpoint, load_checkpoint
from model.interpretation.alignment import View, choose_views, mean_weights, pairs_to_choose_with
from model.interpretation.maps import AttentionMaps, AttentionReader, check_length
from model.interpretation.words import Words, merge, source_words, target_words
from model.translation import open_translator
from runtime.backend import FloatArray
from runtime.errors import OptionError
from runtime.normalizer import normalize_source, replace_surrogates
from runtime.tokenizer import Tokenizer
from runtime.translator import Translator

Kind = Literal["cross", "encoder", "decoder", "alignment"]
"""Decoder to source; source to source; decoder to what it has read; decoder to source where it
aligns best (model.interpretation.alignment)."""

Units = Literal["subwords", "words"]


@dataclass(frozen=True, kw_only=True)
class Map:
    """One kind of attention in one kind of units.

    rows [R], columns [C]: their labels. weights: float32 [L,H,R,C], each row sums to 1.
    probabilities: float32 [R], what the model gives each row's text after the text before it; None
    where rows are of the source.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    weights: FloatArray
    probabilities: FloatArray | None = None

    @property
    def num_layers(self) -> int:
        return int(self.weights.shape[0])

    @property
    def num_heads(self) -> int:
        return int(self.weights.shape[1])

    def select(self, layer: int | None, head: int | None) -> FloatArray:
        """float32 [R,C]: of one layer and head, counted from 1, or the average over all of them
        where None."""
        layers = slice(None) if layer is None else slice(layer - 1, layer)
        heads = slice(None) if head is None else slice(head - 1, head)
        average: FloatArray = self.weights[layers, heads].mean(axis=(0, 1))
        return average


@dataclass(frozen=True, kw_only=True)
class Heatmap:
    """source, target: the texts. translated: the target is the model's own. views: of which the
    alignment is the mean; it has one layer and one head."""

    source: str
    target: str
    translated: bool
    views: tuple[View, ...]
    maps: Mapping[tuple[Kind, Units], Map]


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What is shown: layer and head count from 1, None is the average over all."""

    kind: Kind = "cross"
    layer: int | None = None
    head: int | None = None
    units: Units = "subwords"

    def check(self, heatmap: Heatmap) -> None:
        """Raises OptionError for a layer or head that the heat map does not have."""
        shown = heatmap.maps[self.kind, self.units]
        for name, found, most in (
            ("layer", self.layer, shown.num_layers),
            ("head", self.head, shown.num_heads),
        ):
            if found is not None and not 1 <= found <= most:
                raise OptionError(
                    f"{name} is {found}; {self.kind} has {name}s 1 to {most} in this model: give "
                    "one of them, or none for the average"
                )


def make_heatmap(
    checkpoint: Checkpoint | Path | str,
    source: str,
    target: str | None = None,
    *,
    beam_size: int | None = None,
    threads: int | None = None,
) -> Heatmap:
    """What the model attends to while it writes `target`, or its own translation where None.

    beam_size: of the search for that; the checkpoint's default if None. Raises CheckpointError;
    OptionError for a text that is empty or too long for the model.
    """
    source = replace_surrogates(source)
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = load_checkpoint(checkpoint)
    for side, text in (("source", normalize_source(source)), ("target", target)):
        if text is not None and not text.strip():
            raise OptionError(f"the {side} is empty; expected a sentence")
    with open_translator(checkpoint, threads=threads) as translator:
        tokenizer = translator.source_tokenizer
        src_ids = tokenizer.encode_source(source)
        check_length("source", len(src_ids), checkpoint.config.max_source)
        if target is None:
            output_ids = _search(translator, src_ids, beam_size)
        else:
            output_ids = tokenizer.encode_target(target)
    reader = AttentionReader(checkpoint.model)
    found = reader.read(src_ids, output_ids)
    views = choose_views(reader, tokenizer, pairs_to_choose_with(checkpoint))
    aligned = mean_weights(views, found.cross, len(output_ids))[None, None]
    return Heatmap(
        source=source,
        target=tokenizer.decode(output_ids) if target is None else replace_surrogates(target),
        translated=target is None,
        views=views,
        maps=_subword_maps(tokenizer, found, aligned)
        | _word_maps(tokenizer, source, found, aligned),
    )


def _search(translator: Translator, src_ids: Sequence[int], beam_size: int | None) -> list[int]:
    """The best translation's ids, EOS last if it has ended."""
    options = translator.defaults
    if beam_size is not None:
        options = dataclasses.replace(options, beam_size=beam_size)
    best = translator.search_ids([src_ids], options)[0][0]
    return [*best.token_ids, *([translator.special_ids.eos] if best.finished else [])]


def _subword_maps(
    tokenizer: Tokenizer, found: AttentionMaps, aligned: FloatArray
) -> dict[tuple[Kind, Units], Map]:
    """aligned: [1,1,T,S]."""
    source, written, read = (
        tuple(tokenizer.pieces(ids)) for ids in (found.src_ids, found.output_ids, found.input_ids)
    )
    shown = found.probabilities
    return {
        ("cross", "subwords"): Map(
            rows=written, columns=source, weights=found.cross, probabilities=shown
        ),
        ("encoder", "subwords"): Map(rows=source, columns=source, weights=found.encoder),
        ("decoder", "subwords"): Map(
            rows=written, columns=read, weights=found.decoder, probabilities=shown
        ),
        ("alignment", "subwords"): Map(
            rows=written, columns=source, weights=aligned, probabilities=shown
        ),
    }


def _word_maps(
    tokenizer: Tokenizer, source_text: str, found: AttentionMaps, aligned: FloatArray
) -> dict[tuple[Kind, Units], Map]:
    """The same by words: the sum over the pieces of a column's word, the mean over those of a
    row's, so that rows sum to 1 still; a word's probability is the product of its pieces'."""
    source = _with_controls(tokenizer, found.src_ids, source_words(tokenizer, source_text))
    written, read = (
        _with_controls(tokenizer, ids, target_words(tokenizer, ids))
        for ids in (found.output_ids, found.input_ids)
    )
    spelling = written.overlaps > 0  # [T,R]
    products = np.where(spelling, found.probabilities[:, None], 1).prod(axis=0)  # [R]
    return {
        ("cross", "words"): Map(
            rows=written.texts,
            columns=source.texts,
            weights=merge(found.cross, written, source),
            probabilities=products,
        ),
        ("encoder", "words"): Map(
            rows=source.texts,
            columns=source.texts,
            weights=merge(found.encoder, source, source),
        ),
        ("decoder", "words"): Map(
            rows=written.texts,
            columns=read.texts,
            weights=merge(found.decoder, written, read),
            probabilities=products,
        ),
        ("alignment", "words"): Map(
            rows=written.texts,
            columns=source.texts,
            weights=merge(aligned, written, source),
            probabilities=products,
        ),
    }


def _with_controls(tokenizer: Tokenizer, ids: Sequence[int], words: Words) -> Words:
    """The words that have pieces, and the start or end token, if there, as words of their own."""
    seen = np.flatnonzero(words.overlaps.any(axis=0))
    texts = [words.texts[index] for index in seen]
    overlaps = words.overlaps[:, seen]
    for place, before in ((0, True), (len(ids) - 1, False)):
        if not overlaps[place].any():
            at = 0 if before else len(texts)
            texts.insert(at, *tokenizer.pieces([ids[place]]))
            overlaps = np.insert(overlaps, at, np.arange(len(ids)) == place, axis=1)
    return Words(texts=tuple(texts), overlaps=overlaps)
