"""The trained fixture is worth its minute: it translates."""

from __future__ import annotations

from pathlib import Path

from support.tiny_model import trained_corpus

from model.translation import open_translator


def test_most_unseen_phrases_are_translated_right(trained_checkpoint: Path) -> None:
    phrases = trained_corpus().splits["test"]
    with open_translator(trained_checkpoint) as translator:
        found = translator.translate([phrase.source for phrase in phrases])
    right = sum(f.text == p.target for f, p in zip(found, phrases, strict=True))
    assert right >= 0.5 * len(phrases)
