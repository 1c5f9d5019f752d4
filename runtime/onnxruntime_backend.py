"""The two graphs behind the `Backend` protocol, run by ONNX Runtime on a CPU or on a GPU.

Caches stay ONNX Runtime's own tensors from step to step and are never numpy arrays; of a step only
the candidates come back. A cache grows by one token a step (a Concat in the graph) and is reordered
by `beam_indices` (a Gather in the graph). On a GPU src_mask, the caches and the cross keys and
values are made there and stay there.

Letters: B sentences, S source length, K beams, N = B*K, P rows of the past, T target length so far,
L layers, H heads, Dh head_dim, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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
from runtime.bundle import Bundle
from runtime.errors import BackendError, OptionError
from runtime.graph_contract import BANNED, cache_dtype
from runtime.manifest import ModelSpec, Precision, Role, SpecialTokenIds
from runtime.ort_session import GraphSession, Observer, RowSession
from runtime.placement import CPU, OrtTensor, place
from runtime.sources import SOURCE_MULTIPLE, check_lengths, pad_to_multiple


@dataclass(kw_only=True)
class _State:
    """What is carried between steps: `length` tokens of each beam are in `past`."""

    beam_size: int
    max_length: int
    length: int
    first_rows: IntArray  # [B,1]: the row of `past` that holds beam 0 of each sentence
    src_mask: OrtTensor  # bool [B,S]
    cross: list[OrtTensor]  # 2L of [B,H,S,Dh]
    past: list[OrtTensor]  # 2L of [P,H,T,Dh]
    borrowed: list[npt.NDArray[Any]] = field(default_factory=list)  # what src_mask, cross point to


class OnnxRuntimeBackend:
    """Runs the encoder and decoder-step graphs of one precision.

    provider: "cpu", or "cuda" for the first GPU. precision: fp32 or int8 on a CPU, fp16 or fp32 on
    a GPU. threads: of one call; None is the number of physical cores this process may use.
    observer: see Observer; the extra outputs are computed and fetched only where one is given.
    Raises BackendError when ONNX Runtime can't load a graph, or a graph lacks what the contract
    names; UnavailableError when there is no GPU to use. Usable from several threads at once, each
    with states of its own.
    """

    def __init__(
        self,
        encoder_path: Path,
        step_path: Path,
        model: ModelSpec,
        special_ids: SpecialTokenIds,
        precision: Precision = "fp32",
        threads: int | None = None,
        observer: Observer | None = None,
        *,
        provider: str = "cpu",
    ) -> None:
        cores.check_threads(threads)
        _check_precision(precision, provider)
        self._placement = placement = place(provider)
        self._model, self._pad_id, self._precision = model, special_ids.pad, precision
        self._threads = threads if threads is not None else cores.physical_cores()
        self._observer = observer
        rest = (model, precision, placement, self._threads, observer)
        self._graphs: dict[Role, GraphSession] | None = {
            "encoder": GraphSession("encoder", encoder_path, *rest),
            "decoder_step": GraphSession("decoder_step", step_path, *rest),
        }
        # On the host numpy picks the rows, in the tensors' own memory.
        self._rows = None if placement.on_host else RowSession(model, precision, placement)

    @classmethod
    def open(
        cls,
        bundle: Bundle,
        *,
        precision: Precision = "fp32",
        variant: str | None = None,
        threads: int | None = None,
        provider: str = "cpu",
    ) -> OnnxRuntimeBackend:
        """The graphs of a bundle. Raises BundleError when it has none of that precision."""
        chosen = variant or "portable"
        encoder = bundle.graph("encoder", precision, chosen)
        step = bundle.graph("decoder_step", precision, chosen)
        return cls(
            bundle.graph_path(encoder),
            bundle.graph_path(step),
            bundle.manifest.model,
            bundle.manifest.special_ids,
            precision,
            threads,
            provider=provider,
        )

    @classmethod
    def open_cuda(
        cls, bundle: Bundle, *, precision: Precision = "fp16", threads: int | None = None
    ) -> OnnxRuntimeBackend:
        """The same on the first GPU."""
        return cls.open(bundle, precision=precision, threads=threads, provider="cuda")

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            name="onnxruntime",
            device=self._placement.name,
            precision=self._precision,
            vocab_size=self._model.vocab_size,
            max_source=self._model.max_source,
            max_target=self._model.max_target,
            detail={"onnxruntime": onnxruntime.__version__, "threads": self._threads},
        )

    def begin(
        self, src_ids: IntArray, src_mask: BoolArray, beam_size: int, max_length: int
    ) -> DecoderState:
        """src_ids int32 [B,S], src_mask bool [B,S]. BackendError beyond the model's limits."""
        check_lengths(self._model, src_ids.shape[1], max_length)
        sentences = src_ids.shape[0]
        # An observer sees the sizes that were given.
        multiple = SOURCE_MULTIPLE if self._observer is None else 1
        limit = self._model.max_source
        ids, mask = pad_to_multiple(src_ids, src_mask, self._pad_id, limit, multiple)
        mask_tensor = self._placement.tensor(mask)
        cross = self._run("encoder", [CPU.tensor(ids), mask_tensor])
        empty = self._placement.empty(
            (sentences * beam_size, self._model.num_heads, 0, self._model.head_dim),
            cache_dtype(self._precision),
        )  # [N,H,0,Dh]
        return _State(
            beam_size=beam_size,
            max_length=max_length,
            length=0,
            first_rows=first_rows(sentences, beam_size),
            src_mask=mask_tensor,
            cross=cross,
            past=[empty] * (2 * self._model.decoder_layers),
            borrowed=[mask],
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
        check_room(state.length, state.max_length)
        sentences = token_ids.shape[0]
        ids = np.ascontiguousarray(token_ids, dtype=np.int32)
        position = np.full((sentences, 1), state.length, dtype=np.int32)
        rows = (state.first_rows + beam_indices).astype(np.int32).reshape(-1)  # [N]
        sums = np.ascontiguousarray(sum_log_probs, dtype=np.float32)
        eos_bias = np.full((sentences, 1), BANNED if ban_eos else 0.0, dtype=np.float32)
        # What the host sends is small: ONNX Runtime copies it to where the graph wants it.
        feeds = [*map(CPU.tensor, (ids, position, rows)), state.src_mask]
        feeds += map(CPU.tensor, (sums, eos_bias))
        outputs = self._run("decoder_step", feeds + state.past + state.cross, need_log_probs)
        state.past = outputs[3 : 3 + len(state.past)]
        state.first_rows = first_rows(sentences, state.beam_size)
        state.length += 1
        return Candidates(
            scores=outputs[0].numpy(),
            token_ids=outputs[1].numpy(),
            parents=outputs[2].numpy(),
            log_probs=outputs[3 + len(state.past)].numpy() if need_log_probs else None,
        )

    def keep(self, state: DecoderState, sentences: IntArray) -> DecoderState:
        """Goes on with only these sentences. Their rows of the past stay where they are: the next
        step picks them by `beam_indices`."""
        assert isinstance(state, _State)
        if len(sentences) == len(state.first_rows):
            return state
        state.first_rows = state.first_rows[sentences]
        tensors = [state.src_mask, *state.cross]
        if self._rows is None:
            state.borrowed = [tensor.numpy()[sentences] for tensor in tensors]
            tensors = [CPU.tensor(array) for array in state.borrowed]
        else:
            rows = np.ascontiguousarray(sentences, dtype=np.int32)
            tensors = self._rows.run([CPU.tensor(rows), *tensors])
        state.src_mask, *state.cross = tensors
        return state

    def close(self) -> None:
        """Frees the graphs. Calling it twice does no harm."""
        self._graphs = self._rows = None

    def _run(
        self, role: Role, feeds: list[OrtTensor], need_log_probs: bool = False
    ) -> list[OrtTensor]:
        if self._graphs is None:
            raise BackendError("the onnxruntime backend is closed; open it again to go on")
        return self._graphs[role].run(feeds, need_log_probs)


def _check_precision(precision: Precision, provider: str) -> None:
    if provider == "cuda" and "int8" in precision:
        raise OptionError(
            f"precision is {precision}; ONNX Runtime's CUDA provider fuses no INT8 MatMuls and "
            "would turn the weights back into floats at every step. Choose fp16 or fp32 there; for "
            "INT8 on a GPU take the tensorrt backend"
        )


def first_rows(sentences: int, beam_size: int) -> IntArray:
    """[B,1]: where beam 0 of each sentence lies among N rows."""
    return (np.arange(sentences, dtype=np.int32) * beam_size)[:, None]
