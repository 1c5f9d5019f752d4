"""One backend, and another for the sentences that are beyond its limits.

An engine takes what its profiles were built for. A source longer than that, or more beams, goes to
the other backend; a target that grows longer is moved there in the middle of its search.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from runtime.backend import (
    Backend,
    BoolArray,
    Candidates,
    Capabilities,
    DecoderState,
    FloatArray,
    IntArray,
    trim_all,
)
from runtime.engine_pair import Capacity
from runtime.errors import SplitBatchError

log = logging.getLogger(__name__)

_Replay = Callable[[Backend, DecoderState], DecoderState]


@dataclass(kw_only=True)
class _State:
    """Whose state it is, and how to come to the same point with another backend."""

    backend: Backend
    inner: DecoderState
    length: int = 0
    begin: Callable[[Backend], DecoderState]
    calls: list[_Replay] | None = field(default_factory=list)  # None: it will not be moved


class FallbackBackend:
    """`first` as far as its limits go, `open_other()` beyond them; opened when it is needed.

    limits: what `first` takes of one sentence. max_source, max_target: of both together; None where
    there is no limit. Every use of the other is logged: the first at WARNING, then at INFO.
    """

    def __init__(
        self,
        first: Backend,
        limits: Capacity,
        open_other: Callable[[], Backend],
        *,
        max_source: int | None,
        max_target: int | None,
    ) -> None:
        self._first, self._limits = first, limits
        self._open_other = open_other
        self._other: Backend | None = None
        self._max_source, self._max_target = max_source, max_target
        self._lock = threading.Lock()
        self._warned: set[str] = set()

    @property
    def capabilities(self) -> Capabilities:
        return replace(
            self._first.capabilities, max_source=self._max_source, max_target=self._max_target
        )

    def begin(
        self, src_ids: IntArray, src_mask: BoolArray, beam_size: int, max_length: int
    ) -> DecoderState:
        """src_ids int32 [B,S], src_mask bool [B,S], padded on the right.

        Raises SplitBatchError for a batch of sources on both sides of the limit.
        """
        lengths = src_mask.sum(axis=1)  # [B]
        beyond = lengths > self._limits.source
        if beam_size > self._limits.beam:
            beyond[:] = True
            self._tell("beam", beam_size, self._limits.beam, "--max-beam")
        elif beyond.any():
            if not beyond.all():
                groups = [np.flatnonzero(~beyond).tolist(), np.flatnonzero(beyond).tolist()]
                raise SplitBatchError(groups, "some sources are beyond the engine's limit")
            self._tell("source", int(lengths.max()), self._limits.source, "--max-source")
        longest = int(lengths.max())
        ids, mask = src_ids[:, :longest], src_mask[:, :longest]
        steps = max_length if beyond.any() else min(max_length, self._limits.target)
        backend = self._get_other() if beyond.any() else self._first
        return _State(
            backend=backend,
            inner=backend.begin(ids, mask, beam_size, steps),
            begin=lambda other: other.begin(ids, mask, beam_size, max_length),
            calls=[] if steps < max_length else None,
        )

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
        """token_ids, beam_indices int32 [B,K], sum_log_probs float32 [B,K]."""
        assert isinstance(state, _State)
        if state.calls is not None and state.length == self._limits.target:
            self._move(state)
        state.length += 1
        if state.calls is not None:
            fed = (token_ids.copy(), beam_indices.copy(), sum_log_probs.copy())

            def replay(backend: Backend, inner: DecoderState) -> DecoderState:
                backend.step(inner, *fed, ban_eos=ban_eos)
                return inner

            state.calls.append(replay)
        return state.backend.step(
            state.inner,
            token_ids,
            beam_indices,
            sum_log_probs,
            ban_eos=ban_eos,
            need_log_probs=need_log_probs,
        )

    def keep(self, state: DecoderState, sentences: IntArray) -> DecoderState:
        """Goes on with only these sentences."""
        assert isinstance(state, _State)
        state.inner = state.backend.keep(state.inner, sentences)
        if state.calls is not None:
            going = sentences.copy()
            state.calls.append(lambda backend, inner: backend.keep(inner, going))
        return state

    def trim(self) -> None:
        """Gives back the memory that either keeps from batch to batch."""
        trim_all(self._first, self._other)

    def close(self) -> None:
        """Closes both. Calling it twice does no harm."""
        self._first.close()
        with self._lock:
            if self._other is not None:
                self._other.close()

    def _move(self, state: _State) -> None:
        """Brings the other backend to where the search is, and goes on there."""
        assert state.calls is not None
        self._tell("target", state.length + 1, self._limits.target, "--max-target")
        backend = self._get_other()
        inner = state.begin(backend)
        for call in state.calls:
            inner = call(backend, inner)
        state.backend, state.inner, state.calls = backend, inner, None

    def _get_other(self) -> Backend:
        with self._lock:
            if self._other is None:
                self._other = self._open_other()
            return self._other

    def _tell(self, what: str, found: int, limit: int, option: str) -> None:
        first, level = self._first.capabilities, logging.INFO
        if what not in self._warned:
            self._warned.add(what)
            level = logging.WARNING
        log.log(
            level,
            "%s %d is beyond the %d that the %s engines were built for: it runs on %s; build them "
            "with %s to keep it on %s",
            what,
            found,
            limit,
            first.name,
            self._get_other().capabilities.name,
            option,
            first.device,
        )
