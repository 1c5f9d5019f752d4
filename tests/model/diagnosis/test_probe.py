"""Masks left out of a model, one at a time; random weights are enough to show each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.tiny_batches import random_corpus
from support.tiny_model import random_transformer, tiny_config

import model.diagnosis.probe
from model.diagnosis.batches import check_batch
from model.diagnosis.probe import PROBE_ROWS, check_masks, probe_batch
from model.errors import TrainingError
from model.training.batching import EncodedCorpus, Side
from model.training.loss import token_loss
from model.transformer import Transformer

VARIANTS = [
    {"norm": "pre"},
    {"norm": "post", "positions": "rotary"},
    {"positions": "learned", "tying": "none", "activation": "gelu", "cross_score": "additive"},
    {"norm": "pre", "attention_dropout": 0.3, "dropout": 0.3},
]


@pytest.fixture(params=range(len(VARIANTS)))
def net(request: pytest.FixtureRequest) -> Transformer:
    return random_transformer(**VARIANTS[request.param]).train()


def check(net: Transformer) -> None:
    check_masks(net, probe_batch(random_corpus(), net.config))


def without_mask(monkeypatch: pytest.MonkeyPatch, attention) -> None:
    attend = attention.attend
    monkeypatch.setattr(attention, "attend", lambda q, k, v, mask: attend(q, k, v, None))


def test_a_right_model_passes_and_is_left_as_it_was(net: Transformer) -> None:
    before = torch.get_rng_state()
    check(net)
    assert net.training
    assert net.decoder.layers[0].training
    assert not any(module._forward_hooks for module in net.modules())
    assert torch.equal(torch.get_rng_state(), before)
    check(net.eval())
    assert not net.training


@pytest.mark.parametrize("layer", [0, 1])
def test_a_causal_mask_left_out(net: Transformer, monkeypatch, layer: int) -> None:
    without_mask(monkeypatch, net.decoder.layers[layer].self_attention)
    where = rf"decoder.layers.{layer}.self_attention gives at earlier ones. The causal mask is miss"
    with pytest.raises(TrainingError, match=rf"sees tokens that it is to predict: .* what {where}"):
        check(net)


def test_a_causal_mask_that_lets_the_next_token_through(net: Transformer, monkeypatch) -> None:
    attention = net.decoder.layers[0].self_attention
    attend = attention.attend

    def shifted(q, k, v, mask):
        return attend(q, k, v, torch.ones_like(mask).tril(1))

    monkeypatch.setattr(attention, "attend", shifted)
    with pytest.raises(TrainingError, match="The causal mask is missing"):
        check(net)


def test_a_source_mask_left_out_of_the_encoder(net: Transformer, monkeypatch) -> None:
    without_mask(monkeypatch, net.encoder.layers[1].self_attention)
    with pytest.raises(
        TrainingError,
        match=r"padding of the source changes what encoder.layers.1."
        r"self_attention gives for real tokens. The source mask is missing there",
    ):
        check(net)


def test_a_source_mask_left_out_of_the_cross_attention(net: Transformer, monkeypatch) -> None:
    without_mask(monkeypatch, net.decoder.layers[0].cross_attention)
    with pytest.raises(TrainingError, match=r"changes what decoder.layers.0.cross_attention gives"):
        check(net)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize("mix", [lambda x: x + x.mean(0, keepdim=True), lambda x: x.roll(1, 0)])
def test_rows_that_see_each_other(net: Transformer, monkeypatch, side: str, mix) -> None:
    ffn = net.get_submodule(f"{side}.layers.1.ffn")
    forward = ffn.forward
    monkeypatch.setattr(ffn, "forward", lambda x: forward(mix(x)))
    where = rf"{side}.layers.1.ffn\S* gives in the first row"
    with pytest.raises(TrainingError, match=f"depends on those beside it: .* change what {where}"):
        check(net)


def test_a_source_that_is_not_used(net: Transformer) -> None:
    with torch.no_grad():
        for layer in net.decoder.layers:
            layer.cross_attention.out_proj.weight.zero_()
    with pytest.raises(TrainingError, match="the decoder does not depend on the source"):
        check(net)


def test_padding_that_counts_in_the_loss(net: Transformer, monkeypatch) -> None:
    def counting(model, batch, **values):
        return token_loss(model, replace(batch, tgt_out=batch.tgt_out.clamp(min=4)), **values)

    monkeypatch.setattr(model.diagnosis.probe, "token_loss", counting)
    with pytest.raises(TrainingError, match="padding of the target counts in the loss: one column"):
        check(net)


def test_the_batch_of_the_probe_is_short_and_padded() -> None:
    config = tiny_config()
    batch = probe_batch(random_corpus(lines=200, longest=60), config)
    check_batch(batch, config)
    assert batch.src_ids.size(0) == PROBE_ROWS
    assert max(batch.src_ids.size(1), batch.tgt_in.size(1)) <= 25
    assert not batch.src_mask.all(1).any()


def line_of(*lengths: int) -> EncodedCorpus:
    side = Side(
        ids=np.full(sum(lengths), 5, dtype=np.int32),
        starts=np.cumsum(lengths) - np.array(lengths),
        lengths=np.array(lengths),
    )
    return EncodedCorpus(source=side, target=side, pair_rows=np.arange(len(lengths)))


@pytest.mark.parametrize("lengths", [(1,), (2,), (64,), (64, 64, 64, 64, 64), (3, 64)])
def test_corpora_of_odd_lengths(lengths: tuple[int, ...]) -> None:
    """One line, one token, or as long as the model allows: there is room for no more padding."""
    net = random_transformer()
    check_masks(net, probe_batch(line_of(*lengths), net.config))


def test_a_leak_shows_without_room_for_padding(monkeypatch) -> None:
    net = random_transformer()
    without_mask(monkeypatch, net.decoder.layers[0].self_attention)
    with pytest.raises(TrainingError, match="The causal mask is missing"):
        check_masks(net, probe_batch(line_of(64, 64), net.config))
