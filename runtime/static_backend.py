"""The graphs of variant `cpu_static` behind the `Backend` protocol: nothing is copied or bound anew
from step to step.

A state's tensors lie in a workspace that is bound to the graphs once for its shape; a step writes
its few numbers into the bound arrays and runs. Caches have room for FIRST_POSITIONS tokens, and
move to a workspace with twice the room when it is full, until there is room for max_length. Which
row a beam's past lies in is said by cache_indirection, so no row of a cache moves when beams change
places. Sentences that leave stay in their slots, and what is computed there is dropped, until they
are an eighth of all: then the last ones take their slots.

Letters: B sentences, S source length, K beams, N = B*K, V vocabulary.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from runtime import cores
from runtime.backend import (
    BoolArray,
    Candidates,
    Capabilities,
    DecoderState,
    FloatArray,
    IntArray,
    check_room,
)
from runtime.bound_session import BoundSession
from runtime.bundle import Bundle
from runtime.errors import BackendError
from runtime.graph_contract import (
    BANNED,
    EOS_BIAS,
    POSITION,
    SRC_IDS,
    SRC_MASK,
    SUM_LOG_PROBS,
    TOKEN_IDS,
)
from runtime.heap import trim_heap
from runtime.manifest import ModelSpec, Precision, SpecialTokenIds
from runtime.native_kernels import why_not
from runtime.sources import check_lengths, pad_to_multiple
from runtime.static_contract import CACHE_INDIRECTION, GREEDY, VARIANT
from runtime.static_workspace import Bound, StaticWorkspace, StaticWorkspacePool, shape_for

FIRST_POSITIONS = 32
"""Caches of max_length positions would mostly stay empty: sentences end long before."""
LEAVING_SHARE = 8
"""Slots are closed up when one in so many is free. Moving caches and binding the graph to fewer
slots takes as long as some eight sentences of a step."""


@dataclass(kw_only=True)
class _State:
    """What is carried between steps: `length` tokens of each beam are cached.

    bound: the step over the first slots of the workspace, B or more. slots [B]: in which of them
    each sentence lies; None where all are taken, in order. give_back: ends the use of the
    workspace, as the end of the state does.
    """

    max_length: int
    length: int
    workspace: StaticWorkspace
    bound: Bound
    slots: npt.NDArray[np.intp] | None = None
    give_back: Callable[[], object] = lambda: None

    @property
    def bound_slots(self) -> int:
        return len(self.bound.arrays[TOKEN_IDS])

    @property
    def sentences(self) -> int:
        return self.bound_slots if self.slots is None else len(self.slots)

    @property
    def beam_size(self) -> int:
        return self.workspace.shape.beam_size


def greedy_path(bundle: Bundle, precision: Precision) -> Path | None:
    """Of the step for beam 1, where a bundle has one of that precision."""
    found = [graph for graph in bundle.graphs_of(precision) if graph.variant == GREEDY]
    return bundle.graph_path(found[0]) if found else None


class StaticBackend:
    """Runs the encoder and decoder-step graphs of variant `cpu_static`, of one precision.

    precision: fp32 or int8. threads: of one call; None is the number of physical cores this process
    may use. greedy_path: the step for beam 1, where it has one; loaded when it is first used.
    Raises BackendError when ONNX Runtime can't load a graph, or a graph lacks what the contract
    names. Usable from several threads at once, each with states of its own.
    """

    def __init__(
        self,
        encoder_path: Path,
        step_path: Path,
        model: ModelSpec,
        special_ids: SpecialTokenIds,
        precision: Precision = "fp32",
        threads: int | None = None,
        *,
        greedy_path: Path | None = None,
    ) -> None:
        cores.check_threads(threads)
        self._model, self._pad_id, self._precision = model, special_ids.pad, precision
        self._threads = threads if threads is not None else cores.physical_cores()
        rest = (model, precision, self._threads)
        self._encoder: BoundSession | None = BoundSession("encoder", encoder_path, *rest)
        self._step: BoundSession | None = BoundSession("decoder_step", step_path, *rest)
        self._open_greedy = (
            None
            if greedy_path is None
            else partial(BoundSession, "decoder_step", greedy_path, *rest)
        )
        self._greedy: BoundSession | None = None
        self._lock = threading.Lock()
        self._pool = StaticWorkspacePool(model)
        self._untrimmed = False

    @classmethod
    def open(
        cls, bundle: Bundle, *, precision: Precision = "fp32", threads: int | None = None
    ) -> StaticBackend:
        """The graphs of a bundle. Raises BundleError when it has none of that precision."""
        encoder = bundle.graph("encoder", precision, VARIANT)
        step = bundle.graph("decoder_step", precision, VARIANT)
        return cls(
            bundle.graph_path(encoder),
            bundle.graph_path(step),
            bundle.manifest.model,
            bundle.manifest.special_ids,
            precision,
            threads,
            greedy_path=greedy_path(bundle, precision),
        )

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            name="onnxruntime",
            device="cpu",
            precision=self._precision,
            vocab_size=self._model.vocab_size,
            max_source=self._model.max_source,
            max_target=self._model.max_target,
            detail={
                "onnxruntime": onnxruntime.__version__,
                "threads": self._threads,
                "variant": VARIANT,
                "kernels": "leanseq" if not why_not() else "onnxruntime",
            },
        )

    def begin(
        self, src_ids: IntArray, src_mask: BoolArray, beam_size: int, max_length: int
    ) -> DecoderState:
        """src_ids int32 [B,S], src_mask bool [B,S]. BackendError beyond the model's limits."""
        check_lengths(self._model, src_ids.shape[1], max_length)
        ids, mask = pad_to_multiple(src_ids, src_mask, self._pad_id, self._model.max_source)
        room = min(max_length, FIRST_POSITIONS)
        workspace = self._take(len(ids), beam_size, ids.shape[1], room)
        workspace.src_ids[:] = ids
        workspace.whole.arrays[SRC_MASK][:] = mask
        workspace.encode()
        self._untrimmed |= not workspace.is_small
        state = _State(max_length=max_length, length=0, workspace=workspace, bound=workspace.whole)
        self._lend(state)
        return state

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
        self._check_open()
        check_room(state.length, state.max_length)
        if state.length == state.workspace.shape.positions:
            self._grow(state)
        arrays, found = state.bound.arrays, state.bound.found
        slots, length = state.slots, state.length
        where: Any = slice(None) if slots is None else slots
        arrays[TOKEN_IDS][where] = token_ids
        arrays[SUM_LOG_PROBS][where, :, 0] = sum_log_probs
        arrays[POSITION][0] = length
        arrays[EOS_BIAS][0] = BANNED if ban_eos else 0.0
        if length > 0 and state.beam_size > 1:
            past = arrays[CACHE_INDIRECTION][:, :, :length]  # [B,K,T]
            rows = np.arange(len(past))[:, None] if slots is None else slots[:, None]
            past[where] = past[rows, beam_indices]
        log_probs = None
        if need_log_probs:
            shape = (state.bound_slots, state.beam_size, self._model.vocab_size)
            log_probs = np.empty(shape, dtype=np.float32)
            state.workspace.run_for_log_probs(arrays, log_probs)
        else:
            state.bound.run()
        state.length = length + 1
        if slots is None and log_probs is None:
            return found
        return Candidates(
            scores=found.scores[where],
            token_ids=found.token_ids[where],
            parents=found.parents[where],
            log_probs=None if log_probs is None else log_probs[where],
        )

    def keep(self, state: DecoderState, sentences: IntArray) -> DecoderState:
        """Goes on with only these sentences. Those in the last slots move to slots that are free
        once these are many: as many rows are copied as sentences left, and only what they hold."""
        assert isinstance(state, _State)
        if len(sentences) == state.sentences:
            return state
        self._check_open()
        state.slots = sentences.astype(np.intp) if state.slots is None else state.slots[sentences]
        leaving = state.bound_slots - len(state.slots)
        if leaving * LEAVING_SHARE >= state.bound_slots:
            self._close_up(state)
        return state

    def _close_up(self, state: _State) -> None:
        """Binds the step to no more slots than there are sentences."""
        slots = state.slots
        if slots is None:
            return
        size = len(slots)
        is_taken = np.zeros(state.bound_slots, dtype=np.bool_)
        is_taken[slots] = True
        free = np.flatnonzero(~is_taken[:size])
        if len(free):
            moving = np.flatnonzero(slots >= size)
            for source, target in zip(slots[moving].tolist(), free.tolist(), strict=True):
                state.workspace.move(source, target, state.length)
            slots[moving] = free
        in_order = np.array_equal(slots, np.arange(size))
        state.slots = None if in_order else slots
        state.bound = state.workspace.first(size)

    def trim(self) -> None:
        """Gives back what batches that were not small took: the memory of their workspaces, and the
        encoder's, which runs once for many steps."""
        encoder = self._encoder
        if not self._untrimmed or encoder is None:
            return
        self._untrimmed = False
        self._pool.trim()
        one_token = np.full((1, 1), self._pad_id, dtype=np.int32)
        encoder.shrink({SRC_IDS: one_token, SRC_MASK: np.ones((1, 1), dtype=np.bool_)})
        trim_heap()

    def close(self) -> None:
        """Frees the graphs. Calling it twice does no harm."""
        self._encoder = self._step = self._greedy = None
        self._pool.close()

    def _check_open(self) -> tuple[BoundSession, BoundSession]:
        """The encoder and the step for beams."""
        if self._encoder is None or self._step is None:
            raise BackendError("the onnxruntime backend is closed; open it again to go on")
        return self._encoder, self._step

    def _take(self, sentences: int, beam_size: int, source: int, room: int) -> StaticWorkspace:
        """A workspace for the graphs that serve that many beams."""
        encoder, step = self._check_open()
        if beam_size == 1 and self._open_greedy is not None:
            with self._lock:
                if self._greedy is None:
                    self._greedy = self._open_greedy()
                step = self._greedy
        workspace = self._pool.take(shape_for(sentences, beam_size, source, room), encoder, step)
        workspace.start()
        return workspace

    def _grow(self, state: _State) -> None:
        """Moves all to a workspace with room for twice as many positions."""
        self._close_up(state)
        old, length = state.workspace, state.length
        room = min(2 * length, state.max_length)
        workspace = self._take(state.sentences, state.beam_size, old.shape.source, room)
        workspace.take_over(old, length)
        state.give_back()
        state.workspace, state.bound = workspace, workspace.whole
        self._lend(state)

    def _lend(self, state: _State) -> None:
        """The workspace goes back to the pool when the state is gone."""
        ending = weakref.finalize(state, self._pool.give, state.workspace)
        ending.atexit = False
        state.give_back = ending
