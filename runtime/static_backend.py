"""The graphs of variant `cpu_static` behind the `Backend` protocol: nothing is copied or bound anew
from step to step.

A state's tensors lie in one block of memory that is bound to the graph once; a step writes its few
numbers into the bound arrays and runs. Caches have room for FIRST_POSITIONS tokens, and move to a
block of twice the room when it is full, until there is room for max_length. Which row a beam's past
lies in is said by cache_indirection, so no row of a cache moves when beams change
places; when sentences leave, the last ones take their slots. Blocks are used again by later
batches.

Letters: B sentences, S source length, K beams, N = B*K, L layers, H heads, Dh
head_dim, V vocabulary.
"""

from __future__ import annotations

import math
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
from runtime.bound_session import Binding, BoundSession, Tensors, borrow
from runtime.buffer_pool import Block, BufferPool
from runtime.bundle import Bundle
from runtime.errors import BackendError
from runtime.graph_contract import (
    BANNED,
    CANDIDATE_IDS,
    EOS_BIAS,
    LOG_PROBS,
    PARENTS,
    POSITION,
    SCORES,
    SRC_IDS,
    SRC_MASK,
    SUM_LOG_PROBS,
    TOKEN_IDS,
    cross_names,
    next_self_names,
    self_names,
)
from runtime.manifest import ModelSpec, Precision, SpecialTokenIds
from runtime.placement import CPU, OrtTensor
from runtime.sources import check_lengths, pad_to_multiple
from runtime.static_contract import (
    BEAM_WIDTH,
    CACHE_INDIRECTION,
    GREEDY,
    NUM_CANDIDATES,
    VARIANT,
)

FIRST_POSITIONS = 32
"""Caches of max_length positions would mostly stay empty: sentences end long before."""

