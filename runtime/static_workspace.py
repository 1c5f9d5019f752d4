"""The memory of a batch shape, bound once to the graphs of variant `cpu_static`; and a pool of it.

Binding some fifty tensors and making their arrays takes as long as a step of a small model, so
small workspaces wait, as they are, for the next batch of their shape. Of large ones only the block
of their caches waits, for any batch that fits into it, until the pool is trimmed: the system takes
a microsecond for each page that is new.

Letters: B sentences, S source length, K beams, N = B*K, H heads, Dh head_dim, M positions.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from runtime.backend import Candidates, FloatArray
from runtime.bound_session import Binding, BoundSession, Tensors, borrow
from runtime.graph_contract import (
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
from runtime.manifest import ModelSpec
from runtime.placement import CPU
from runtime.static_contract import (
    BEAM_WIDTH,
    CACHE_INDIRECTION,
    LOG_PROB_SENTENCES,
    NUM_CANDIDATES,
)

Arrays = dict[str, npt.NDArray[Any]]

KEPT_FLOATS = 1 << 20
"""The largest workspace that is kept as it is: 4 MB of caches, a line of BASE with four beams."""
KEPT_SHAPES = 8
"""How many of these wait at most."""
POSITIONS_MULTIPLE = 8
"""Caches have room for a multiple of it (and one more): ONNX Runtime keeps a plan of its memory for
every combination of sizes that it meets."""
_CACHE_LINE = 64
"""Bytes."""
_FIXED = (POSITION, BEAM_WIDTH, NUM_CANDIDATES, LOG_PROB_SENTENCES, EOS_BIAS)
"""What has no row for each sentence."""


class Shape(NamedTuple):
    """positions: room for so many tokens of each beam."""

    sentences: int
    beam_size: int
    source: int
    positions: int


def shape_for(sentences: int, beam_size: int, source: int, room: int) -> Shape:
    """room: tokens of each beam that the caches are to hold, at least."""
    # An odd number of positions: rows a power of two apart would share few sets of the processor's
    # caches.
    positions = -(-room // POSITIONS_MULTIPLE) * POSITIONS_MULTIPLE | 1
    return Shape(sentences, beam_size, source, positions)


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A step over the first slots of a workspace. arrays: what it reads and writes, by name. run:
    does it. found: what it has found then, the same arrays at every step."""

    arrays: Arrays
    run: Callable[[], None]
    found: Candidates


def new_block(count: int) -> FloatArray:
    """Memory for so many floats, from the beginning of a cache line on: numpy's begins anywhere in
    one, and each vector that is read from there would lie in two."""
    spare = _CACHE_LINE // np.dtype(np.float32).itemsize
    block = np.empty(count + spare, dtype=np.float32)
    skipped = -block.ctypes.data % _CACHE_LINE // block.itemsize
    return block[skipped : skipped + count]


