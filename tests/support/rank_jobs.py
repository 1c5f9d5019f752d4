"""What ranks do in tests: functions that a process can import."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from unittest import mock

import click
import torch

import model.training.gradients
import model.training.run
from model.errors import TrainingError
from model.training.distributed import ALONE, join_ranks
from runtime.console import run

LENGTH = 11


def made_gradient(index: int) -> torch.Tensor:
    """float32 [LENGTH]; the sum of several depends on the order."""
    generator = torch.Generator().manual_seed(index)
    values = torch.randn(LENGTH, generator=generator) * 10.0 ** (index % 3)
    values[0] = -0.0
    return values


def exchange() -> None:
    """Every exchange, with what each rank must get."""
    with join_ranks() as ranks:
        for count in range(1, 8):
            own = ranks.own(count)
            found = ranks.add_up((made_gradient(i) for i in own), count, LENGTH)
            alone = ALONE.add_up((made_gradient(i) for i in range(count)), count, LENGTH)
            assert torch.equal(found.view(torch.int32), alone.view(torch.int32)), count
            assert ranks.gather([i / 3 for i in own], count) == [i / 3 for i in range(count)]
        assert ranks.share({"rank": ranks.rank}) == {"rank": 0}
        assert ranks.share_bytes(bytes([7] * (ranks.rank + 1))) == b"\x07"
        assert ranks.gather_flags(ranks.rank == 1) == [False, True, False]
        ranks.require_same("words", "equal")
        ranks.require_same("words", "other" if ranks.rank == 2 else "equal")


def fail(how: str) -> int:
    """A command of several ranks that goes wrong -> exit code."""

    @click.command()
    def command() -> None:
        with join_ranks() as ranks:
            ranks.share("all are there")
            if how == "all" or (how == "one" and ranks.rank == 1):
                raise TrainingError("planted")
            if how == "killed" and ranks.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            ranks.share("not all are there")

    return run(command, [])


def train(arguments: Sequence[str], planted: str) -> int:
    """`python -m model ...`; what is planted goes wrong on rank 1 alone -> exit code."""
    if os.environ["RANK"] == "1" and planted:
        _plant(planted)
    return run("model.cli:cli", arguments)


def _plant(what: str) -> None:
    if what == "fast clock":
        mock.patch.object(model.training.run.Run, "seconds", 1e9).start()
    elif what == "other weights":
        mock.patch.object(model.training.run, "weights_sha256", return_value="other").start()
    else:
        failing = mock.Mock(wraps=model.training.gradients.token_loss)
        failing.side_effect = [mock.DEFAULT] * 4 + [RuntimeError("planted")]
        mock.patch.object(model.training.gradients, "token_loss", failing).start()
