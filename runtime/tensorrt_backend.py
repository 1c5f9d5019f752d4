"""Two TensorRT engines behind the `Backend` protocol, on one GPU.

Caches never leave the device: of a step only the candidates come back. The cross keys and values of
a sentence that is finished make room for those of the last one, so rows on the device are in an
order of their own, which only this module knows.

Letters: B sentences, S source length, K beams, N = B*K, P rows of the past, T target length so far,
L layers, H heads, Dh head_dim, V vocabulary.
"""

from __future__ import annotations

import logging
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.backend import (
    Backend,
    BoolArray,
    Candidates,
    Capabilities,
    DecoderState,
    FloatArray,
    IntArray,
    check_room,
)
from runtime.bundle import Bundle
from runtime.device import CudaDevice, Device
from runtime.engine_loading import load_engines
from runtime.engine_pair import Capacity, EnginePair, Sizes, sizes
from runtime.errors import BackendError
from runtime.fallback import FallbackBackend
from runtime.graph_contract import (
    BANNED,
    BEAM_INDICES,
    CANDIDATE_IDS,
    EOS_BIAS,
    PARENTS,
    POSITION,
    SCORES,
    SRC_MASK,
    SUM_LOG_PROBS,
    TOKEN_IDS,
    cache_dtype,
)
from runtime.manifest import Precision, SpecialTokenIds
from runtime.registry import open_backend
from runtime.tensorrt_check import check_tensorrt
from runtime.workspace import Workspace
from runtime.workspace_pool import WorkspacePool

log = logging.getLogger(__name__)

SOURCE_MULTIPLE = 8
"""S is rounded up to a multiple of this: fewer shapes to run, and rows of masks and scores that
start where FP16 kernels like them to."""


@dataclass(kw_only=True, eq=False)
class _State:
    """What is carried between steps. The workspace goes back when nobody holds the state."""

    workspace: Workspace
    beam_size: int
    max_length: int
    source: int  # S, padded
    length: int = 0  # T
    rows: IntArray  # [B]: which row of the device each sentence has
    past_rows: IntArray  # [B]: which it had in the step before, in the past
    past_count: int  # rows of the step before: P / K


