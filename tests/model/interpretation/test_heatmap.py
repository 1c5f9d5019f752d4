from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from support.tiny_tokenizer import tiny_tokenizer

from model.checkpoint import load_checkpoint
from model.interpretation.alignment import View, choose_views, mean_weights, pairs_to_choose_with
from model.interpretation.heatmap import Heatmap, Selection, make_heatmap
from model.interpretation.maps import AttentionReader
from model.translation import open_translator
from runtime.errors import OptionError
from runtime.tokenizer import Tokenizer

SOURCE, TARGET = "in 12 days", "été 99 the cat"


@pytest.fixture(scope="module")
def heatmap(random_checkpoint: Path) -> Heatmap:
    return make_heatmap(random_checkpoint, SOURCE, TARGET)


def test_subwords_are_the_pieces_and_the_models_weights(
    heatmap: Heatmap, random_checkpoint: Path
) -> None:
    tokenizer = tiny_tokenizer()
    src_ids, tgt_ids = tokenizer.encode_source(SOURCE), tokenizer.encode_target(TARGET)
    source, target = (tuple(tokenizer.pieces(ids)) for ids in (src_ids, tgt_ids))
    expected = AttentionReader(load_checkpoint(random_checkpoint).model).read(src_ids, tgt_ids)
    cross, encoder, decoder = (
        heatmap.maps[kind, "subwords"] for kind in ("cross", "encoder", "decoder")
    )
    assert (cross.rows, cross.columns) == (target, source)
    assert (encoder.rows, encoder.columns) == (source, source)
    assert (decoder.rows, decoder.columns) == (target, ("<s>", *target[:-1]))
    np.testing.assert_array_equal(cross.weights, expected.cross)
    np.testing.assert_array_equal(encoder.weights, expected.encoder)
    np.testing.assert_array_equal(decoder.weights, expected.decoder)
    for shown in (cross, decoder):
        np.testing.assert_array_equal(shown.probabilities, expected.probabilities)
    assert encoder.probabilities is None


def test_words_and_ends_stand_in_order_and_rows_sum_to_one(heatmap: Heatmap) -> None:
    source, target = ("in", "12", "days", "</s>"), ("été", "99", "the", "cat", "</s>")
    cross, encoder, decoder = (
        heatmap.maps[kind, "words"] for kind in ("cross", "encoder", "decoder")
    )
    assert (cross.rows, cross.columns) == (target, source)
    assert (encoder.rows, encoder.columns) == (source, source)
    assert (decoder.rows, decoder.columns) == (target, ("<s>", *target[:-1]))
    for shown in heatmap.maps.values():
        np.testing.assert_allclose(shown.weights.sum(axis=-1), 1, rtol=1e-5)


def test_a_word_has_the_sum_of_its_columns_the_mean_of_its_rows_and_the_product_of_its_chances(
    heatmap: Heatmap,
) -> None:
    pieces, words = heatmap.maps["cross", "subwords"], heatmap.maps["cross", "words"]
    rows, columns = (
        range(*[i for i, piece in enumerate(side) if piece.startswith("▁")][1:3])
        for side in (pieces.rows, pieces.columns)
    )  # of "99" and "12"
    assert len(rows) > 1
    expected = pieces.weights[:, :, rows][:, :, :, columns].sum(axis=3).mean(axis=2)
    np.testing.assert_allclose(words.weights[:, :, 1, 1], expected, rtol=1e-5)
    assert pieces.probabilities is not None
    assert words.probabilities is not None
    assert words.probabilities[1] == pytest.approx(pieces.probabilities[rows].prod())


