from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

import pytest
import torch
from support.tiny_batches import random_batch
from support.tiny_model import random_transformer, tiny_config
from support.training_cli import small_corpus
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from model.training.distributed import ALONE, Ranks
from model.training.gradients import GradientWorkers
from model.training.settings import TrainingSettings
from model.training.train import train
from model.transformer import Transformer


class OnlyOn(TorchDispatchMode):
    """Counts the operations that take or give a tensor elsewhere; numbers without a dimension may
    be anywhere."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device, self.elsewhere = device, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = func(*args, **(kwargs or {}))
        found = [value for value in tree_leaves((args, kwargs, given)) if torch.is_tensor(value)]
        self.elsewhere += any(value.dim() and value.device != self.device for value in found)
        return given


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
def test_a_pass_stays_on_the_device_of_the_model(positions: str) -> None:
    """On `meta`, which knows shapes only."""
    config = tiny_config(positions=positions, dropout=0.1, attention_dropout=0.1)
    meta = torch.device("meta")
    with meta:
        model = Transformer(config).train()
    batch, on_cpu = random_batch(config).to(meta), random_batch(config)
    for src_ids, everywhere in ((batch.src_ids, True), (on_cpu.src_ids, False)):
        with OnlyOn(meta) as seen:
            hidden = model.decoder(
                batch.tgt_in, model.encode(src_ids, batch.src_mask), batch.src_mask
            )
            torch.autograd.grad(hidden.sum(), list(model.parameters()))
        assert (seen.elsewhere == 0) == everywhere


needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs an NVIDIA GPU, and PyTorch for CUDA"
)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("bf16", [False, True])
def test_a_gpu_gives_the_gradients_of_the_cpu(bf16: bool) -> None:
    found = []
    for device in ("cpu", "cuda:0"):
        model = random_transformer(dropout=0.0).train().to(device)
        batches = [
            random_batch(model.config, seed=seed).to(torch.device(device)) for seed in (1, 2)
        ]
        ranks = Ranks(device=torch.device(device))
        with contextlib.closing(GradientWorkers(2, ranks)) as workers:
            nll = workers.compute(model, batches, [1, 2], smoothing=0.1, bf16=bf16, r_drop=1.0)
        found.append((torch.tensor(nll), [p.grad.cpu() for p in model.parameters()]))
    tolerance = {"rtol": 0.05, "atol": 0.01} if bf16 else {"rtol": 1e-3, "atol": 1e-5}
    torch.testing.assert_close(found[0], found[1], **tolerance)


@pytest.mark.gpu
@needs_gpu
def test_the_cpu_goes_on_where_a_gpu_stopped(tmp_path: Path) -> None:
    settings = TrainingSettings(
        vocab_size=400, max_updates=4, warmup=4, batch_tokens=64, save_every=2, precision="fp32"
    )
    losses = []
    for ranks in (ALONE, Ranks(device=torch.device("cuda:0"))):
        out = tmp_path / ranks.device.type
        train(*small_corpus(), settings, out, quiet=True, ranks=ranks)
        more = dataclasses.replace(settings, max_updates=8)
        losses.append(train(*small_corpus(), more, out, resume=True, quiet=True).valid_loss)
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
