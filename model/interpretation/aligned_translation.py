"""Translations with the word alignment of each hypothesis: `translate --alignment`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from model.checkpoint import Checkpoint, load_checkpoint
from model.interpretation.alignment import Aligner, Link, pharaoh
from model.translation import open_translator
from runtime.batching import DEFAULT_BATCH_TOKENS
from runtime.options import SearchOptions
from runtime.stream import Format, json_record
from runtime.translator import Translation, Translator


@dataclass(frozen=True, kw_only=True)
class AlignedTranslation(Translation):
    """alignments: the links of each hypothesis, in the order of these."""

    alignments: tuple[tuple[Link, ...], ...]


class AligningTranslator(Translator):
    """Another translator, whose translations are AlignedTranslations: one more pass of the model a
    hypothesis."""

    def __init__(self, translator: Translator, aligner: Aligner) -> None:
        super().__init__(
            translator.backend,
            translator.source_tokenizer,
            translator.special_ids,
            target_tokenizer=translator.target_tokenizer,
            defaults=translator.defaults,
        )
        self.aligner = aligner

    def translate_iter(
        self,
        texts: Iterable[str],
        options: SearchOptions | None = None,
        *,
        batch_tokens: int = DEFAULT_BATCH_TOKENS,
        first_index: int = 0,
    ) -> Iterator[Translation]:
        """As Translator.translate_iter."""
        sources: Iterator[str] = iter(())
        if not isinstance(texts, str):  # of which Translator complains
            texts, sources = itertools.tee(texts)
        translations = super().translate_iter(
            texts, options, batch_tokens=batch_tokens, first_index=first_index
        )
        return map(self._align, sources, translations)

    def _align(self, source: str, translation: Translation) -> AlignedTranslation:
        return AlignedTranslation(
            **vars(translation),
            alignments=tuple(
                self.aligner.align(source, found.token_ids) for found in translation.hypotheses
            ),
        )


def open_aligning_translator(
    checkpoint: Checkpoint | Path | str, *, threads: int | None = None
) -> AligningTranslator:
    """As open_translator. Chooses how to align by what the checkpoint keeps of its validation."""
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = load_checkpoint(checkpoint)
    translator = open_translator(checkpoint, threads=threads)
    return AligningTranslator(translator, Aligner(checkpoint))


def choose_aligned_format(*, as_json: bool, options: SearchOptions) -> Format:
    """As runtime.stream's: JSON with an `alignment` for each hypothesis; or a further field behind
    `|||` where several are wanted; or the text, a tab, the links."""
    if as_json:
        return _json_line
    return _n_best_lines if options.num_hypotheses > 1 else _plain_line


def _plain_line(number: int, translation: Translation) -> str:
    assert isinstance(translation, AlignedTranslation)
    return f"{translation.text}\t{pharaoh(translation.alignments[0])}"


def _n_best_lines(number: int, translation: Translation) -> str:
    assert isinstance(translation, AlignedTranslation)
    return "\n".join(
        f"{number} ||| {found.text} ||| {found.score:.6f} ||| {pharaoh(links)}"
        for found, links in zip(translation.hypotheses, translation.alignments, strict=True)
    )


def _json_line(number: int, translation: Translation) -> str:
    assert isinstance(translation, AlignedTranslation)
    record = json_record(number, translation)
    for found, links in zip(record["hypotheses"], translation.alignments, strict=True):
        found["alignment"] = links
    return json.dumps(record, ensure_ascii=False)