@pytest.mark.slow
def test_alignment_is_the_mean_of_the_views_that_align_best(
    heatmap: Heatmap, trained_checkpoint: Path
) -> None:
    assert heatmap.views == (View(layer=1, after=False),)  # no samples to choose with
    checkpoint = load_checkpoint(trained_checkpoint)
    source, target = "in 3 days", "in 3 Tagen"
    trained = make_heatmap(checkpoint, source, target)
    reader, tokenizer = AttentionReader(checkpoint.model), Tokenizer(checkpoint.tokenizer_proto)
    assert trained.views == choose_views(reader, tokenizer, pairs_to_choose_with(checkpoint))
    ids = tokenizer.encode_target(target)
    cross = reader.read(tokenizer.encode_source(source), ids).cross
    shown, pieces = trained.maps["alignment", "subwords"], trained.maps["cross", "subwords"]
    assert (shown.rows, shown.columns) == (pieces.rows, pieces.columns)
    expected = mean_weights(trained.views, cross, len(ids))
    np.testing.assert_array_equal(shown.weights, expected[None, None])
    assert trained.maps["alignment", "words"].rows == ("in", "3", "Tagen", "</s>")


def test_selected_are_one_layer_and_head_or_the_average(heatmap: Heatmap) -> None:
    shown = heatmap.maps["cross", "subwords"]
    np.testing.assert_array_equal(shown.select(2, 3), shown.weights[1, 2])
    np.testing.assert_allclose(shown.select(1, None), shown.weights[0].mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(shown.select(None, 4), shown.weights[:, 3].mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(shown.select(None, None), shown.weights.mean(axis=(0, 1)), rtol=1e-6)


@pytest.mark.parametrize("beam_size", [None, 1])
def test_without_a_target_it_is_the_models_own_translation(
    random_checkpoint: Path, beam_size: int | None
) -> None:
    heatmap = make_heatmap(random_checkpoint, SOURCE, beam_size=beam_size)
    with open_translator(random_checkpoint) as translator:
        options = dataclasses.replace(translator.defaults, beam_size=beam_size or 4)
        best = translator.translate([SOURCE], options)[0].hypotheses[0]
    assert heatmap.translated
    assert heatmap.target == best.text
    rows = heatmap.maps["cross", "subwords"].rows
    assert rows == (*best.tokens, *(["</s>"] if best.finished else []))


def test_a_word_that_the_model_does_not_see_is_left_out(random_checkpoint: Path) -> None:
    heatmap = make_heatmap(random_checkpoint, "in \u200b days", TARGET)
    assert heatmap.maps["cross", "words"].columns == ("in", "days", "</s>")


def test_lone_surrogates_are_replaced(random_checkpoint: Path) -> None:
    heatmap = make_heatmap(random_checkpoint, "in \udcff", "cat \ud800")
    assert (heatmap.source, heatmap.target) == ("in \ufffd", "cat \ufffd")


@pytest.mark.parametrize(
    ("source", "target", "text"),
    [
        (" \u200b", TARGET, "the source is empty; expected a sentence"),
        (SOURCE, " ", "the target is empty"),
        ("ŵ" * 40, TARGET, "the source has .* tokens, its end counted; this model reads 1 to 64"),
        ("ŵ" * 40, None, "the source has .* tokens"),
        (SOURCE, "ŵ" * 40, "the target has .* tokens"),
    ],
)
def test_texts_that_cannot_be_shown_are_refused(
    random_checkpoint: Path, source: str, target: str | None, text: str
) -> None:
    with pytest.raises(OptionError, match=text):
        make_heatmap(random_checkpoint, source, target)


@pytest.mark.parametrize(
    ("selection", "text"),
    [
        (Selection(layer=3), "layer is 3; cross has layers 1 to 2 in this model"),
        (Selection(kind="encoder", layer=0), "layer is 0; encoder has layers"),
        (
            Selection(head=5),
            "head is 5; cross has heads 1 to 4 in this model: give one of them, or",
        ),
        (Selection(kind="alignment", layer=2), "layer is 2; alignment has layers 1 to 1"),
    ],
)
def test_layers_and_heads_that_are_not_there_are_refused(
    heatmap: Heatmap, selection: Selection, text: str
) -> None:
    with pytest.raises(OptionError, match=text):
        selection.check(heatmap)
