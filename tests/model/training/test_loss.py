from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.tiny_model import random_transformer

import model.training.loss
from model.dropout import seed_dropout
from model.training.batching import Batch
from model.training.loss import PredictionLoss, token_loss


def make_inputs(copies: int = 1):
    torch.manual_seed(0)
    hidden = torch.randn(copies, 10, 6, requires_grad=True)
    weight = torch.randn(12, 6, requires_grad=True)
    banned = torch.zeros(12, dtype=torch.bool)
    banned[[0, 2, 11]] = True
    return hidden, weight, torch.tensor([1, 3, 4, 5, 6, 7, 8, 9, 10, 3]), banned


def reference(hidden, weight, targets, banned, smoothing, r_drop):
    """By the definition, over the ids that may be predicted."""
    log_probs = (hidden @ weight.t())[:, :, ~banned].log_softmax(-1)  # [c,R,A]
    places = ((~banned).cumsum(0) - 1)[targets]
    q = torch.full_like(log_probs[0], smoothing / int((~banned).sum()))
    q[torch.arange(len(targets)), places] += 1 - smoothing
    nll = -log_probs[:, torch.arange(len(targets)), places].sum(1).mean()
    loss = -(q * log_probs).sum((1, 2)).mean()
    if r_drop:
        first, second = log_probs
        there = F.kl_div(second, first, reduction="sum", log_target=True)  # KL(p1 || p2)
        back = F.kl_div(first, second, reduction="sum", log_target=True)
        loss = loss + r_drop / 4 * (there + back)
    return loss, nll


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("r_drop", [0.0, 5.0])
@pytest.mark.parametrize("chunk", [1 << 22, 72])  # all rows at once; a few at a time
def test_loss_and_gradients_equal_the_definition(
    monkeypatch, smoothing: float, r_drop: float, chunk: int
) -> None:
    monkeypatch.setattr(model.training.loss, "_CHUNK_ELEMENTS", chunk)
    hidden, weight, targets, banned = make_inputs(copies=2 if r_drop else 1)
    loss, nll = PredictionLoss.apply(hidden, weight, targets, banned, smoothing, r_drop)
    grads = torch.autograd.grad(3 * loss, (hidden, weight))
    want_loss, want_nll = reference(hidden, weight, targets, banned, smoothing, r_drop)
    want_grads = torch.autograd.grad(3 * want_loss, (hidden, weight))
    torch.testing.assert_close(loss, want_loss)
    torch.testing.assert_close(nll, want_nll)
    torch.testing.assert_close(grads, want_grads)
    assert not nll.requires_grad


def test_very_unlikely_targets_have_finite_losses() -> None:
    hidden, weight = torch.tensor([[[100.0, 0.0]]]), torch.tensor([[4.0, 0.0], [-4.0, 0.0]])
    banned = torch.zeros(2, dtype=torch.bool)
    loss, nll = PredictionLoss.apply(hidden, weight, torch.tensor([1]), banned, 0.0, 0.0)
    assert float(loss) == float(nll) == 800.0


def test_r_drop_without_dropout_changes_nothing() -> None:
    net = random_transformer(dropout=0.0)
    plain, nll = token_loss(net, make_batch(0), smoothing=0.1, bf16=False)
    drawn, drawn_nll = token_loss(net, make_batch(0), smoothing=0.1, bf16=False, r_drop=5.0)
    torch.testing.assert_close((plain, nll), (drawn, drawn_nll))


def test_r_drop_adds_what_two_dropout_masks_differ_by() -> None:
    net = random_transformer(dropout=0.3)
    net.train()
    losses = []
    for weight in (1e-6, 5.0):
        seed_dropout(1)
        loss, _ = token_loss(net, make_batch(0), smoothing=0.0, bf16=False, r_drop=weight)
        losses.append(float(loss.detach()))
    assert losses[1] > losses[0] + 0.01


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
