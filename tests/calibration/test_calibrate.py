"""Ranges of real graphs: which rows count, and that batches change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from calibration.calibrate import calibrate, check_method, usable_sources
from calibration.errors import CalibrationError
from calibration.matmuls import find_weight_matmuls
from calibration.statistics import METHODS
from calibration.trajectories import add_outputs, collect_statistics
from runtime.errors import OptionError
from runtime.options import SearchOptions
from runtime.search import search

ENCODER_INPUT, STEP_INPUT = "encoder.embedding.add:0", "decoder.embedding.reshape:0"


def collect(graphs, sources=None, options=None, **settings: Any):
    return collect_statistics(
        graphs.encoder,
        graphs.step,
        graphs.model,
        graphs.special_ids,
        graphs.sources if sources is None else sources,
        options=options or SearchOptions(),
        **settings,
    )


def ranges(graphs, sources=None, **settings: Any):
    return calibrate(
        graphs.encoder,
        graphs.step,
        graphs.model,
        graphs.special_ids,
        graphs.sources if sources is None else sources,
        **settings,
    )


def test_every_matmul_input_has_a_bound(graphs):
    found = ranges(graphs)
    for role, path in (("encoder", graphs.encoder), ("decoder_step", graphs.step)):
        needed = {matmul.activation for matmul in find_weight_matmuls(onnx.load(path))}
        assert set(found.bounds[role]) == needed
        assert all(bound > 0 for bound in found.bounds[role].values())
    assert found.sentences == len(graphs.sources)
    assert found.search["beam_size"] == 4


def test_padding_is_not_counted(graphs):
    statistics = collect(graphs)["encoder"]
    tokens = sum(len(source) for source in graphs.sources)
    assert statistics[ENCODER_INPUT].count == tokens * graphs.width


def test_dead_beams_of_the_first_step_are_not_counted(graphs):
    statistics = collect(graphs, options=SearchOptions(max_length=1))["decoder_step"]
    assert statistics[STEP_INPUT].count == len(graphs.sources) * graphs.width


def test_all_steps_and_beams_are_counted_the_first_and_the_last_included(graphs):
    options = SearchOptions(min_length=5, max_length=5)
    statistics = collect(graphs, options=options)["decoder_step"]
    rows = len(graphs.sources) * (1 + 4 * 4)  # one hypothesis at first, then four
    assert statistics[STEP_INPUT].count == rows * graphs.width


def test_bound_is_the_largest_value_that_the_model_computes(graphs):
    torch = pytest.importorskip("torch")
    from support.tiny_model import random_transformer

    embedding = random_transformer().encoder.embedding
    with torch.inference_mode():
        largest = max(
            embedding(torch.tensor([ids]), torch.arange(len(ids))).abs().max().item()
            for ids in graphs.sources
        )
    found = ranges(graphs, method="minmax")
    assert found.bounds["encoder"][ENCODER_INPUT] == pytest.approx(largest, rel=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_batches_threads_and_order_change_nothing(graphs, method):
    whole = ranges(graphs, method=method)
    alone = ranges(graphs, method=method, batch_tokens=1, threads=1)
    assert whole.to_text() == alone.to_text()
    reverse = ranges(graphs, graphs.sources[::-1], method=method, batch_tokens=40)
    assert reverse.bounds == whole.bounds
    assert reverse.sources_sha256 != whole.sources_sha256


def test_watching_does_not_change_what_is_computed(graphs, tmp_path: Path):
    from runtime.onnxruntime_backend import OnnxRuntimeBackend

    found = []
    for copy in (False, True):
        paths = [graphs.encoder, graphs.step]
        if copy:
            paths = [tmp_path / path.name for path in paths]
            add_outputs(graphs.encoder, paths[0])
            add_outputs(graphs.step, paths[1])
        backend = OnnxRuntimeBackend(
            *paths,
            graphs.model,
            graphs.special_ids,
            precision="fp32",
            threads=1,
            observer=(lambda name, values: None) if copy else None,
        )
        found.append(search(backend, graphs.sources, SearchOptions(), graphs.special_ids))
        backend.close()
    assert found[0] == found[1]


def test_empty_sources_are_left_out_and_long_ones_cut(graphs):
    eos = graphs.special_ids.eos
    long = [*range(4, 14)] * 20 + [eos]
    usable = usable_sources([[eos], long, [], [5, eos]], graphs.model, graphs.special_ids)
    limit = graphs.model.max_source
    assert usable == [[*long[: limit - 1], eos], [5, eos]]


def test_refuses_to_calibrate_on_nothing(graphs):
    with pytest.raises(CalibrationError, match="needs sentences and found none"):
        ranges(graphs, [])
    with pytest.raises(CalibrationError, match="found 2 that are all empty"):
        ranges(graphs, [[], [graphs.special_ids.eos]])
    with pytest.raises(CalibrationError, match="no sentences to calibrate on"):
        collect(graphs, [])


def test_refuses_activations_that_are_not_finite(graphs, tmp_path: Path):
    model = onnx.load(graphs.encoder)
    name = "encoder.layers.1.ffn.in_proj.weight"
    weight = next(t for t in model.graph.initializer if t.name == name)
    values = numpy_helper.to_array(weight).copy()
    values[0, 0] = np.inf
    weight.CopyFrom(numpy_helper.from_array(values, name))
    onnx.save(model, tmp_path / "encoder.onnx")
    with pytest.raises(CalibrationError, match=r"'encoder\.layers\.1\.ffn\.relu:0' became inf"):
        calibrate(
            tmp_path / "encoder.onnx",
            graphs.step,
            graphs.model,
            graphs.special_ids,
            [[5, 6, graphs.special_ids.eos]] * 3,
        )


def test_refuses_a_graph_of_which_a_tensor_is_never_computed(graphs, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("calibration.trajectories._Watcher.observe", lambda *_: None)
    with pytest.raises(CalibrationError, match=r"of the encoder graph was never computed"):
        ranges(graphs)


def test_refuses_methods_and_percentiles_that_there_are_not():
    with pytest.raises(OptionError, match="method is 'entropy'; expected one of minmax"):
        check_method("entropy", 99.0)
    for percentile in (0.9999, 100.1, float("nan")):
        with pytest.raises(OptionError, match=r"percentile is .*; expected a number above 50"):
            check_method("percentile", percentile)


def test_refuses_a_graph_that_is_not_there(graphs, tmp_path: Path):
    with pytest.raises(CalibrationError, match="can't be read"):
        calibrate(
            tmp_path / "missing.onnx",
            graphs.step,
            graphs.model,
            graphs.special_ids,
            graphs.sources,
        )