class TensorRtBackend:
    """Runs two engines: the encoder and the decoder step of one model, in one precision.

    Takes what the engines' profiles take: `capabilities` says so, and more sentences than that are
    asked for in smaller batches (SplitBatchError). So are those for which memory runs out.
    Usable from several threads at once, each with states of its own: each gets a workspace.
    Raises EngineError as EnginePair.capacities does.
    """

    def __init__(
        self,
        engines: EnginePair,
        special_ids: SpecialTokenIds,
        device: Device,
        *,
        detail: dict[str, Any] | None = None,
    ) -> None:
        self._device, self._pad_id = device, special_ids.pad
        self._model, self._precision = engines.model, engines.precision
        self._pool = WorkspacePool(device, engines)
        self._detail = dict(detail or {})

    @classmethod
    def open(
        cls,
        bundle: Bundle,
        *,
        precision: Precision = "fp16",
        threads: int | None = None,
        build: bool = True,
    ) -> Backend:
        """The engines of a bundle on the first GPU here, and ONNX Runtime beyond their limits.

        build: whether an engine that is missing, or fits nothing here, is built. threads: of ONNX
        Runtime. Raises EngineError for engines that can't be found, built or loaded; what
        `check_tensorrt` raises where TensorRT can't run.
        """
        library, device = check_tensorrt(), CudaDevice()
        engines = load_engines(bundle, precision, library, device, build=build)
        return cls(
            engines, bundle.manifest.special_ids, device, detail={library.name: library.version}
        ).with_fallback(bundle, threads)

    def with_fallback(self, bundle: Bundle, threads: int | None = None) -> Backend:
        """This, and ONNX Runtime over the same bundle for what is beyond the engines' limits."""
        same = _FALLBACK_PRECISION.get(self._precision)
        return FallbackBackend(
            self,
            self._pool.reach(),
            lambda: open_backend(
                bundle,
                "onnxruntime",
                precision=same if same in bundle.precisions() else None,
                threads=threads,
            ),
            max_source=self._model.max_source,
            max_target=self._model.max_target,
        )

    @property
    def capabilities(self) -> Capabilities:
        reach = self._pool.reach()
        return Capabilities(
            name="tensorrt",
            device=self._device.name,
            precision=self._precision,
            vocab_size=self._model.vocab_size,
            max_source=_smaller(self._model.max_source, reach.source),
            max_target=_smaller(self._model.max_target, reach.target),
            detail=self._detail | {"limits": str(reach)},
        )

    def begin(
        self, src_ids: IntArray, src_mask: BoolArray, beam_size: int, max_length: int
    ) -> DecoderState:
        """src_ids int32 [B,S], src_mask bool [B,S].

        Raises SplitBatchError for more sentences than a profile or the memory takes, BackendError
        for a source, a beam or a max_length beyond every profile, DeviceMemoryError when there is
        not even memory for one sentence.
        """
        self._device.use()
        batch, source = src_ids.shape
        workspace = self._pool.take(batch, beam_size, source, max_length)
        ids, mask = self._pad(src_ids, src_mask, workspace.capacity)
        rows = np.arange(batch, dtype=np.int32)
        state = _State(
            workspace=workspace,
            beam_size=beam_size,
            max_length=max_length,
            source=ids.shape[1],
            rows=rows,
            past_rows=rows,
            past_count=batch,
        )
        weakref.finalize(state, self._pool.give_back, workspace).atexit = False
        workspace.encode(ids, mask)
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
        self._device.use()
        now = _sizes(state)
        shape = (len(state.rows), 1)
        past = state.past_rows[:, None] * state.beam_size + beam_indices  # [B,K] rows of P
        fed: dict[str, npt.NDArray[Any]] = {
            TOKEN_IDS: _to_device(token_ids, state.rows),
            POSITION: np.full(shape, state.length, dtype=np.int32),
            BEAM_INDICES: _to_device(past, state.rows).reshape(-1),
            SUM_LOG_PROBS: _to_device(sum_log_probs, state.rows),
            EOS_BIAS: np.full(shape, BANNED if ban_eos else 0.0, dtype=np.float32),
        }
        workspace = state.workspace
        workspace.step(now, state.length % 2, fed, need_log_probs=need_log_probs)
        state.length += 1
        state.past_rows, state.past_count = state.rows, len(state.rows)
        fetched = (len(state.rows), 2 * state.beam_size)
        # Copies, since the pinned memory is the next batch's once this state is gone.
        return Candidates(
            scores=workspace.staged(SCORES, fetched)[state.rows],
            token_ids=workspace.staged(CANDIDATE_IDS, fetched)[state.rows],
            parents=workspace.staged(PARENTS, fetched)[state.rows],
            log_probs=workspace.log_probs(now)[state.rows] if need_log_probs else None,
        )

    def keep(self, state: DecoderState, sentences: IntArray) -> DecoderState:
        """Goes on with only these sentences.

        Their rows of the past stay where they are: the next step picks them by `beam_indices`. Of
        the cross keys and values, rows beyond the new B move to where a sentence has left.
        """
        assert isinstance(state, _State)
        self._check_open()
        if len(sentences) == len(state.rows):
            return state
        rows = state.rows[sentences]
        count = len(rows)
        moving = np.flatnonzero(rows >= count)
        holes = np.setdiff1d(np.arange(count), rows)  # as many as are moving
        moves = list(zip(rows[moving].tolist(), holes.tolist(), strict=True))
        self._device.use()
        for name, row_bytes in self._row_bytes(state):
            state.workspace.move_rows(name, row_bytes, moves)
        rows[moving] = holes
        state.rows, state.past_rows = rows, state.past_rows[sentences]
        return state

    def close(self) -> None:
        """Frees the engines and what is on the device. Calling it twice does no harm."""
        self._pool.close()

    def _check_open(self) -> None:
        if self._pool.closed:
            raise BackendError("the tensorrt backend is closed; open it again to go on")

    def _row_bytes(self, state: _State) -> list[tuple[str, int]]:
        """How long a sentence's row is, of all that has one for each sentence."""
        model = self._model
        element = np.dtype(cache_dtype(self._precision)).itemsize
        cross = model.num_heads * state.source * model.head_dim * element  # [H,S,Dh]
        return [(SRC_MASK, state.source), *((name, cross) for name in state.workspace.cross)]

    def _pad(
        self, src_ids: IntArray, src_mask: BoolArray, capacity: Capacity
    ) -> tuple[IntArray, BoolArray]:
        """Rounds S up to a multiple of SOURCE_MULTIPLE, within the profile."""
        length = src_ids.shape[1]
        padding = min(-length % SOURCE_MULTIPLE, capacity.source - length)
        widths = ((0, 0), (0, padding))
        ids = np.pad(src_ids.astype(np.int32, copy=False), widths, constant_values=self._pad_id)
        return ids, np.pad(src_mask, widths, constant_values=False)


def _sizes(state: _State) -> Sizes:
    return sizes(
        batch=len(state.rows),
        beam=state.beam_size,
        past=state.past_count * state.beam_size,
        source=state.source,
        length=state.length,
    )


def _to_device(values: npt.NDArray[Any], rows: IntArray) -> npt.NDArray[Any]:
    """Puts values [B,...], in the order of the sentences, into the order of the device's rows."""
    placed = np.empty_like(values)
    placed[rows] = values
    return placed


_FALLBACK_PRECISION: dict[Precision, Precision] = {"fp16": "fp32", "int8_fp16": "int8"}


def _smaller(limit: int | None, other: int) -> int:
    return other if limit is None else min(limit, other)
