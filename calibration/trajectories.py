"""What decoding really feeds the MatMuls: beam searches over real sentences, every step watched.

The graphs are copied with the inputs of their weight MatMuls as further outputs; the searches run
through the same backend and the same loop as in use. Rows that are padding, and beams that hold no
hypothesis, are not counted.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper
from tqdm import tqdm

from calibration.errors import CalibrationError
from calibration.graph_file import load_graph, save_graph
from calibration.matmuls import find_weight_matmuls
from calibration.statistics import TensorStatistics
from runtime.backend import (
    Backend,
    BoolArray,
    Candidates,
    Capabilities,
    DecoderState,
    FloatArray,
    IntArray,
)
from runtime.batching import plan_batches
from runtime.candidates import UNREACHABLE
from runtime.manifest import ModelSpec, Role, SpecialTokenIds
from runtime.onnxruntime_backend import OnnxRuntimeBackend
from runtime.options import SearchOptions
from runtime.search import search

log = logging.getLogger(__name__)

BATCH_TOKENS = 512  # padded source tokens of one batch

Statistics = Mapping[Role, Mapping[str, TensorStatistics]]


def collect_statistics(
    encoder_path: Path,
    step_path: Path,
    model: ModelSpec,
    special_ids: SpecialTokenIds,
    sources: Sequence[Sequence[int]],
    *,
    options: SearchOptions,
    batch_tokens: int = BATCH_TOKENS,
    threads: int | None = None,
) -> Statistics:
    """Searches the sources and gives role -> tensor -> what its values looked like.

    sources: token ids, EOS included. The result does not depend on batch_tokens or threads. Raises
    CalibrationError when there are no sources, or a tensor is not finite or was never computed.
    """
    if not sources:
        raise CalibrationError(
            "there are no sentences to calibrate on; expected some that are not empty"
        )
    paths: dict[Role, Path] = {"encoder": encoder_path, "decoder_step": step_path}
    with tempfile.TemporaryDirectory(prefix="leanseq-calibration-") as directory:
        watched = {role: Path(directory) / f"{role}.onnx" for role in paths}
        tensors = {role: add_outputs(path, watched[role]) for role, path in paths.items()}
        statistics: dict[Role, dict[str, TensorStatistics]] = {
            role: {name: TensorStatistics(name) for name in names}
            for role, names in tensors.items()
        }
        with _watched_backend(watched, model, special_ids, statistics, threads) as backend:
            _search_all(backend, sources, options, special_ids, batch_tokens)
    for role, of_role in statistics.items():
        missed = sorted(name for name, tensor in of_role.items() if not tensor.count)
        if missed:
            raise CalibrationError(
                f"tensor {missed[0]!r} of the {role} graph was never computed while decoding "
                f"{len(sources)} sentences; expected every MatMul to be used at every step"
            )
    return statistics


def add_outputs(path: Path, out_path: Path) -> tuple[str, ...]:
    """Copies a graph with the inputs of its weight MatMuls as outputs; gives their names."""
    graph_model = load_graph(path)
    names = tuple(dict.fromkeys(m.activation for m in find_weight_matmuls(graph_model)))
    have = {output.name for output in graph_model.graph.output}
    graph_model.graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        for name in names
        if name not in have
    )
    save_graph(graph_model, out_path)
    return names


def _search_all(
    backend: Backend,
    sources: Sequence[Sequence[int]],
    options: SearchOptions,
    special_ids: SpecialTokenIds,
    batch_tokens: int,
) -> None:
    batches = plan_batches([len(source) for source in sources], batch_tokens)
    quiet = None if log.isEnabledFor(logging.INFO) else True  # None: no bar outside a terminal
    with tqdm(total=len(sources), desc="calibration", unit="sentence", disable=quiet) as bar:
        for batch in batches:
            search(backend, [sources[i] for i in batch], options, special_ids)
            bar.update(len(batch))


@contextmanager
def _watched_backend(
    paths: Mapping[Role, Path],
    model: ModelSpec,
    special_ids: SpecialTokenIds,
    statistics: Statistics,
    threads: int | None,
) -> Iterator[Backend]:
    watcher = _Watcher(statistics)
    backend = OnnxRuntimeBackend(
        paths["encoder"],
        paths["decoder_step"],
        model,
        special_ids,
        precision="fp32",
        threads=threads,
        observer=watcher.observe,
    )
    try:
        yield _WatchedBackend(backend, watcher)
    finally:
        backend.close()


class _Watcher:
    """Counts the rows that are real: `role` and `rows` say which, from call to call."""

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics
        self.role: Role = "encoder"
        self.rows: BoolArray = np.ones(0, dtype=np.bool_)

    def observe(self, name: str, values: npt.NDArray[np.float32]) -> None:
        """values [..., width], whose leading sizes multiply to the number of rows."""
        statistics = self._statistics[self.role].get(name)
        if statistics is not None:
            statistics.add(values.reshape(self.rows.size, -1)[self.rows])


class _WatchedBackend:
    """Tells the watcher, before each call, which graph runs and which rows are real."""

    def __init__(self, backend: Backend, watcher: _Watcher) -> None:
        self._backend, self._watcher = backend, watcher

    @property
    def capabilities(self) -> Capabilities:
        return self._backend.capabilities

    def begin(
        self, src_ids: IntArray, src_mask: BoolArray, beam_size: int, max_length: int
    ) -> DecoderState:
        self._watcher.role, self._watcher.rows = "encoder", src_mask.reshape(-1)
        return self._backend.begin(src_ids, src_mask, beam_size, max_length)

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
        self._watcher.role = "decoder_step"
        self._watcher.rows = (sum_log_probs > UNREACHABLE).reshape(-1)
        return self._backend.step(
            state,
            token_ids,
            beam_indices,
            sum_log_probs,
            ban_eos=ban_eos,
            need_log_probs=need_log_probs,
        )

    def keep(self, state: DecoderState, sentences: IntArray) -> DecoderState:
        return self._backend.keep(state, sentences)

    def close(self) -> None:
        self._backend.close()
