from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
import torch
from support.tiny_batches import random_batch, random_corpus
from support.tiny_model import random_transformer

from model.diagnosis.stall import Plateau, frozen_weights, source_use, typical_weight
from model.training.loss import token_loss
from model.transformer import Transformer

CPU = torch.device("cpu")
PLATEAU = Plateau(
    mean=5.0,
    before=5.01,
    guessing=5.1,
    own=5.0,
    other=5.0,
    median_norm=0.3,
    moved=6.0,
    size=0.1,
    frozen=(),
    peak=3e-3,
    norm="pre",
)


@pytest.mark.parametrize(
    ("changes", "stands"),
    [
        ({}, True),
        ({"own": 4.0, "other": 6.0}, True),  # no better than guessing
        ({"before": 5.1}, False),  # it falls
        ({"before": math.inf}, False),  # there is nothing to compare with
        ({"mean": 2.0, "before": 2.0}, True),  # a language model
        ({"mean": 2.0, "before": 2.0, "own": 2.0, "other": 4.0}, False),  # trained out
    ],
)
def test_what_stands_still(changes, stands: bool) -> None:
    assert replace(PLATEAU, **changes).stands_still == stands


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        (
            {},
            r"the learning rate \(0.003\) is too high for pre-norm: try a third of it, or a longer",
        ),
        ({"norm": "post"}, ".* too high for post-norm: .* a longer --warmup or --norm pre"),
        (
            {"peak": 1e-6, "moved": 2e-3},
            r"the learning rate \(1e-06\) is too low: no weight can have moved by more than 0.002 "
            "yet, and a typical one is 0.1",
        ),
        (
            {"mean": 3.0, "before": 3.0},
            "source and target lines do not belong together: the model has learnt to cont",
        ),
        (
            {"frozen": ["a", "b", "c", "d", "e"], "moved": 0.0},
            "weights are frozen: a, b, c and 2 more had no gradient since training began",
        ),
    ],
)
def test_the_likely_cause(changes, cause: str) -> None:
    plateau = replace(PLATEAU, **changes)
    text = plateau.explain()
    assert text.startswith(f"the loss stands still: {plateau.mean:.2f} nats a token over the last")
    assert (
        "median gradient norm 0.3, validation loss 5.00 with the right sources, 5.00 with" in text
    )
    assert re.search(f"Probably {cause}", text)


def train_a_little(net: Transformer, updates: int = 1) -> torch.optim.Adam:
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    batch = random_batch(net.config, range(12))
    for _ in range(updates):
        optimizer.zero_grad()
        loss, _ = token_loss(net, batch, smoothing=0.0, bf16=False)
        (loss / batch.num_tokens).backward()
        optimizer.step()
    return optimizer


def test_frozen_weights_are_found() -> None:
    net = random_transformer().train()
    assert frozen_weights(net, train_a_little(net)) == []
    for parameter in net.encoder.layers[1].parameters():
        parameter.register_hook(torch.zeros_like)
    net.decoder.layers[0].ffn.in_proj.weight.requires_grad_(False)
    parts = ("self_attention.q_proj", "self_attention.k_proj", "self_attention.v_proj")
    parts += ("self_attention.out_proj", "ffn.in_proj", "ffn.out_proj")
    optimizer = train_a_little(net)
    assert frozen_weights(net, optimizer) == [
        *(f"encoder.layers.1.{part}.weight" for part in parts),
        "decoder.layers.0.ffn.in_proj.weight",
    ]
    assert len(optimizer.state) == len(list(net.parameters())) - 1  # looking added nothing


def test_the_source_makes_a_difference_once_it_is_learnt() -> None:
    """Lines learnt by heart, whose sources differ; then the same without the cross-attention."""
    corpus = random_corpus()
    net = random_transformer(dropout=0.0).train()
    train_a_little(net, updates=60)
    own, other = source_use(net, corpus, CPU)
    assert net.training
    assert other > 1.5 * own
    with torch.no_grad():
        for layer in net.decoder.layers:
            layer.cross_attention.out_proj.weight.zero_()
    own, other = source_use(net, corpus, CPU)
    assert other == pytest.approx(own, rel=1e-5)


def test_one_line_says_nothing_of_the_source() -> None:
    own, other = source_use(random_transformer(), random_corpus(lines=1), CPU)
    assert math.isfinite(own)
    assert other == math.inf


def test_a_typical_weight() -> None:
    net = random_transformer()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(-0.25)
        net.encoder.layers[0].ffn.in_proj.weight.fill_(1e6)
    assert typical_weight(net) == 0.25
