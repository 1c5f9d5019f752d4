"""Several ranks at once, as torchrun would start them, without its own seconds of start-up.

A fork server imports PyTorch once, and every rank is a fork of it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from model.training import distributed

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["support.ranks", "model.cli"])


@dataclass(frozen=True, kw_only=True)
class Rank:
    """A process that was started, and the file of all it prints."""

    process: BaseProcess
    printed: Path

    def finish(self) -> tuple[int, str]:
        """Waits for its end -> exit code, what it printed."""
        self.process.join(120)
        assert self.process.exitcode is not None, f"still runs: {self.printed.read_text()}"
        return self.process.exitcode, self.printed.read_text(encoding="utf-8")


def start_ranks(
    size: int, target: Callable[..., object], arguments: Sequence[Any], folder: Path
) -> list[Rank]:
    """Starts target(*arguments) in `size` processes that know of each other."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    ranks = []
    for rank in range(size):
        values = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "MASTER_PORT": port}
        environment = {name: str(value) for name, value in values.items()}
        environment["MASTER_ADDR"] = "127.0.0.1"
        printed = folder / f"rank-{rank}.txt"
        process = _context.Process(target=_run, args=(target, arguments, environment, printed))
        process.start()
        ranks.append(Rank(process=process, printed=printed))
    return ranks


def run_ranks(
    size: int, target: Callable[..., object], arguments: Sequence[Any], folder: Path
) -> list[tuple[int, str]]:
    """The same, and waits: each rank's exit code and what it printed."""
    return [rank.finish() for rank in start_ranks(size, target, arguments, folder)]


def _run(
    target: Callable[..., object],
    arguments: Sequence[Any],
    environment: dict[str, str],
    printed: Path,
) -> None:
    os.environ.update(environment)
    descriptor = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` ignores it
    torch.set_num_threads(1)
    distributed.LAST_WORD_SECONDS = 0.5  # nobody ends the ranks here
    code = target(*arguments)
    sys.exit(code)
