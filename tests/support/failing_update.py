"""An update that is not finite, on several ranks: for processes that can import this."""

from __future__ import annotations

import math

import click
import torch
from support.tiny_batches import random_batch, random_corpus
from support.tiny_model import random_transformer

from model.diagnosis.watch import Update, Watch
from model.training.distributed import Ranks, join_ranks
from model.training.settings import TrainingSettings
from runtime.console import run


def failing_update(ranks: Ranks, *, planted: bool) -> tuple[Watch, Update]:
    """A watch, and one update of one batch a rank; planted: nan in encoder.layers.0.ffn.in_proj."""
    net, corpus = random_transformer().train(), random_corpus()
    if planted:
        with torch.no_grad():
            net.encoder.layers[0].ffn.in_proj.weight.fill_(math.nan)
    watch = Watch(
        net,
        torch.optim.Adam(net.parameters()),
        TrainingSettings(),
        bf16=False,
        pairs=[("a", "b")] * 12,
        valid_corpus=corpus,
        guessing_nll=5.0,
        ranks=ranks,
        say=print,
    )
    update = Update(
        number=3,
        epoch=0,
        corpus=corpus,
        rows=[corpus.pair_rows[:6]],
        batches=[random_batch(net.config)],
        seeds=[1],
        tokens=50,
        r_drop=0.0,
    )
    return watch, update


def fail_on_rank_1() -> int:
    """A command whose second rank alone finds nan -> exit code."""

    @click.command()
    def command() -> None:
        with join_ranks() as ranks:
            watch, update = failing_update(ranks, planted=ranks.rank == 1)
            raise watch.failed(update, nll=math.nan, norm=math.nan, rate=0.1)

    return run(command, [])
