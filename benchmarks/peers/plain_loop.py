"""The portable graphs as they are usually driven: caches come back as numpy arrays at every step
and go in again, and the best tokens are picked by numpy.

Nothing is made slower on purpose: one session a graph, beams reordered inside the step, the
optimizers off that would undo INT8, cross keys and values made once a sentence.

Letters as in `runtime.graph_contract`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from runtime.backend import BoolArray, Candidates, Capabilities, DecoderState, FloatArray, IntArray
from runtime.bundle import Bundle
from runtime.graph_contract import (
    BANNED,
    BEAM_INDICES,
    EOS_BIAS,
    INT8_DISABLED_OPTIMIZERS,
    LOG_PROBS,
    POSITION,
    SRC_IDS,
    SRC_MASK,
    SUM_LOG_PROBS,
    TOKEN_IDS,
    cross_names,
    next_self_names,
    self_names,
)
from runtime.manifest import Precision
from runtime.onnxruntime_backend import first_rows

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(kw_only=True)
class _State:
    """fixed: src_mask and the cross keys and values. past: self_k.0, self_v.0, ... [P,H,T,Dh]."""

    beam_size: int
    length: int
    first_rows: IntArray  # [B,1]
    fixed: Arrays
    past: Arrays


class PlainLoopBackend:
    """The portable graphs of one precision of a bundle, on the CPU with `threads` threads."""

    def __init__(self, bundle: Bundle, precision: Precision, threads: int) -> None:
        self._model = bundle.manifest.model
        self._precision, self._threads = precision, threads
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        paths = [
            bundle.graph_path(bundle.graph(role, precision)) for role in ("encoder", "decoder_step")
        ]
        self._encoder, self._step = (
            onnxruntime.InferenceSession(
                str(path),
                options,
                providers=["CPUExecutionProvider"],
                disabled_optimizers=list(INT8_DISABLED_OPTIMIZERS) if precision == "int8" else None,
            )
            for path in paths
        )
        self._run_options = onnxruntime.RunOptions()
        # Without this the candidates, which nobody asks for here, would be computed as well.
        self._run_options.only_execute_path_to_fetches = True

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            name="plain loop",
            device="cpu",
            precision=self._precision,
            vocab_size=self._model.vocab_size,
            max_source=self._model.max_source,
            max_target=self._model.max_target,
            detail={"onnxruntime": onnxruntime.__version__, "threads": self._threads},
        )

    def begin(
        self, src_ids: IntArray, src_mask: BoolArray, beam_size: int, max_length: int
    ) -> DecoderState:
        """src_ids int32 [B,S], src_mask bool [B,S]."""
        layers, rows = self._model.decoder_layers, src_ids.shape[0] * beam_size
        names = cross_names(layers)
        cross = self._encoder.run(names, {SRC_IDS: src_ids, SRC_MASK: src_mask})
        empty = np.zeros((rows, self._model.num_heads, 0, self._model.head_dim), dtype=np.float32)
        return _State(
            beam_size=beam_size,
            length=0,
            first_rows=first_rows(len(src_ids), beam_size),
            fixed={SRC_MASK: src_mask, **dict(zip(names, cross, strict=True))},
            past=dict.fromkeys(self_names(layers), empty),
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
        sentences = len(token_ids)
        feeds = {
            TOKEN_IDS: token_ids,
            POSITION: np.full((sentences, 1), state.length, dtype=np.int32),
            BEAM_INDICES: (state.first_rows + beam_indices).astype(np.int32).reshape(-1),
            SUM_LOG_PROBS: sum_log_probs,
            EOS_BIAS: np.full((sentences, 1), BANNED if ban_eos else 0.0, dtype=np.float32),
            **state.fixed,
            **state.past,
        }
        names = [LOG_PROBS, *next_self_names(self._model.decoder_layers)]
        log_probs, *caches = self._step.run(names, feeds, self._run_options)
        state.past = dict(zip(state.past, caches, strict=True))
        state.first_rows = first_rows(sentences, state.beam_size)
        state.length += 1
        return _best(log_probs, sum_log_probs, 2 * state.beam_size)

    def keep(self, state: DecoderState, sentences: IntArray) -> DecoderState:
        """Goes on with only these sentences; the next step picks their rows of the past."""
        assert isinstance(state, _State)
        state.first_rows = state.first_rows[sentences]
        state.fixed = {name: array[sentences] for name, array in state.fixed.items()}
        return state

    def close(self) -> None:
        """Nothing to free before the process ends."""


def _best(log_probs: FloatArray, sum_log_probs: FloatArray, count: int) -> Candidates:
    """log_probs [B,K,V], sum_log_probs [B,K] -> the best `count` of each sentence."""
    vocab_size = log_probs.shape[2]
    scores = (log_probs + sum_log_probs[:, :, None]).reshape(len(log_probs), -1)  # [B, K*V]
    best = np.argpartition(-scores, count - 1, axis=1)[:, :count]  # [B, count], in no order
    values = np.take_along_axis(scores, best, axis=1)
    order = np.lexsort((best, -values))
    best, values = np.take_along_axis(best, order, 1), np.take_along_axis(values, order, 1)
    return Candidates(
        scores=values,
        token_ids=(best % vocab_size).astype(np.int32),
        parents=(best // vocab_size).astype(np.int32),
        log_probs=log_probs,
    )
