"""INT8 on ONNX Runtime: every MatMul fused, and a row the same in whatever company it comes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from calibration.calibrate import calibrate
from calibration.fused import count_fused_int8
from calibration.quantize import QuantizeReport, quantize_graph
from runtime.graph_contract import INT8_DISABLED_OPTIMIZERS
from runtime.onnxruntime_backend import OnnxRuntimeBackend
from runtime.options import SearchOptions
from runtime.search import pad_sources, search


@dataclass(frozen=True, kw_only=True)
class Int8:
    encoder: Path
    step: Path
    reports: tuple[QuantizeReport, QuantizeReport]
    backend: OnnxRuntimeBackend


@pytest.fixture(scope="module")
def int8(graphs, tmp_path_factory: pytest.TempPathFactory):
    ranges = calibrate(
        graphs.encoder, graphs.step, graphs.model, graphs.special_ids, graphs.sources
    )
    directory = tmp_path_factory.mktemp("int8")
    encoder, step = directory / "encoder.int8.onnx", directory / "decoder_step.int8.onnx"
    reports = (
        quantize_graph(graphs.encoder, encoder, ranges),
        quantize_graph(graphs.step, step, ranges),
    )
    backend = OnnxRuntimeBackend(
        encoder, step, graphs.model, graphs.special_ids, precision="int8", threads=1
    )
    yield Int8(encoder=encoder, step=step, reports=reports, backend=backend)
    backend.close()


def test_every_weight_matmul_runs_in_int8(int8):
    encoder, step = int8.reports
    assert len(encoder.int8_matmuls) == 2 * 6 + 2 * 2  # layers; cross keys and values
    assert len(step.int8_matmuls) == 2 * 8
    assert step.float_matmuls == {"output": "it makes the logits"}
    for path, report in ((int8.encoder, encoder), (int8.step, step)):
        assert count_fused_int8(path) == len(report.int8_matmuls)


@pytest.mark.parametrize("still_on", INT8_DISABLED_OPTIMIZERS)
def test_with_either_optimizer_on_some_fall_back_to_float(int8, still_on):
    """Why every session of an INT8 graph turns them off. The encoder's MatMuls have three
    dimensions, so only the step's become Gemms."""
    disabled = [name for name in INT8_DISABLED_OPTIMIZERS if name != still_on]
    fused = count_fused_int8(int8.step, disabled_optimizers=disabled)
    assert fused < len(int8.reports[1].int8_matmuls)


def test_searches_are_bit_equal_alone_batched_and_shuffled(graphs, int8):
    options = SearchOptions(num_hypotheses=4)

    def run(sources):
        return search(int8.backend, sources, options, graphs.special_ids)

    together = run(graphs.sources)
    assert [run([source])[0] for source in graphs.sources] == together
    order = np.random.default_rng(1).permutation(len(graphs.sources))
    shuffled = run([graphs.sources[i] for i in order])
    assert [shuffled[place] for place in np.argsort(order)] == together


def test_log_probs_are_bit_equal_alone_and_padded(graphs, int8):
    def first_step(sources):
        shape = (len(sources), 1)
        state = int8.backend.begin(*pad_sources(sources, graphs.special_ids.pad), 1, 4)
        found = int8.backend.step(
            state,
            np.full(shape, graphs.special_ids.decoder_start, dtype=np.int32),
            np.zeros(shape, dtype=np.int32),
            np.zeros(shape, dtype=np.float32),
            ban_eos=True,
            need_log_probs=True,
        )
        return found.log_probs.copy()

    together = first_step(graphs.sources)
    alone = np.concatenate([first_step([source]) for source in graphs.sources])
    np.testing.assert_array_equal(together, alone)
    longest = max(graphs.sources, key=len)
    beside_the_longest = [first_step([source, longest])[:1] for source in graphs.sources]
    np.testing.assert_array_equal(together, np.concatenate(beside_the_longest))
