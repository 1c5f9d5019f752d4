from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from support.tiny_model import random_transformer, tiny_config, trained_corpus
from support.tiny_tokenizer import tiny_tokenizer

from model.checkpoint import Checkpoint, load_checkpoint
from model.config import ModelConfig
from model.interpretation.alignment import Aligner, View, choose_views, pharaoh
from model.interpretation.maps import AttentionReader
from model.interpretation.words import source_words, target_words
from model.samples import Samples
from model.translation import open_translator
from runtime.errors import TextError
from runtime.options import SearchOptions


class PlantedReader:
    """Translates nothing: in one view each piece looks at the source piece with its own id, in the
    others always at one place. Where the view names no head, the heads do so by turns."""

    def __init__(self, view: View) -> None:
        self.config: ModelConfig = tiny_config()
        self.view = view

    def read_cross(self, src_ids: Sequence[int], input_ids: Sequence[int]) -> np.ndarray:
        """float32 [L,H,T,S]."""
        weights = np.full((2, 4, len(input_ids), len(src_ids)), 0.1, np.float32)
        weights[..., 1] = 0.2
        written = [*input_ids[1:], -1]
        for step, token_id in enumerate(input_ids if self.view.after else written):
            if token_id in src_ids:
                head = step % 4 if self.view.head is None else self.view.head
                weights[self.view.layer, head, step, src_ids.index(token_id)] = 0.9
        return weights


PAIRS = [("in 3 days", "days 3 in"), ("the cat 12", "12 cat the"), ("in 45", "45 in")] * 3


def checkpoint_of(path: Path, samples: Samples | None = None, **changes: object) -> Checkpoint:
    model = random_transformer(**changes)
    return Checkpoint(
        model=model,
        config=model.config,
        tokenizer_proto=tiny_tokenizer().model_proto,
        samples=samples,
        sha256="",
    )


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("head", [0, 3])
@pytest.mark.parametrize("after", [False, True])
def test_the_views_that_link_equal_things_with_equal_things_are_chosen(
    layer: int, head: int, after: bool
) -> None:
    view = View(layer=layer, head=head, after=after)
    found = choose_views(PlantedReader(view), tiny_tokenizer(), PAIRS)
    assert found == (View(layer=layer, after=after), view)


@pytest.mark.parametrize("after", [False, True])
def test_the_mean_over_heads_is_chosen_for_itself(after: bool) -> None:
    """No single head aligns all."""
    view = View(layer=1, after=after)
    assert choose_views(PlantedReader(view), tiny_tokenizer(), PAIRS)[0] == view


@pytest.mark.parametrize("pairs", [[], [("in 3 days", "")], [("ŵ" * 50, "in")], [("in", "ŵ" * 50)]])
def test_without_pairs_that_fit_it_is_the_last_layer_as_it_writes(
    pairs: list[tuple[str, str]],
) -> None:
    reader = AttentionReader(random_transformer())
    assert choose_views(reader, tiny_tokenizer(), pairs) == (View(layer=1, after=False),)


def test_a_view_says_in_words_what_it_is() -> None:
    assert str(View(layer=1, after=True)) == ("layer 2, all heads, in the step that reads a token")
    assert str(View(layer=0, head=2, after=False)) == (
        "layer 1, head 3, in the step that writes a token"
    )


def test_pharaoh() -> None:
    assert pharaoh([(0, 0), (1, 2), (10, 3)]) == "0-0 1-2 10-3"
    assert pharaoh([]) == ""


VIEWS = [
    (View(layer=1, after=False),),
    (View(layer=0, head=2, after=True),),
    (View(layer=1, after=False), View(layer=0, head=3, after=True)),
]


