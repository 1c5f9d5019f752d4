from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from support.tiny_model import random_transformer

from model.training.batching import EncodedCorpus, Side, make_batch
from model.training.gradients import GradientWorkers
from model.training.loss import token_loss
from model.transformer import Transformer


@pytest.fixture
def net() -> Transformer:
    return random_transformer(dropout=0.2).train()


def make_batches(net: Transformer):
    rng = np.random.default_rng(0)
    lengths = rng.integers(2, 9, 12)
    side = Side(
        ids=rng.integers(4, 300, lengths.sum(), dtype=np.int32),
        starts=np.cumsum(lengths) - lengths,
        lengths=lengths,
    )
    corpus = EncodedCorpus(source=side, target=side, pair_rows=np.arange(12))
    return [make_batch(corpus, rows, net.config) for rows in np.arange(12).reshape(3, 4)]


@contextlib.contextmanager
def torch_threads(count: int):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)


def gradients(net: Transformer, threads: int, seeds: list[int], bf16: bool = False):
    with torch_threads(threads), contextlib.closing(GradientWorkers(3)) as workers:
        nll = workers.compute(net, make_batches(net), seeds, smoothing=0.1, bf16=bf16)
        return nll, [p.grad.clone() for p in net.parameters()]


@pytest.mark.parametrize("bf16", [False, True])
def test_the_result_does_not_depend_on_the_number_of_threads(net: Transformer, bf16: bool) -> None:
    # 3 batches on 3 or 1 threads, one core each
    results = [gradients(net, threads, [1, 2, 3], bf16) for threads in (3, 1, 3)]
    for nll, grads in results[1:]:
        assert nll == results[0][0]
        assert all(torch.equal(a, b) for a, b in zip(grads, results[0][1], strict=True))


def test_seeds_decide_dropout(net: Transformer) -> None:
    assert gradients(net, 2, [1, 2, 3])[0] != gradients(net, 2, [1, 2, 4])[0]


def test_gradients_are_those_of_the_mean_over_all_tokens() -> None:
    net = random_transformer(dropout=0.0).train()
    nll, grads = gradients(net, 2, [1, 2, 3])
    batches = make_batches(net)
    losses = [token_loss(net, batch, smoothing=0.1, bf16=False) for batch in batches]
    tokens = sum(batch.num_tokens for batch in batches)
    want = torch.autograd.grad(sum(loss for loss, _ in losses) / tokens, list(net.parameters()))
    assert nll == pytest.approx(float(sum(plain for _, plain in losses)) / tokens, rel=1e-5)
    for ours, theirs in zip(grads, want, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_the_number_of_threads_is_set_back() -> None:
    with torch_threads(4):
        workers = GradientWorkers(2)
        assert torch.get_num_threads() == 2
        workers.close()
        assert torch.get_num_threads() == 4
