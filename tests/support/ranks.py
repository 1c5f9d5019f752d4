"""Several ranks at once, as torchrun would start them, without its own seconds of start-up.

A fork server imports PyTorch once, and every rank is a fork of it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore

from model.training import distributed

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["support.ranks", "model.cli"])


@dataclass(frozen=True, kw_only=True)
class Rank:
    """A process that was started, the file of all it prints, and where the ranks meet."""

    process: BaseProcess
    printed: Path
    store: TCPStore  # lives as long as this does

    def finish(self) -> tuple[int, str]:
        """Waits for its end -> exit code, what it printed."""
        self.process.join(120)
        assert self.process.exitcode is not None, f"still runs: {self.printed.read_text()}"
        return self.process.exitcode, self.printed.read_text(encoding="utf-8")


def start_ranks(
    size: int, target: Callable[..., object], arguments: Sequence[Any], folder: Path
) -> list[Rank]:
    """Starts target(*arguments) in `size` processes that know of each other."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # as torchrun's agent
    ranks = []
    for rank in range(size):
        values = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "MASTER_PORT": store.port}
        environment = {name: str(value) for name, value in values.items()}
        environment |= {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
        printed = folder / f"rank-{rank}.txt"
        process = _context.Process(target=_run, args=(target, arguments, environment, printed))
        process.start()
        ranks.append(Rank(process=process, printed=printed, store=store))
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
