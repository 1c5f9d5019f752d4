"""The seam between the search and whatever computes the model.

The search sees a model only as `begin`, `step` and `keep`; it does not know whether PyTorch, ONNX
Runtime or TensorRT is behind them, how caches grow, or how beams are reordered.

Letters: B sentences, S source length, K beam size, N = B*K, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from runtime.errors import BackendError

IntArray = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The best 2K continuations of each sentence, and all log-probabilities where asked for.

    Sorted by score descending, then by parent * V + token ascending. A score of -1e8 or below means
    "not reachable" (a banned token, or a beam that holds no hypothesis).
    Valid until the next call on the same state.
    """

    scores: FloatArray  # [B, 2K] float32: sum of log-probabilities, not normalised
    token_ids: IntArray  # [B, 2K] int32
    parents: IntArray  # [B, 2K] int32: the beam of the sentence, 0..K-1, that is continued
    log_probs: FloatArray | None = None  # [B, K, V] float32 where need_log_probs was set


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a backend can do, and what it is, for signatures and messages.

    name: eager | onnxruntime | tensorrt. device: "cpu", "cuda:0". precision: fp32 | fp16 | int8 |
    int8_fp16. vocab_size: V of `log_probs`. max_source, max_target: tokens, EOS counted; None where
    the model has no limit of its own. detail: anything else worth showing (versions, threads).
    """

    name: str
    device: str
    precision: str
    vocab_size: int
    max_source: int | None
    max_target: int | None
    detail: dict[str, Any] = field(default_factory=dict)


class DecoderState(Protocol):
    """All that a backend carries between steps: opaque to the search, consumed by each call."""


class Backend(Protocol):
    """What the search needs of a model. States belong to the backend that made them.

    A backend may be used by several threads at once, each with states of its own.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    def begin(
        self, src_ids: IntArray, src_mask: BoolArray, beam_size: int, max_length: int
    ) -> DecoderState:
        """Encodes src_ids [B,S] int32 under src_mask [B,S] (True = a real token).

        max_length bounds how many steps will follow, for backends that allocate ahead. Raises
        SplitBatchError for sentences that must go apart: `search` then begins with fewer.
        """
        ...

    def step(
        self,
        state: DecoderState,
        token_ids: IntArray,
        beam_indices: IntArray,
        sum_log_probs: FloatArray,
        *,
        ban_eos: bool,
        need_log_probs: bool = False,
    ) -> Candidates:
        """Feeds one token to every live beam.

        token_ids [B,K] int32: the token that each beam ends with (the start id at the first step).
        beam_indices [B,K] int32: which beam of the same sentence, at the previous step, each beam
            continues; all zero at the first step.
        sum_log_probs [B,K] float32: each beam's score so far; -inf where there is none.
        """
        ...

    def keep(self, state: DecoderState, sentences: IntArray) -> DecoderState:
        """Goes on with only these sentences: positions 0..B-1, ascending, int32."""
        ...

    def close(self) -> None:
        """Frees what the backend holds. Calling it twice does no harm."""
        ...


@runtime_checkable
class KeepsMemory(Protocol):
    """A backend that keeps memory from batch to batch."""

    def trim(self) -> None:
        """Gives it back: no batch is waiting. Others may be under way."""
        ...


def trim_all(*backends: object) -> None:
    """Trims those that keep memory."""
    for backend in backends:
        if isinstance(backend, KeepsMemory):
            backend.trim()


def check_room(length: int, max_length: int) -> None:
    """Raises BackendError where a state that has made `length` steps can make no more."""
    if length == max_length:
        raise BackendError(
            f"step {length + 1} after begin(max_length={max_length}); "
            "begin with a larger max_length"
        )