@pytest.mark.parametrize("views", VIEWS, ids=str)
def test_links_are_those_of_the_pieces_that_are_looked_at_most(
    tmp_path: Path, views: tuple[View, ...]
) -> None:
    checkpoint = checkpoint_of(tmp_path)
    tokenizer, source = tiny_tokenizer(), "in 123 days été"
    ids = tokenizer.encode_target("cat 99 sat on")[:-1]
    found = Aligner(checkpoint, views).align(source, ids)
    src_ids = tokenizer.encode_source(source)
    start = checkpoint.config.special_ids.decoder_start_id
    cross = AttentionReader(checkpoint.model).read_cross(src_ids, [start, *ids])
    of_source = source_words(tokenizer, source).overlaps
    of_target = target_words(tokenizer, ids).overlaps
    expected = set()
    for piece in range(len(ids)):
        rows = [
            cross[v.layer, :, piece + v.after].mean(axis=0)
            if v.head is None
            else cross[v.layer, v.head, piece + v.after]
            for v in views
        ]
        seen = int(np.mean(rows, axis=0).argmax())
        for s in range(of_source.shape[1]):
            for t in range(of_target.shape[1]):
                if of_source[seen, s] and of_target[piece, t]:
                    expected.add((s, t))
    assert found == tuple(sorted(expected))
    assert found


def test_nothing_is_linked_with_the_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    aligner = Aligner(checkpoint_of(tmp_path), [View(layer=0, after=False)])

    def at_the_end(_: object, src_ids: Sequence[int], input_ids: Sequence[int]) -> np.ndarray:
        weights = np.zeros((2, 4, len(input_ids), len(src_ids)), np.float32)
        weights[..., -1] = 1
        return weights

    monkeypatch.setattr(AttentionReader, "read_cross", at_the_end)
    assert aligner.align("in 3 days", tiny_tokenizer().encode_target("cat")[:-1]) == ()


def test_empty_texts_have_no_links(tmp_path: Path) -> None:
    aligner = Aligner(checkpoint_of(tmp_path))
    assert aligner.align(" ", [5]) == ()
    assert aligner.align("in", []) == ()


def test_of_a_line_that_is_too_long_what_the_model_reads_is_aligned(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(tmp_path)
    line = "in 3 days " * 60
    limit = checkpoint.config.max_source
    read = source_words(tiny_tokenizer(), line).overlaps[: limit - 1].any(axis=0).sum()
    for views in VIEWS:
        links = Aligner(checkpoint, views).align(line, [40, 41, 42] * 10)
        assert links
        assert all(source < read for source, _ in links)


def test_a_translation_as_long_as_the_model_allows_is_aligned(tmp_path: Path) -> None:
    """Its last token is read by no step."""
    checkpoint = checkpoint_of(tmp_path)
    ids = [40, 41, 42, 43] * (checkpoint.config.max_target // 4)
    for views in VIEWS:
        assert Aligner(checkpoint, views).align("in 3 days", ids)


def test_samples_of_the_checkpoint_choose_the_views(tmp_path: Path) -> None:
    samples = Samples(calibration=(), valid=tuple(PAIRS))
    checkpoint = checkpoint_of(tmp_path, samples)
    reader = AttentionReader(checkpoint.model)
    assert Aligner(checkpoint).views == choose_views(reader, tiny_tokenizer(), PAIRS)


@pytest.mark.slow
def test_a_trained_model_aligns_numbers_with_themselves(trained_checkpoint: Path) -> None:
    lines = [phrase.source for phrase in trained_corpus().splits["test"]]
    checkpoint = load_checkpoint(trained_checkpoint)
    aligner = Aligner(checkpoint)
    with open_translator(checkpoint) as translator:
        translations = translator.translate(lines, SearchOptions(beam_size=1))
    right = wrong = 0
    for line, translation in zip(lines, translations, strict=True):
        source, target = line.split(), translation.text.split()
        links = aligner.align(line, translation.hypotheses[0].token_ids)
        for place, word in enumerate(target):
            if word.isdecimal() and source.count(word) == 1:
                of_it = [s for s, t in links if t == place]
                right += source.index(word) in of_it
                wrong += source.index(word) not in of_it
    assert right + wrong > 50
    assert right / (right + wrong) > 0.8


def test_a_tokenizer_that_changes_the_text_is_told_of(tmp_path: Path) -> None:
    from support.tiny_tokenizer import train_proto

    checkpoint = checkpoint_of(tmp_path)
    proto = train_proto(byte_fallback=False, vocab_size=120)
    other = Checkpoint(**{**vars(checkpoint), "tokenizer_proto": proto})
    with pytest.raises(TextError, match="words need a tokenizer that changes nothing"):
        Aligner(other).align("in ŵ", [5])
