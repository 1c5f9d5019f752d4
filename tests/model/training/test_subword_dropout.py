from __future__ import annotations

import random

import numpy as np
import pytest
from support.tiny_model import tiny_config
from support.tiny_tokenizer import tiny_tokenizer

from model.corpora import phrases
from model.errors import DataError
from model.tokenizer_training import train_tokenizer
from model.training.subword_dropout import EpochCorpus, Merges, words_of
from runtime.normalizer import normalize_source, normalize_target
from runtime.tokenizer import Tokenizer

PAIRS = [("the cat sat", "the cat"), ("\x01", "cat"), ("a cat", "the cat on the mat")]


def epoch_corpus(p: float, seed: int = 1, **limits: int) -> tuple[EpochCorpus, object]:
    config = tiny_config(**limits)
    return EpochCorpus.encode(PAIRS, tiny_tokenizer(), config, p=p, seed=seed), config


def lines(corpus):
    rows = range(len(corpus))
    return [(corpus.source.line(row), corpus.target.line(row)) for row in rows]


def test_without_it_every_epoch_is_the_plain_corpus() -> None:
    corpus, config = epoch_corpus(0.0)
    assert corpus.of_epoch(3, config) is corpus.plain


def test_an_epoch_follows_from_the_seed_and_its_number() -> None:
    corpus, config = epoch_corpus(0.5)
    same, _ = epoch_corpus(0.5)
    other, _ = epoch_corpus(0.5, seed=2)
    third = lines(corpus.of_epoch(3, config))
    assert lines(same.of_epoch(3, config)) == third
    assert lines(corpus.of_epoch(3, config)) == third
    assert lines(corpus.of_epoch(4, config)) != third
    assert lines(other.of_epoch(3, config)) != third


def test_every_segmentation_spells_the_line() -> None:
    corpus, config = epoch_corpus(0.5)
    tokenizer = tiny_tokenizer()
    longer = 0
    for epoch in range(5):
        sampled = corpus.of_epoch(epoch, config)
        assert sampled.pair_rows.tolist() == [0, 2]
        for (source, target), row in zip(lines(sampled), sampled.pair_rows, strict=True):
            assert (tokenizer.decode(source), tokenizer.decode(target)) == PAIRS[row]
            assert source[-1] == target[-1] == 3
        longer += sampled.source.lengths.sum() > corpus.plain.source.lengths.sum()
    assert longer


def test_a_line_that_would_grow_too_long_stays_plain() -> None:
    plain, config = epoch_corpus(0.0)
    longest = int(max(plain.plain.source.lengths.max(), plain.plain.target.lengths.max()))
    corpus, config = epoch_corpus(0.9, max_source=longest, max_target=longest)
    for epoch in range(3):
        sampled = corpus.of_epoch(epoch, config)
        assert max(sampled.source.lengths.max(), sampled.target.lengths.max()) <= longest
        assert np.all(sampled.target.lengths >= corpus.plain.target.lengths)


def test_nothing_left_out_is_what_sentencepiece_cuts() -> None:
    corpus = phrases.make("de", 1500, valid=50, calibration=50, test=50)
    pairs = [*corpus.pairs("train"), ("日本 123\U0001f600  <s>", "ſ\u0301 \u2581x")]
    proto = train_tokenizer(pairs[:-1], 500)
    tokenizer, merges, rng = Tokenizer(proto), Merges(proto), random.Random(0)
    for source, target in pairs:
        for text, ids in (
            (normalize_source(source), tokenizer.encode_source(source)),
            (normalize_target(target), tokenizer.encode_target(target)),
        ):
            assert [i for word in words_of(text) for i in merges.cut(word, 0.0, rng)] == ids[:-1]


def test_a_merge_is_left_out_with_probability_p() -> None:
    merges = Merges(tiny_tokenizer().model_proto)
    word = "\u2581cat"
    whole = merges.cut(word, 0.0, random.Random(0))
    rng = random.Random(0)
    lengths = [len(merges.cut(word, 0.3, rng)) for _ in range(300)]
    assert len(whole) == min(lengths) < max(lengths) == len(word)
    assert len(merges.cut(word, 1.0, rng)) == len(word)


def test_no_pair_that_can_be_used() -> None:
    with pytest.raises(DataError, match="no pair of the training corpus can be used"):
        EpochCorpus.encode([("\x01", "a")], tiny_tokenizer(), tiny_config(), p=0.1, seed=1)
