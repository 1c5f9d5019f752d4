from __future__ import annotations

import pytest
import torch
from support.tiny_model import random_transformer

import model.loss
from model.batching import Batch
from model.loss import SmoothedCrossEntropy, token_loss


def make_inputs():
    torch.manual_seed(0)
    hidden = torch.randn(10, 6, requires_grad=True)
    weight = torch.randn(12, 6, requires_grad=True)
    bias = torch.zeros(12)
    bias[[0, 2, 11]] = -1e9
    return hidden, weight, torch.tensor([1, 3, 4, 5, 6, 7, 8, 9, 10, 3]), bias


def reference(hidden, weight, targets, bias, smoothing):
    """By the definition, over the ids that may be predicted."""
    allowed = bias == 0
    log_probs = (hidden @ weight.t())[:, allowed].log_softmax(-1)
    places = (allowed.cumsum(0) - 1)[targets]
    q = torch.full_like(log_probs, smoothing / int(allowed.sum()))
    q[torch.arange(len(targets)), places] += 1 - smoothing
    nll = -log_probs[torch.arange(len(targets)), places].sum()
    return -(q * log_probs).sum(), nll


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [1 << 22, 36])  # all rows at once; three at a time
def test_loss_and_gradients_equal_the_definition(monkeypatch, smoothing: float, chunk: int) -> None:
    monkeypatch.setattr(model.loss, "_CHUNK_ELEMENTS", chunk)
    hidden, weight, targets, bias = make_inputs()
    loss, nll = SmoothedCrossEntropy.apply(hidden, weight, targets, bias, smoothing)
    grads = torch.autograd.grad(3 * loss, (hidden, weight))
    want_loss, want_nll = reference(hidden, weight, targets, bias, smoothing)
    want_grads = torch.autograd.grad(3 * want_loss, (hidden, weight))
    torch.testing.assert_close(loss, want_loss)
    torch.testing.assert_close(nll, want_nll)
    torch.testing.assert_close(grads, want_grads)
    assert not nll.requires_grad


def make_batch(pad: int) -> Batch:
    """Two sentences; `pad` columns of padding more than needed."""
    torch.manual_seed(1)
    source, target = torch.randint(4, 300, (2, 5)), torch.randint(4, 300, (2, 4))
    target[1, 2:] = 0
    zeros = torch.zeros(2, pad, dtype=torch.int64)
    tgt_out = torch.cat((target, zeros), 1)
    tgt_in = torch.cat((torch.full((2, 1), 2), tgt_out[:, :-1]), 1)
    src_ids = torch.cat((source, zeros), 1)
    return Batch(
        src_ids=src_ids.int(),
        src_mask=src_ids != 0,
        tgt_in=tgt_in.int(),
        tgt_out=tgt_out,
        num_tokens=6,
    )


def test_padding_changes_neither_loss_nor_gradients() -> None:
    net = random_transformer(dropout=0.0)
    results = []
    for pad in (0, 3):
        net.zero_grad()
        loss, nll = token_loss(net, make_batch(pad), smoothing=0.1, bf16=False)
        loss.backward()
        results.append([loss.detach(), nll, *[p.grad.clone() for p in net.parameters()]])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_bf16_stays_near_and_its_gradients_are_float32() -> None:
    net = random_transformer(dropout=0.0)
    exact, _ = token_loss(net, make_batch(0), smoothing=0.1, bf16=False)
    loss, _ = token_loss(net, make_batch(0), smoothing=0.1, bf16=True)
    loss.backward()
    assert loss.dtype == torch.float32
    assert float(loss.detach()) == pytest.approx(float(exact.detach()), rel=0.02)
    assert all(p.grad.dtype == torch.float32 for p in net.parameters())


def test_no_gradients_are_made_where_none_are_wanted() -> None:
    with torch.no_grad():
        loss, _ = token_loss(random_transformer(), make_batch(0), smoothing=0.0, bf16=False)
    assert not loss.requires_grad