POSITIONS_MULTIPLE = 8
"""Caches have room for a multiple of it (and one more): ONNX Runtime keeps a plan of its memory for
every combination of sizes that it meets."""

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(kw_only=True)
class _State:
    """What is carried between steps: `length` tokens of each beam are cached.

    slots [B]: where in the arrays each sentence lies; None where they lie in order. arrays: what
    the graph reads and writes, by name, of the first B slots; `whole` the same with all slots.
    give_back: ends the use of their block, as the end of the state does.
    """

    beam_size: int
    max_length: int
    length: int
    slots: npt.NDArray[np.intp] | None
    whole: Arrays
    arrays: Arrays
    binding: Binding
    give_back: Callable[[], object] = lambda: None

    @property
    def sentences(self) -> int:
        return len(self.arrays[TOKEN_IDS])

    @property
    def positions(self) -> int:
        """How many tokens of a beam the caches have room for."""
        return int(self.arrays[CACHE_INDIRECTION].shape[2])


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
        self._pool = BufferPool()
        layers = model.decoder_layers
        self._self_names, self._cross_names = self_names(layers), cross_names(layers)
        self._next_names = next_self_names(layers)

    @classmethod
    def open(
        cls, bundle: Bundle, *, precision: Precision = "fp32", threads: int | None = None
    ) -> StaticBackend:
        """The graphs of a bundle. Raises BundleError when it has none of that precision."""
        encoder = bundle.graph("encoder", precision, VARIANT)
        step = bundle.graph("decoder_step", precision, VARIANT)
        greedy = [g for g in bundle.graphs_of(precision) if g.variant == GREEDY]
        return cls(
            bundle.graph_path(encoder),
            bundle.graph_path(step),
            bundle.manifest.model,
            bundle.manifest.special_ids,
            precision,
            threads,
            greedy_path=bundle.graph_path(greedy[0]) if greedy else None,
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
            },
        )

    def begin(
        self, src_ids: IntArray, src_mask: BoolArray, beam_size: int, max_length: int
    ) -> DecoderState:
        """src_ids int32 [B,S], src_mask bool [B,S]. BackendError beyond the model's limits."""
        check_lengths(self._model, src_ids.shape[1], max_length)
        ids, mask = pad_to_multiple(src_ids, src_mask, self._pad_id, self._model.max_source)
        encoder, step = self._sessions(beam_size)
        arrays, block = self._arrays(mask, beam_size, min(max_length, FIRST_POSITIONS))
        tensors = borrow(arrays)
        sources = {SRC_IDS: CPU.tensor(ids), SRC_MASK: tensors[SRC_MASK]}
        encoder.bind(sources, {name: tensors[name] for name in self._cross_names}).run()
        state = _State(
            beam_size=beam_size,
            max_length=max_length,
            length=0,
            slots=None,
            whole=arrays,
            arrays=arrays,
            binding=self._bind(step, tensors),
        )
        self._lend(state, block)
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
        check_room(state.length, state.max_length)
        _, session = self._sessions(state.beam_size)
        if state.length == state.positions:
            self._grow(state, session)
        arrays, slots = state.arrays, state.slots
        where: Any = slice(None) if slots is None else slots
        arrays[TOKEN_IDS][where] = token_ids
        arrays[SUM_LOG_PROBS][where, :, 0] = sum_log_probs
        arrays[POSITION][0] = state.length
        arrays[EOS_BIAS][0] = BANNED if ban_eos else 0.0
        if state.beam_size > 1 and state.length > 0:
            past = arrays[CACHE_INDIRECTION][:, :, : state.length]  # [B,K,T]
            rows = np.arange(len(past))[:, None] if slots is None else slots[:, None]
            past[where] = past[rows, beam_indices]
        log_probs = None
        if need_log_probs:
            shape = (state.sentences, state.beam_size, self._model.vocab_size)
            log_probs = np.empty(shape, dtype=np.float32)
            self._bind(session, borrow(arrays), CPU.tensor(log_probs)).run()
        else:
            state.binding.run()
        state.length += 1
        found = [arrays[name] for name in (SCORES, CANDIDATE_IDS, PARENTS)]
        if slots is not None:
            found = [array[slots] for array in found]
            log_probs = None if log_probs is None else log_probs[slots]
        scores, candidate_ids, parents = found
        return Candidates(
            scores=scores, token_ids=candidate_ids, parents=parents, log_probs=log_probs
        )

    def keep(self, state: DecoderState, sentences: IntArray) -> DecoderState:
        """Goes on with only these sentences. Those in the last slots move to slots that are free
        now: as many rows are copied as sentences leave, at most, and only what they hold."""
        assert isinstance(state, _State)
        if len(sentences) == state.sentences:
            return state
        _, session = self._sessions(state.beam_size)
        slots = sentences.astype(np.intp) if state.slots is None else state.slots[sentences]
        size = len(slots)
        moving = np.flatnonzero(slots >= size)
        free = np.setdiff1d(np.arange(size), slots)
        if len(free):
            self._move(state, slots[moving], free)
            slots[moving] = free
        in_order = np.array_equal(slots, np.arange(size))
        state.slots = None if in_order else slots
        state.arrays = self._first(state.whole, size, state.beam_size)
        state.binding = self._bind(session, borrow(state.arrays))
        return state

    def close(self) -> None:
        """Frees the graphs. Calling it twice does no harm."""
        self._encoder = self._step = self._greedy = None
        self._pool.close()

    def _sessions(self, beam_size: int) -> tuple[BoundSession, BoundSession]:
        """The encoder, and the step for that many beams."""
        if self._encoder is None or self._step is None:
            raise BackendError("the onnxruntime backend is closed; open it again to go on")
        if beam_size > 1 or self._open_greedy is None:
            return self._encoder, self._step
        with self._lock:
            if self._greedy is None:
                self._greedy = self._open_greedy()
            return self._encoder, self._greedy

    def _grow(self, state: _State, session: BoundSession) -> None:
        """Moves the first B slots to a block with room for twice as many positions."""
        old, length = state.arrays, state.length
        room = min(2 * length, state.max_length)
        arrays, block = self._arrays(old[SRC_MASK].copy(), state.beam_size, room)
        for name in self._self_names:
            arrays[name][:, :, :length] = old[name]
        for name in self._cross_names:
            arrays[name][:] = old[name]
        arrays[CACHE_INDIRECTION][:, :, :length] = old[CACHE_INDIRECTION]
        state.whole = state.arrays = arrays
        state.binding = self._bind(session, borrow(arrays))
        state.give_back()
        self._lend(state, block)

    def _lend(self, state: _State, block: Block) -> None:
        """The block goes back to the pool when the state is gone."""
        ending = weakref.finalize(state, self._pool.give, block)
        ending.atexit = False
        state.give_back = ending

    def _arrays(self, src_mask: BoolArray, beam_size: int, room: int) -> tuple[Arrays, Block]:
        """All that a step of this batch reads and writes, and the block that most of it lies in.

        room: tokens of each beam that the caches are to hold, at least.
        """
        sentences, length = src_mask.shape
        heads, head_dim = self._model.num_heads, self._model.head_dim
        # An odd number of positions: rows a power of two apart would share few sets of the
        # processor's caches.
        positions = -(-room // POSITIONS_MULTIPLE) * POSITIONS_MULTIPLE | 1
        cache = (sentences * beam_size, heads, positions, head_dim)
        cross = (sentences, heads, length, head_dim)
        shapes = dict.fromkeys(self._self_names, cache) | dict.fromkeys(self._cross_names, cross)
        block = self._pool.take(sum(map(math.prod, shapes.values())))
        arrays: Arrays = {}
        start = 0
        for name, shape in shapes.items():
            end = start + math.prod(shape)
            arrays[name] = block[start:end].reshape(shape)
            start = end
        own = np.arange(beam_size, dtype=np.int32)[None, :, None]
        arrays |= {
            TOKEN_IDS: np.zeros((sentences, beam_size), dtype=np.int32),
            POSITION: np.zeros(1, dtype=np.int32),
            BEAM_WIDTH: np.array([beam_size], dtype=np.int32),
            CACHE_INDIRECTION: np.tile(own, (sentences, 1, positions)),
            SRC_MASK: src_mask,
            SUM_LOG_PROBS: np.zeros((sentences, beam_size, 1), dtype=np.float32),
            NUM_CANDIDATES: np.array([2 * beam_size], dtype=np.int64),
            EOS_BIAS: np.zeros(1, dtype=np.float32),
            SCORES: np.zeros((sentences, 2 * beam_size), dtype=np.float32),
            CANDIDATE_IDS: np.zeros((sentences, 2 * beam_size), dtype=np.int32),
            PARENTS: np.zeros((sentences, 2 * beam_size), dtype=np.int32),
        }
        return arrays, block

    def _bind(
        self, session: BoundSession, tensors: Tensors, log_probs: OrtTensor | None = None
    ) -> Binding:
        """Inputs and outputs of a step; next_self_k.i is the memory of self_k.i."""
        outputs = {name: tensors[name] for name in (SCORES, CANDIDATE_IDS, PARENTS)}
        outputs |= {
            name: tensors[cache]
            for name, cache in zip(self._next_names, self._self_names, strict=True)
        }
        if log_probs is not None:
            outputs[LOG_PROBS] = log_probs
        return session.bind(tensors, outputs)

    def _move(
        self, state: _State, source: npt.NDArray[np.intp], target: npt.NDArray[np.intp]
    ) -> None:
        """Copies what the sentences in the slots `source` hold to the slots `target`."""
        sentences, length = state.sentences, state.length
        for name in self._self_names:
            cache = state.arrays[name]
            by_sentence = cache.reshape(sentences, state.beam_size, *cache.shape[1:])
            by_sentence[target, :, :, :length] = by_sentence[source, :, :, :length]
        for name in (*self._cross_names, SRC_MASK, CACHE_INDIRECTION):
            array = state.arrays[name]
            array[target] = array[source]

    def _first(self, whole: Arrays, sentences: int, beam_size: int) -> Arrays:
        """The arrays of the first slots only, in the same memory."""
        fixed = (POSITION, BEAM_WIDTH, NUM_CANDIDATES, EOS_BIAS)
        rows = {name: sentences for name in whole if name not in fixed}
        rows |= dict.fromkeys(self._self_names, sentences * beam_size)
        return {name: array[: rows.get(name, len(array))] for name, array in whole.items()}
