"""The two graphs behind the `Backend` protocol, run by ONNX Runtime on a CPU.

Caches stay ONNX Runtime's own tensors from step to step and are never numpy arrays; of a step only
the candidates come back. A cache grows by one token a step (a Concat in the graph) and is reordered
by `beam_indices` (a Gather in the graph).

Letters: B sentences, S source length, K beams, N = B*K, P rows of the past, T target length so far,
L layers, H heads, Dh head_dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as ort_c

from runtime import cores
from runtime.backend import BoolArray, Candidates, Capabilities, DecoderState, FloatArray, IntArray
from runtime.bundle import Bundle
from runtime.errors import BackendError, OptionError
from runtime.graph_contract import (
    BANNED,
    BEAM_INDICES,
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
    cache_dtype,
    cross_names,
    graph_inputs,
    graph_outputs,
    next_self_names,
    self_names,
)
from runtime.manifest import ModelSpec, Precision, Role, SpecialTokenIds

Observer = Callable[[str, npt.NDArray[Any]], None]
"""Called with the name and the value of every output that a graph has beyond the contract."""

SOURCE_MULTIPLE = 4
"""ONNX Runtime multiplies one row by a matrix four rows of it at a time, and the rest one by one: a
sum over S keeps its order under padding only if S is a multiple of that (seen with beam_size 1)."""

_FATAL = 4  # of ONNX Runtime's log levels
_PROVIDERS = {"cpu": "CPUExecutionProvider"}
_OrtTensor = Any  # ort_c.OrtValue, which has no type stubs


@dataclass(kw_only=True)
class _State:
    """What is carried between steps: `length` tokens of each beam are in `past`."""

    beam_size: int
    max_length: int
    length: int
    first_rows: IntArray  # [B,1]: the row of `past` that holds beam 0 of each sentence
    src_mask: _OrtTensor  # bool [B,S]
    cross: list[_OrtTensor]  # 2L of [B,H,S,Dh]
    past: list[_OrtTensor]  # 2L of [P,H,T,Dh]
    borrowed: list[npt.NDArray[Any]] = field(default_factory=list)  # what src_mask, cross point to


class OnnxRuntimeBackend:
    """Runs the encoder and decoder-step graphs of one precision.

    precision: fp32 or int8; FP16 graphs are for GPUs. threads: of one call; None is the number of
    physical cores this process may use. observer: see Observer; the extra outputs are computed and
    fetched only where one is given.
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
        observer: Observer | None = None,
        *,
        provider: str = "cpu",
    ) -> None:
        if provider not in _PROVIDERS:
            raise OptionError(f"provider is {provider!r}; expected {', '.join(_PROVIDERS)}")
        cores.check_threads(threads)
        self._model, self._pad_id = model, special_ids.pad
        self._precision, self._provider = precision, provider
        self._threads = threads if threads is not None else cores.physical_cores()
        self._observer = observer
        self._graphs: dict[Role, _Graph] | None = {
            "encoder": self._load("encoder", encoder_path),
            "decoder_step": self._load("decoder_step", step_path),
        }

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

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            name="onnxruntime",
            device=self._provider,
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
        for name, found, limit in (
            ("source tokens", src_ids.shape[1], self._model.max_source),
            ("target tokens (max_length)", max_length, self._model.max_target),
        ):
            if limit is not None and found > limit:
                raise BackendError(
                    f"{found} {name} asked for; the model has positions for {limit}: shorten the "
                    "input or lower max_length"
                )
        sentences = src_ids.shape[0]
        ids, mask = self._pad(src_ids, src_mask)
        mask_tensor = _tensor(mask)
        cross = self._run("encoder", [_tensor(ids), mask_tensor])
        empty = np.zeros(
            (sentences * beam_size, self._model.num_heads, 0, self._model.head_dim),
            dtype=cache_dtype(self._precision),
        )  # [N,H,0,Dh]
        return _State(
            beam_size=beam_size,
            max_length=max_length,
            length=0,
            first_rows=_first_rows(sentences, beam_size),
            src_mask=mask_tensor,
            cross=cross,
            past=[_tensor(empty)] * (2 * self._model.decoder_layers),
            borrowed=[mask, empty],
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
        if state.length == state.max_length:
            raise BackendError(
                f"step {state.length + 1} after begin(max_length={state.max_length}); "
                "begin with a larger max_length"
            )
        sentences = token_ids.shape[0]
        ids = np.ascontiguousarray(token_ids, dtype=np.int32)
        position = np.full((sentences, 1), state.length, dtype=np.int32)
        rows = (state.first_rows + beam_indices).astype(np.int32).reshape(-1)  # [N]
        sums = np.ascontiguousarray(sum_log_probs, dtype=np.float32)
        eos_bias = np.full((sentences, 1), BANNED if ban_eos else 0.0, dtype=np.float32)
        feeds = [_tensor(ids), _tensor(position), _tensor(rows), state.src_mask, _tensor(sums)]
        feeds.append(_tensor(eos_bias))
        outputs = self._run("decoder_step", feeds + state.past + state.cross, need_log_probs)
        state.past = outputs[3 : 3 + len(state.past)]
        state.first_rows = _first_rows(sentences, state.beam_size)
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
        kept = [tensor.numpy()[sentences] for tensor in (state.src_mask, *state.cross)]
        state.src_mask, *state.cross = [_tensor(array) for array in kept]
        state.borrowed = kept
        return state

    def close(self) -> None:
        """Frees the graphs. Calling it twice does no harm."""
        self._graphs = None

    def _pad(self, src_ids: IntArray, src_mask: BoolArray) -> tuple[IntArray, BoolArray]:
        """Rounds S up to a multiple of SOURCE_MULTIPLE, within the model's limit.

        So a row's result doesn't depend on what its batch is padded to. An observer sees the sizes
        that were given to `begin`.
        """
        length = src_ids.shape[1]
        padding = -length % SOURCE_MULTIPLE if self._observer is None else 0
        if self._model.max_source is not None:
            padding = min(padding, self._model.max_source - length)
        widths = ((0, 0), (0, padding))
        ids = np.pad(src_ids.astype(np.int32, copy=False), widths, constant_values=self._pad_id)
        return ids, np.pad(src_mask, widths, constant_values=False)

    def _load(self, role: Role, path: Path) -> _Graph:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        options.log_severity_level = _FATAL  # errors are raised, and told in our own words
        # A plan of the memory would be kept for every combination of sizes ever seen.
        options.enable_mem_pattern = False
        if role == "encoder":
            # It runs once for many steps: its idle threads must not spin against the steps'.
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # It would merge equal Q nodes, after which their MatMuls are not fused to INT8 any more.
        disabled = ["CommonSubexpressionElimination"] if "int8" in self._precision else None
        try:
            session = onnxruntime.InferenceSession(
                str(path),
                options,
                providers=[_PROVIDERS[self._provider]],
                disabled_optimizers=disabled,
            )
        except Exception as error:  # ONNX Runtime's errors share no root
            raise BackendError(
                f"ONNX Runtime {onnxruntime.__version__} can't load {path.name} "
                f"({_first_line(error)}); the file is damaged, or needs a newer onnxruntime: copy "
                "or build the bundle again, or upgrade onnxruntime"
            ) from error
        return _Graph(role, path.name, session, self._model, self._precision, self._observer)

    def _run(self, role: Role, feeds: list[_OrtTensor], need_log_probs: bool = False) -> list[Any]:
        if self._graphs is None:
            raise BackendError("the onnxruntime backend is closed; open it again to go on")
        return self._graphs[role].run(feeds, need_log_probs)


class _Graph:
    """One session, its inputs in the contract's order, and what to fetch."""

    def __init__(
        self,
        role: Role,
        name: str,
        session: onnxruntime.InferenceSession,
        model: ModelSpec,
        precision: Precision,
        observer: Observer | None,
    ) -> None:
        self._name, self._session, self._observer = name, session, observer
        self._inputs = _INPUT_NAMES[role](model.decoder_layers)
        self._outputs = _OUTPUT_NAMES[role](model.decoder_layers)
        self._check(role, model, precision)
        contract = {spec.name for spec in graph_outputs(role, model, precision)}
        found = [output.name for output in session.get_outputs()]
        self._extra = [n for n in found if n not in contract] if observer is not None else []
        self._run_options = onnxruntime.RunOptions()
        self._devices = [_CPU] * (len(self._outputs) + 1 + len(self._extra))

    def run(self, feeds: list[_OrtTensor], need_log_probs: bool) -> list[_OrtTensor]:
        """Feeds in the contract's order; gives the outputs, log_probs last where asked for."""
        vector = ort_c.OrtValueVector()
        for tensor in feeds:
            vector.push_back(tensor)
        names = [*self._outputs, LOG_PROBS] if need_log_probs else self._outputs
        fetches = ort_c.OrtValueVector()
        fetched = [*names, *self._extra]
        try:
            # Binding tensor by tensor by name costs a tenth of a small step; this is one call.
            self._session.run_with_ortvaluevector(
                self._run_options,
                self._inputs,
                vector,
                fetched,
                fetches,
                self._devices[: len(fetched)],
            )
        except Exception as error:  # ONNX Runtime's errors share no root
            raise BackendError(
                f"ONNX Runtime {onnxruntime.__version__} failed in {self._name} "
                f"({_first_line(error)}); if memory ran out, use smaller batches (--batch-tokens) "
                "or fewer beams"
            ) from error
        if self._observer is not None:
            for index, name in enumerate(self._extra, start=len(names)):
                self._observer(name, fetches[index].numpy())
        return [fetches[index] for index in range(len(names))]

    def _check(self, role: Role, model: ModelSpec, precision: Precision) -> None:
        have = {tensor.name: tensor.type for tensor in self._session.get_inputs()}
        have |= {tensor.name: tensor.type for tensor in self._session.get_outputs()}
        for spec in graph_inputs(role, model, precision) + graph_outputs(role, model, precision):
            expected = _ORT_TYPES[spec.dtype]
            if have.get(spec.name) != expected:
                raise BackendError(
                    f"{self._name} has {have.get(spec.name, 'nothing')} for {spec.name}, expected "
                    f"{expected}: it is no {role} graph in {precision} of this version; build the "
                    "bundle again"
                )


def _encoder_inputs(_num_layers: int) -> list[str]:
    return [SRC_IDS, SRC_MASK]


def _step_inputs(num_layers: int) -> list[str]:
    first = [TOKEN_IDS, POSITION, BEAM_INDICES, SRC_MASK, SUM_LOG_PROBS, EOS_BIAS]
    return [*first, *self_names(num_layers), *cross_names(num_layers)]


def _step_outputs(num_layers: int) -> list[str]:
    return [SCORES, CANDIDATE_IDS, PARENTS, *next_self_names(num_layers)]


_INPUT_NAMES: dict[Role, Callable[[int], list[str]]] = {
    "encoder": _encoder_inputs,
    "decoder_step": _step_inputs,
}
_OUTPUT_NAMES: dict[Role, Callable[[int], list[str]]] = {
    "encoder": cross_names,
    "decoder_step": _step_outputs,
}
_ORT_TYPES = {
    "int32": "tensor(int32)",
    "bool": "tensor(bool)",
    "float32": "tensor(float)",
    "float16": "tensor(float16)",
}
_CPU = ort_c.OrtDevice(ort_c.OrtDevice.cpu(), ort_c.OrtDevice.default_memory(), 0)


def _tensor(array: npt.NDArray[Any]) -> _OrtTensor:
    """The array as ONNX Runtime sees it: the same memory, which the caller must keep alive."""
    return ort_c.OrtValue.ortvalue_from_numpy(array, _CPU)


def _first_rows(sentences: int, beam_size: int) -> IntArray:
    """[B,1]: where beam 0 of each sentence lies among N rows."""
    return (np.arange(sentences, dtype=np.int32) * beam_size)[:, None]


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].removeprefix("[ONNXRuntimeError] : ")