class StaticWorkspace:
    """All that the graphs read and write of one batch, at one time of one batch only.

    The caches and cross_k, cross_v lie in one block, whose content is whatever it was. encode: runs
    the encoder, from src_ids and src_mask. whole: the step over all slots.
    """

    def __init__(
        self,
        shape: Shape,
        model: ModelSpec,
        encoder: BoundSession,
        step: BoundSession,
        take_block: Callable[[int], FloatArray],
    ) -> None:
        """take_block: memory for at least so many floats."""
        self.shape, self._step = shape, step
        layers = model.decoder_layers
        self._self_names, self._next_names = self_names(layers), next_self_names(layers)
        self._cross_names = cross_names(layers)
        sentences, beam_size, source, positions = shape
        heads, head_dim = model.num_heads, model.head_dim
        dims = (
            (2 * layers, sentences * beam_size, heads, positions, head_dim),
            (2 * layers, sentences, heads, source, head_dim),
        )
        counts = [math.prod(sizes) for sizes in dims]
        self.is_small = sum(counts) <= KEPT_FLOATS  # so it is kept as it is
        self.block = take_block(sum(counts))
        parts = np.split(self.block[: sum(counts)], counts[:1])
        self._past, self._cross = (
            part.reshape(sizes) for part, sizes in zip(parts, dims, strict=True)
        )
        arrays: Arrays = dict(zip(self._self_names, self._past, strict=True))
        arrays |= zip(self._cross_names, self._cross, strict=True)
        self._own_rows = np.arange(beam_size, dtype=np.int32)[None, :, None]
        arrays |= {
            TOKEN_IDS: np.zeros((sentences, beam_size), dtype=np.int32),
            POSITION: np.zeros(1, dtype=np.int32),
            BEAM_WIDTH: np.array([beam_size], dtype=np.int32),
            CACHE_INDIRECTION: np.zeros((sentences, beam_size, positions), dtype=np.int32),
            SRC_MASK: np.zeros((sentences, source), dtype=np.bool_),
            SUM_LOG_PROBS: np.zeros((sentences, beam_size, 1), dtype=np.float32),
            NUM_CANDIDATES: np.array([2 * beam_size], dtype=np.int64),
            LOG_PROB_SENTENCES: np.zeros(1, dtype=np.int64),
            EOS_BIAS: np.zeros(1, dtype=np.float32),
            SCORES: np.zeros((sentences, 2 * beam_size), dtype=np.float32),
            CANDIDATE_IDS: np.zeros((sentences, 2 * beam_size), dtype=np.int32),
            PARENTS: np.zeros((sentences, 2 * beam_size), dtype=np.int32),
        }
        self.src_ids = np.zeros((sentences, source), dtype=np.int32)
        tensors = borrow({SRC_IDS: self.src_ids, **arrays})
        self.encode = encoder.bind(tensors, {name: tensors[name] for name in self._cross_names}).run
        self.whole = self._bound(arrays)

    def start(self) -> None:
        """Every beam's past lies in its own row again."""
        self.whole.arrays[CACHE_INDIRECTION][:] = self._own_rows

    def first(self, sentences: int) -> Bound:
        """The step over the first slots only, in the same memory."""
        rows = dict.fromkeys(self._self_names, sentences * self.shape.beam_size)
        return self._bound(
            {
                name: array if name in _FIXED else array[: rows.get(name, sentences)]
                for name, array in self.whole.arrays.items()
            }
        )

    def move(self, source: int, target: int, length: int) -> None:
        """Copies what the sentence in the slot `source` holds, `length` tokens of each beam, to the
        slot `target`."""
        k = self.shape.beam_size
        old, new = (self._past[:, slot * k : (slot + 1) * k] for slot in (source, target))
        new[:, :, :, :length] = old[:, :, :, :length]
        self._cross[:, target] = self._cross[:, source]
        for name in (SRC_MASK, CACHE_INDIRECTION):
            array = self.whole.arrays[name]
            array[target] = array[source]

    def take_over(self, other: StaticWorkspace, length: int) -> None:
        """All slots get what the first ones of another workspace hold: `length` tokens of each
        beam, of as many beams and of sources as long."""
        sentences, beam_size = self.shape[:2]
        rows = sentences * beam_size
        self._past[:, :, :, :length] = other._past[:, :rows, :, :length]
        self._cross[:] = other._cross[:, :sentences]
        new, old = self.whole.arrays, other.whole.arrays
        new[CACHE_INDIRECTION][:, :, :length] = old[CACHE_INDIRECTION][:sentences, :, :length]
        new[SRC_MASK][:] = old[SRC_MASK][:sentences]

    def run_for_log_probs(self, arrays: Arrays, log_probs: FloatArray) -> None:
        """A step that writes log_probs [B,K,V] too."""
        asked = {**arrays, LOG_PROB_SENTENCES: np.array([len(log_probs)], dtype=np.int64)}
        self._bind(asked, {LOG_PROBS: CPU.tensor(log_probs)}).run()

    def _bound(self, arrays: Arrays) -> Bound:
        found = Candidates(
            scores=arrays[SCORES], token_ids=arrays[CANDIDATE_IDS], parents=arrays[PARENTS]
        )
        return Bound(arrays=arrays, run=self._bind(arrays, {}).run, found=found)

    def _bind(self, arrays: Arrays, more_outputs: Tensors) -> Binding:
        """next_self_k.i is the memory of self_k.i."""
        tensors = borrow(arrays)
        outputs = {name: tensors[name] for name in (SCORES, CANDIDATE_IDS, PARENTS)}
        for name, cache in zip(self._next_names, self._self_names, strict=True):
            outputs[name] = tensors[cache]
        return self._step.bind(tensors, {**outputs, **more_outputs})


class StaticWorkspacePool:
    """Workspaces that no batch is using. Usable from several threads at once."""

    def __init__(self, model: ModelSpec) -> None:
        self._model = model
        self._kept: list[StaticWorkspace] = []  # the one that came back last is last
        self._blocks: list[FloatArray] = []
        # A state can be collected, and give back, at any time: while the lock is held too.
        self._lock = threading.RLock()
        self._closed = False

    def take(self, shape: Shape, encoder: BoundSession, step: BoundSession) -> StaticWorkspace:
        """One of that shape, made where none waits. encoder, step: always the same for a shape."""
        with self._lock:
            for index in reversed(range(len(self._kept))):
                if self._kept[index].shape == shape:
                    return self._kept.pop(index)
        return StaticWorkspace(shape, self._model, encoder, step, self._take_block)

    def give(self, workspace: StaticWorkspace) -> None:
        """Takes back what no batch uses any more."""
        with self._lock:
            if self._closed:
                return
            if workspace.is_small:
                self._kept.append(workspace)
                del self._kept[:-KEPT_SHAPES]
            else:
                self._blocks.append(workspace.block)

    def trim(self) -> None:
        """Lets blocks go that no batch is using."""
        with self._lock:
            self._blocks.clear()

    def _take_block(self, count: int) -> FloatArray:
        """The smallest block that holds so many floats. One that waits and is too small for this
        batch goes in its place, so that no more wait than batches were searched at once."""
        with self._lock:
            self._blocks.sort(key=len)
            for index, block in enumerate(self._blocks):
                if len(block) >= count:
                    return self._blocks.pop(index)
            if self._blocks and count > KEPT_FLOATS:
                self._blocks.pop()
        return new_block(count)

    def close(self) -> None:
        """Lets all of them go, those that come back later too."""
        with self._lock:
            self._closed = True
            self._kept.clear()
            self._blocks.clear()
