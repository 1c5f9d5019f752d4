"""Heads made dead one way each, in a model of random weights."""

from __future__ import annotations

import pytest
import torch
from support.tiny_batches import random_batch
from support.tiny_model import random_transformer

from model.attention import MultiHeadAttention
from model.diagnosis.heads import dead_heads
from model.transformer import Transformer

PLACES = [
    "encoder.layers.1.self_attention",
    "decoder.layers.0.self_attention",
    "decoder.layers.1.cross_attention",
]
WIDTH = 8


@pytest.fixture
def net() -> Transformer:
    return random_transformer().train()


def kill(attention: MultiHeadAttention, projections: list[str], head: int) -> None:
    with torch.no_grad():
        for name in projections:
            projection = attention.get_submodule(name)
            projection.weight[head * WIDTH : (head + 1) * WIDTH] = 0
            projection.bias[head * WIDTH : (head + 1) * WIDTH] = 0


def found(net: Transformer) -> list[str]:
    return [str(head) for head in dead_heads(net, random_batch(net.config))]


def test_random_heads_are_alive(net: Transformer) -> None:
    assert found(net) == []
    assert net.training
    assert not any(module._forward_pre_hooks for module in net.modules())


@pytest.mark.parametrize("place", PLACES)
def test_a_head_without_values_adds_nothing(net: Transformer, place: str) -> None:
    kill(net.get_submodule(place), ["v_proj"], 2)
    assert found(net) == [f"{place} head 2 adds nothing to its layer"]


@pytest.mark.parametrize("place", PLACES)
def test_a_head_without_queries_looks_everywhere(net: Transformer, place: str) -> None:
    kill(net.get_submodule(place), ["q_proj", "k_proj"], 3)
    assert found(net) == [f"{place} head 3 looks at all positions alike"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("end", ["first", "last"])
def test_a_head_that_looks_at_one_end(net: Transformer, monkeypatch, place: str, end: str) -> None:
    attention = net.get_submodule(place)
    attend = attention.attend

    def one_place(q, k, v, mask):
        """Head 1's keys say yes at one position, its queries ask for it."""
        q, k = q.clone(), k.clone()
        q[:, 1], k[:, 1] = 100.0, 0.0
        seen = mask.expand(k.size(0), 1, q.size(2), k.size(2))[:, 0, -1]  # [B,Tk]
        steps = torch.arange(k.size(2), dtype=k.dtype)
        if end == "first":
            k[:, 1, 0] = 1.0
        else:  # in self-attention of the decoder, the last that a row may see is its own
            k[:, 1] = (steps * seen)[..., None]
        return attend(q, k, v, mask)

    monkeypatch.setattr(attention, "attend", one_place)
    assert found(net) == [f"{place} head 1 looks at the {end} position only"]


def test_without_weights_silence_still_shows(net: Transformer, monkeypatch) -> None:
    """The fused kernel of GPUs keeps no weights."""
    fused = torch.nn.functional.scaled_dot_product_attention
    for module in net.modules():
        if isinstance(module, MultiHeadAttention):
            monkeypatch.setattr(module, "_attend_written_out", fused)
    kill(net.get_submodule(PLACES[0]), ["v_proj"], 0)
    kill(net.get_submodule(PLACES[1]), ["q_proj"], 1)
    assert found(net) == [f"{PLACES[0]} head 0 adds nothing to its layer"]
