"""The memory of a batch shape, bound once to the graphs of variant `cpu_static`; and a pool of it.

Binding some fifty tensors and making their arrays takes as long as a step of a small model, so that
small workspaces wait, as they are, for the next batch of their shape. Large ones give their memory
back to the system: what that takes is little beside their steps.

Letters: B sentences, S source length, K beams, N = B*K, H heads, Dh head_dim, M positions.
"""

from __future__ import annotations

import math
import threading
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from runtime.backend import Candidates
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
from runtime.placement import CPU, OrtTensor
from runtime.static_contract import BEAM_WIDTH, CACHE_INDIRECTION, NUM_CANDIDATES

Arrays = dict[str, npt.NDArray[Any]]

KEPT_FLOATS = 1 << 19
"""The largest workspace that is kept as it is: 2 MB of caches."""
KEPT_SHAPES = 8
"""How many of these wait at most."""
POSITIONS_MULTIPLE = 8
"""Caches have room for a multiple of it (and one more): ONNX Runtime keeps a plan of its memory for
every combination of sizes that it meets."""
_FIXED = (POSITION, BEAM_WIDTH, NUM_CANDIDATES, EOS_BIAS)
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


class StepBinder:
    """Ties arrays to a step graph."""

    def __init__(self, model: ModelSpec) -> None:
        self.self_names, self.cross_names = (
            names(model.decoder_layers) for names in (self_names, cross_names)
        )
        self._next_names = next_self_names(model.decoder_layers)

    def bind(
        self, session: BoundSession, tensors: Tensors, log_probs: OrtTensor | None = None
    ) -> Binding:
        """Inputs and outputs of a step; next_self_k.i is the memory of self_k.i."""
        outputs = {name: tensors[name] for name in (SCORES, CANDIDATE_IDS, PARENTS)}
        outputs |= {
            name: tensors[cache]
            for name, cache in zip(self._next_names, self.self_names, strict=True)
        }
        if log_probs is not None:
            outputs[LOG_PROBS] = log_probs
        return session.bind(tensors, outputs)


class StaticWorkspace:
    """All that the graphs read and write of one batch, at one time of one batch only.

    arrays: by name; the caches and cross_k, cross_v lie in one block, whose content is whatever it
    was. encode, step: run the graphs on them. found: what a step has found, the same arrays always.
    """

    def __init__(
        self,
        shape: Shape,
        model: ModelSpec,
        encoder: BoundSession,
        step: BoundSession,
    ) -> None:
        self.shape, self.step_session = shape, step
        self.binder = StepBinder(model)
        dims = _cache_dims(shape, model)
        self.num_floats = sum(map(math.prod, dims.values()))
        block = np.empty(self.num_floats, dtype=np.float32)
        ends = np.cumsum([math.prod(sizes) for sizes in dims.values()])
        parts = np.split(block, ends[:-1])
        self.arrays: Arrays = {
            name: part.reshape(sizes)
            for (name, sizes), part in zip(dims.items(), parts, strict=True)
        }
        sentences, beam_size, source, positions = shape
        self._own_rows = np.arange(beam_size, dtype=np.int32)[None, :, None]
        self.arrays |= {
            TOKEN_IDS: np.zeros((sentences, beam_size), dtype=np.int32),
            POSITION: np.zeros(1, dtype=np.int32),
            BEAM_WIDTH: np.array([beam_size], dtype=np.int32),
            CACHE_INDIRECTION: np.zeros((sentences, beam_size, positions), dtype=np.int32),
            SRC_MASK: np.zeros((sentences, source), dtype=np.bool_),
            SUM_LOG_PROBS: np.zeros((sentences, beam_size, 1), dtype=np.float32),
            NUM_CANDIDATES: np.array([2 * beam_size], dtype=np.int64),
            EOS_BIAS: np.zeros(1, dtype=np.float32),
            SCORES: np.zeros((sentences, 2 * beam_size), dtype=np.float32),
            CANDIDATE_IDS: np.zeros((sentences, 2 * beam_size), dtype=np.int32),
            PARENTS: np.zeros((sentences, 2 * beam_size), dtype=np.int32),
        }
        self.src_ids = np.zeros((sentences, source), dtype=np.int32)
        tensors = borrow(self.arrays)
        self.encode = encoder.bind(
            {SRC_IDS: CPU.tensor(self.src_ids), SRC_MASK: tensors[SRC_MASK]},
            {name: tensors[name] for name in self.binder.cross_names},
        )
        self.step = self.binder.bind(step, tensors)
        self.found = candidates_in(self.arrays)

    @property
    def is_small(self) -> bool:
        """Whether it is kept as it is."""
        return self.num_floats <= KEPT_FLOATS

    def start(self) -> None:
        """Every beam's past lies in its own row again."""
        self.arrays[CACHE_INDIRECTION][:] = self._own_rows

    def first(self, sentences: int) -> Arrays:
        """The arrays of the first slots only, in the same memory."""
        rows = dict.fromkeys(self.binder.self_names, sentences * self.shape.beam_size)
        return {
            name: array if name in _FIXED else array[: rows.get(name, sentences)]
            for name, array in self.arrays.items()
        }

    def bind_step(self, arrays: Arrays, log_probs: npt.NDArray[Any] | None = None) -> Binding:
        """The step over some of the slots; log_probs [B,K,V] for those that are wanted too."""
        wanted = None if log_probs is None else CPU.tensor(log_probs)
        return self.binder.bind(self.step_session, borrow(arrays), wanted)


def candidates_in(arrays: Arrays) -> Candidates:
    """What a step that writes these arrays finds."""
    return Candidates(
        scores=arrays[SCORES], token_ids=arrays[CANDIDATE_IDS], parents=arrays[PARENTS]
    )


def _cache_dims(shape: Shape, model: ModelSpec) -> dict[str, tuple[int, int, int, int]]:
    heads, head_dim = model.num_heads, model.head_dim
    cache = (shape.sentences * shape.beam_size, heads, shape.positions, head_dim)
    cross = (shape.sentences, heads, shape.source, head_dim)
    layers = model.decoder_layers
    return dict.fromkeys(self_names(layers), cache) | dict.fromkeys(cross_names(layers), cross)


class StaticWorkspacePool:
    """Workspaces that no batch is using. Usable from several threads at once."""

    def __init__(self, model: ModelSpec) -> None:
        self._model = model
        self._kept: list[StaticWorkspace] = []  # the one that came back last is last
        # A state can be collected, and give back, at any time: while the lock is held too.
        self._lock = threading.RLock()
        self._closed = False

    def take(self, shape: Shape, encoder: BoundSession, step: BoundSession) -> StaticWorkspace:
        """One of that shape for these graphs, made where none waits."""
        with self._lock:
            for index in reversed(range(len(self._kept))):
                kept = self._kept[index]
                if kept.shape == shape and kept.step_session is step:
                    return self._kept.pop(index)
        return StaticWorkspace(shape, self._model, encoder, step)

    def give(self, workspace: StaticWorkspace) -> None:
        """Takes back what no batch uses any more; lets it go if it is large."""
        with self._lock:
            if workspace.is_small and not self._closed:
                self._kept.append(workspace)
                del self._kept[:-KEPT_SHAPES]

    def close(self) -> None:
        """Lets all of them go, those that come back later too."""
        with self._lock:
            self._closed = True
            self._kept.clear()
