"""The processes ("ranks") of one training, as torchrun starts them.

    torchrun --nproc-per-node 2 -m model train ...

Every rank holds all the weights and makes every optimizer step. Of the batches of an update each
computes some (`Ranks.own`); `Ranks.add_up` adds up the gradients in the order of the batches,
whoever computed them, so that any number of processes makes the very steps that one makes
(docs/decisions/0010-several-processes.md). Rank 0 alone reads the clock, validates and saves;
`Ranks.share` tells the others what came of it.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from model.errors import ConfigError, TrainingError

T = TypeVar("T")

_CPU = torch.device("cpu")

JOIN_TIMEOUT = timedelta(minutes=10)
TIMEOUT = timedelta(hours=12)
"""How long a rank waits for another: rank 0 validates alone. A rank that dies is noticed at once,
since its connections close (gloo) or torchrun ends the others (NCCL)."""

LAST_WORD_SECONDS = 10.0
"""How long a rank with nothing to say of an error stays, so that torchrun, which ends all at the
first that leaves, does not end the one that tells of it."""


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """The processes of one training, of which this is number `rank` of `size`. device: where its
    gradients are.

    `ALONE` is a process without others, and sends nothing. Whatever takes part in an exchange must
    be called by all ranks, in the same order; it raises TrainingError where another has ended.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = _CPU

    @property
    def first(self) -> bool:
        """Whether this is the one that validates, saves and speaks."""
        return self.rank == 0

    def own(self, count: int) -> range:
        """Which of `count` batches of an update this rank computes."""
        return range(self.rank, count, self.size)

    def add_up(self, own: Iterator[Tensor], count: int, length: int) -> Tensor:
        """The sum of the `count` gradients of an update, added in the order of the batches.

        own: the gradients of this rank's batches, float32 [length], in order, taken one at a time.
        All ranks get the same bits.
        """
        if self.size == 1:
            total = next(own)
            for gradient in own:
                total += gradient
            return total
        # Each rank adds up one slice of all gradients, and the slices go to all.
        width = -(-length // self.size)
        padded = torch.zeros(self.size * width, device=self.device)
        total = torch.zeros(width, device=self.device)
        for start in range(0, count, self.size):
            for gradient in itertools.islice(own, 1):  # one, or none at the end of an epoch
                padded[:length] = gradient
            found = torch.empty_like(padded)
            with _reaching_all():
                dist.all_to_all_single(found, padded)
            for index, part in enumerate(found.view(self.size, width)[: count - start]):
                if start + index == 0:
                    total.copy_(part)
                else:
                    total += part
        whole = torch.empty_like(padded)
        with _reaching_all():
            dist.all_gather(list(whole.view(self.size, width).unbind()), total)
        return whole[:length]

    def gather(self, own: Sequence[float], count: int) -> list[float]:
        """own: a number for each of this rank's batches -> those of all `count`, in order."""
        if self.size == 1:
            return list(own)
        sent = torch.zeros(-(-count // self.size), dtype=torch.float64)
        sent[: len(own)] = torch.tensor(own, dtype=torch.float64)
        found = [torch.empty_like(sent) for _ in range(self.size)]
        with _reaching_all():
            dist.all_gather(found, sent)
        return torch.stack(found, dim=1).flatten()[:count].tolist()

    def share(self, value: T) -> T:
        """Rank 0's value, on every rank. It must be what JSON gives back: no tuples."""
        if self.size == 1:
            return value
        found: T = json.loads(self.share_bytes(json.dumps(value).encode() if self.first else b""))
        return found

    def share_bytes(self, content: bytes) -> bytes:
        """Rank 0's bytes, on every rank."""
        if self.size == 1:
            return content
        length = torch.tensor([len(content)])
        with _reaching_all():
            dist.broadcast(length, 0)
            sent = torch.zeros(int(length), dtype=torch.uint8)
            if self.first:
                sent = torch.frombuffer(bytearray(content), dtype=torch.uint8)
            dist.broadcast(sent, 0)
        return sent.numpy().tobytes()

    def require_same(self, what: str, value: str) -> None:
        """Raises TrainingError unless all ranks pass the same value."""
        if self.size > 1 and not all(self.gather_flags(self.share(value) == value)):
            raise TrainingError(
                f"the {self.size} processes of this training have different {what}; expected the "
                "same: give them the same files and options, the same version of leanseq and "
                "PyTorch, and processors of one kind"
            )

    def gather_flags(self, flag: bool) -> list[bool]:
        """What each rank passes, in order of rank."""
        return [bool(number) for number in self.gather([float(flag)], self.size)]


ALONE = Ranks()


@contextmanager
def join_ranks(device: torch.device = _CPU) -> Iterator[Ranks]:
    """The ranks of this training where torchrun started it, else this process alone.

    device: this one's (model.devices). An error in any rank ends all of them, and one alone tells
    of it: the others leave with SystemExit. Raises ConfigError where the ranks can't find each
    other.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if os.environ.get("WORLD_SIZE", "1") == "1":
        yield Ranks(device=device)
        return
    store, ranks = _connect(device)
    try:
        yield ranks
    except BaseException as error:
        if _is_first_to_tell(store) or isinstance(error, KeyboardInterrupt):
            raise
        time.sleep(LAST_WORD_SECONDS)
        raise SystemExit(getattr(error, "exit_code", 1)) from None
    finally:
        dist.destroy_process_group()


def _connect(device: torch.device) -> tuple[Any, Ranks]:
    # Numbers and texts are on the CPU, gradients where the model is.
    backend = "gloo" if device.type == "cpu" else f"cpu:gloo,{device.type}:nccl"
    try:
        store, rank, size = next(rendezvous("env://", timeout=JOIN_TIMEOUT))
        # torchrun --max-restarts keeps its store, with the addresses of the ranks that are gone.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = dist.PrefixStore(f"leanseq/attempt-{attempt}", store)  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"the environment says that this is one of {os.environ['WORLD_SIZE']} processes "
            f"(WORLD_SIZE), but they can't find each other: {_first_line(error)}; start them with "
            "torchrun, or a single one without WORLD_SIZE"
        ) from error
    return store, Ranks(rank=rank, size=size, device=device)


def _is_first_to_tell(store: Any) -> bool:
    try:
        return bool(store.add("errors", 1) == 1)
    except RuntimeError:  # whoever held the store is gone; better twice than never
        return True


@contextmanager
def _reaching_all() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise TrainingError(
            "another process of this training has ended, perhaps killed or out of memory, and this "
            f"one can't go on alone ({_first_line(error)}); the same command with --resume goes on "
            "after the last save"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
