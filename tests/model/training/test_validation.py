from __future__ import annotations

import sys

import pytest
import torch
from support.tiny_model import random_transformer
from support.tiny_tokenizer import tiny_tokenizer

from model.eager import EagerBackend, special_token_ids
from model.errors import TrainingError
from model.evaluation.metrics import evaluate
from model.training.batching import encode_corpus
from model.training.validation import Validator, validation_loss
from runtime.errors import MissingExtraError
from runtime.options import SearchOptions
from runtime.translator import Translator

PAIRS = [
    ("in 3 days", "in 3 Tagen"),
    ("the cat", "die Katze"),
    ("\u200b", "nothing visible on the left"),
    ("word " * 80, "longer than the model reads"),
    ("March 5, 2024", "5. März 2024"),
    ("3:30 PM", "15:30"),
]


def validator(lines: int = 100, threads: int = 1) -> Validator:
    corpus = encode_corpus(PAIRS, tiny_tokenizer(), random_transformer().config, "validation")
    return Validator(PAIRS, corpus, tiny_tokenizer(), lines=lines, batch_tokens=40, threads=threads)


def test_the_score_is_that_of_greedy_translations() -> None:
    transformer = random_transformer()
    translator = Translator(
        EagerBackend(transformer), tiny_tokenizer(), special_token_ids(transformer.config)
    )
    found = validator().validate(transformer.train())
    texts = [
        one.text
        for one in translator.translate([pair[0] for pair in PAIRS], SearchOptions(beam_size=1))
    ]
    expected = evaluate(texts, [pair[1] for pair in PAIRS])
    assert found.score.bleu == expected.bleu.score
    assert found.score.bleu_lc == expected.bleu_lc.score
    assert found.signature == expected.bleu.signature
    assert [(s.source, s.translation) for s in found.samples] == [
        (PAIRS[i][0], texts[i]) for i in (0, 2, 4)
    ]
    assert texts[2] == ""
    assert not transformer.training


def test_it_does_not_depend_on_the_number_of_threads() -> None:
    transformer, before = random_transformer(), torch.get_num_threads()
    assert validator(threads=3).validate(transformer) == validator().validate(transformer)
    assert torch.get_num_threads() == before


def test_the_loss_is_of_all_pairs_that_fit_and_bleu_of_some() -> None:
    some = validator(lines=2)
    assert some.num_lines == 2
    transformer = random_transformer()
    found = some.validate(transformer)
    assert found.score.loss == validator().validate(transformer).score.loss
    assert [sample.source for sample in found.samples] == ["in 3 days", PAIRS[3][0]]


def test_the_loss_is_the_mean_over_target_tokens() -> None:
    transformer = random_transformer()
    corpus = encode_corpus(PAIRS[:2], tiny_tokenizer(), transformer.config, "validation")
    losses = []
    for pair in PAIRS[:2]:
        one = encode_corpus([pair], tiny_tokenizer(), transformer.config, "validation")
        losses.append((validation_loss(transformer, one, 40), int(one.target.lengths.sum())))
    mean = sum(loss * tokens for loss, tokens in losses) / sum(tokens for _, tokens in losses)
    assert validation_loss(transformer, corpus, 40) == pytest.approx(mean, rel=1e-5)


def test_a_missing_extra_is_told_before_anything_is_trained(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    with pytest.raises(MissingExtraError, match="sacrebleu"):
        validator()


def test_equal_sources_are_one_with_several_references() -> None:
    transformer = random_transformer()
    pairs = [("the cat", "die Katze"), ("3:30 PM", "15:30"), ("the cat", "Katze")]
    corpus = encode_corpus(pairs, tiny_tokenizer(), transformer.config, "validation")
    one = Validator(pairs, corpus, tiny_tokenizer(), lines=9, batch_tokens=40, threads=1)
    found = one.validate(transformer)
    assert one.num_lines == 2
    texts = [sample.translation for sample in found.samples]
    expected = evaluate(texts, [["die Katze", "Katze"], ["15:30"]])
    assert found.score.bleu == expected.bleu.score
    assert found.signature == expected.bleu.signature
    assert found.samples[0].references == ("die Katze", "Katze")


def test_a_loss_that_is_not_finite() -> None:
    transformer = random_transformer()
    with torch.no_grad():
        transformer.output_weight.fill_(float("inf"))
    with pytest.raises(TrainingError, match=r"the validation loss is nan: .* learning rate is too"):
        validator().validate(transformer)
