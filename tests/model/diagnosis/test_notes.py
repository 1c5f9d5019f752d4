"""Norms, losses and vocabularies that are worth a word, and those that are not."""

from __future__ import annotations

import numpy as np
import pytest
from support.tiny_batches import random_batch, random_corpus
from support.tiny_model import random_transformer
from support.tiny_tokenizer import tiny_tokenizer

from model.diagnosis.early import EARLY_UPDATES, EarlyLoss
from model.diagnosis.lines import name_lines
from model.diagnosis.norms import GradientNorms, vanished_layers
from model.diagnosis.overfitting import LossHistory
from model.diagnosis.vocabulary import unseen_pieces
from model.training.batching import EncodedCorpus, side_of
from model.training.loss import token_loss


def test_a_norm_that_explodes() -> None:
    norms = GradientNorms()
    assert norms.median == 0
    assert [norms.add(norm) for norm in [500.0, *[2.0] * 18, 0.0]] == [None] * 20
    assert norms.add(190.0) is None
    assert norms.add(240.0) == pytest.approx(120.0)
    assert (norms.largest, norms.median) == (500.0, 2.0)


def test_the_first_norms_are_not_compared() -> None:
    norms = GradientNorms()
    assert [norms.add(norm) for norm in [1.0] * 19 + [1000.0]] == [None] * 20
    assert GradientNorms().add(1e9) is None


def test_gradients_that_vanish_on_the_way() -> None:
    net = random_transformer().train()
    batch = random_batch(net.config)
    token_loss(net, batch, smoothing=0.0, bf16=False)[0].backward()
    assert vanished_layers(net) == []
    net.zero_grad()
    hook = net.encoder.layers[0].register_forward_hook(lambda _, __, x: x * 1e-6 + x.detach())
    token_loss(net, batch, smoothing=0.0, bf16=False)[0].backward()
    ((name, share),) = vanished_layers(net)
    assert name == "encoder.layers.0"
    assert 0 < share < 1e-4
    hook.remove()
    net.zero_grad()
    assert vanished_layers(net) == []  # nothing to compare


def test_learning_by_heart() -> None:
    history = LossHistory()
    assert history.add(100, 3.0, 3.5) is None
    assert history.add(200, 2.0, 2.5) is None
    assert history.add(300, 2.1, 2.2) is None
    assert history.add(400, 2.2, 1.9) is None
    note = history.add(500, 2.3, 1.5)
    assert note is not None
    assert "has not fallen since update 200 (2.000 then, 2.300 now)" in note
    assert "training loss fell from 2.500 to 1.500: the model learns its lines by heart" in note
    assert history.add(600, 2.4, 1.2) is None  # told once
    assert history.add(700, 1.9, 1.2) is None
    assert [history.add(800 + i, 2.5, 1.0) is None for i in range(3)] == [True, True, False]


@pytest.mark.parametrize(
    ("valid", "train"),
    [(2.01, 1.0), (3.0, 2.6)],
)
def test_what_is_not_learning_by_heart(valid: float, train: float) -> None:
    """A loss that is level, and one that rises on both sides."""
    history = LossHistory()
    history.add(100, 2.0, 2.5)
    assert [history.add(200 + i, valid, train) for i in range(5)] == [None] * 5


def test_pieces_that_no_line_has() -> None:
    tokenizer = tiny_tokenizer()
    pieces = tokenizer.pieces(range(tokenizer.size))
    ordinary = [i for i, piece in enumerate(pieces) if i > 3 and not piece.startswith("<0x")]
    half = side_of([ordinary[: len(ordinary) // 2]])
    rest = side_of([ordinary[len(ordinary) // 2 : -7]])
    corpus = EncodedCorpus(source=half, target=rest, pair_rows=np.arange(1))
    assert unseen_pieces(corpus, tokenizer) == (7, len(ordinary))


def test_a_loss_too_low_too_soon_is_told_once() -> None:
    early = EarlyLoss(5.0)
    found = [early.add(update, 0.1) for update in range(1, 25)]
    assert found == [None] * 19 + [pytest.approx(0.1)] + [None] * 4


def test_a_loss_low_in_time() -> None:
    early = EarlyLoss(5.0)
    assert [early.add(update, 0.25) for update in range(1, 100)] == [None] * 99
    late = range(EARLY_UPDATES + 1, EARLY_UPDATES + 100)
    assert [early.add(update, 0.01) for update in late] == [None] * 99
    assert EarlyLoss(0.0).add(1, 0.0) is None  # one token only: nothing costs anything


def test_lines_have_the_numbers_of_the_pairs() -> None:
    corpus = random_corpus(lines=5)
    corpus = EncodedCorpus(
        source=corpus.source, target=corpus.target, pair_rows=np.array([0, 2, 3, 7, 9])
    )
    pairs = [(f"source {i}", f"target {i}" * (20 if i == 7 else 1)) for i in range(10)]
    assert name_lines(corpus, pairs, [1]) == "line 3 ('source 2' => 'target 2')"
    assert name_lines(corpus, pairs, [4, 1]) == "line 3 ('source 2' => 'target 2') and line 10"
    assert name_lines(corpus, pairs, [3, 4]).startswith("line 8 ('source 7' => 'target 7target 7")
    assert name_lines(corpus, pairs, [3]).endswith("target 7t...')")
    everything = name_lines(corpus, pairs, range(5))
    assert everything == "line 1 ('source 0' => 'target 0') and lines 3, 4, 8 and 1 more"
