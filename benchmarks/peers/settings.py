"""How CTranslate2 may be run: the settings that are tried, and how they are told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

ComputeType = Literal["float32", "int8", "int8_float32"]
BatchType = Literal["examples", "tokens"]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """CTranslate2's arguments of these names. stream: translate_iterable rather than
    translate_batch. max_batch_size 0: all that is given at once."""

    compute_type: ComputeType
    inter_threads: int = 1
    intra_threads: int = 1
    max_batch_size: int = 0
    batch_type: BatchType = "examples"
    stream: bool = False

    @property
    def model_key(self) -> tuple[Any, ...]:
        """What a model must be opened again for, if it differs."""
        return self.compute_type, self.inter_threads, self.intra_threads

    @property
    def text(self) -> str:
        told = f"{self.compute_type}, inter_threads {self.inter_threads}, "
        told += f"intra_threads {self.intra_threads}"
        if self.max_batch_size:
            told += f", max_batch_size {self.max_batch_size} {self.batch_type}"
        return told + (", translate_iterable" if self.stream else "")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compute_types(subject: str) -> tuple[ComputeType, ...]:
    """That fit the files of the subject."""
    return ("float32",) if subject == "ctranslate2-float32" else ("int8", "int8_float32")


def thread_splits(threads: int, *, parallel: bool) -> list[tuple[int, int]]:
    """(inter_threads, intra_threads) with at most `threads` between them: all on one batch, one
    each on several, what lies between, and one thread alone, which can be the quickest of all.

    parallel: whether there is more than one batch to work on.
    """
    counts = sorted({1, threads, *(n for n in range(2, threads) if threads % n == 0)})
    if not parallel:
        return [(1, intra) for intra in counts]
    return [(1, 1)] * (threads > 1) + [(inter, threads // inter) for inter in counts]


def batch_candidates(batch: int, inter_threads: int) -> Iterator[dict[str, Any]]:
    """Ways to cut a batch of so many lines: not at all, a part for each worker, smaller."""
    yield {}
    sizes = {-(-batch // inter_threads), -(-batch // 2), -(-batch // 4)} - {batch}
    for size in sorted(sizes, reverse=True):
        if size >= 4:
            yield {"max_batch_size": size}


def file_candidates() -> Iterator[dict[str, Any]]:
    """Ways to cut a file."""
    for tokens in (512, 1024, 2048, 4096):
        yield {"max_batch_size": tokens, "batch_type": "tokens"}
    for examples in (16, 32, 64):
        yield {"max_batch_size": examples}
    yield {"max_batch_size": 1024, "batch_type": "tokens", "stream": True}
    yield {"max_batch_size": 32, "stream": True}
