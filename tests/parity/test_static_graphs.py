"""The graphs for CPUs against the eager model and against the portable graphs: every step, every
shape of model, and rows that do not depend on their batch."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.bundles import Graphs, fp32_graphs
from support.model_shapes import ONE_LAYER, SHAPES
from support.static_graphs import open_static, write_static
from support.steps import assert_same_steps, some_sources
from support.tiny_model import random_transformer

from export.parity import check_parity
from runtime.manifest import Precision
from runtime.options import SearchOptions
from runtime.search import Hypothesis, search
from runtime.static_backend import StaticBackend

CONFIGS: dict[str, dict[str, Any]] = {
    **SHAPES,
    "dot": {"cross_score": "dot", "encoder": ONE_LAYER, "decoder": ONE_LAYER},
    "general": {"cross_score": "general", "encoder": ONE_LAYER, "decoder": ONE_LAYER},
    "concat": {"cross_score": "concat", "encoder": ONE_LAYER, "decoder": ONE_LAYER},
    "additive": {"cross_score": "additive", "encoder": ONE_LAYER, "decoder": ONE_LAYER},
}


@pytest.fixture(scope="module", params=["fp32", "int8"])
def trained(
    request: pytest.FixtureRequest,
    trained_graphs: Graphs,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Graphs, StaticBackend]:
    directory = tmp_path_factory.mktemp("trained-static")
    write_static(trained_graphs, directory, request.param)
    return trained_graphs, open_static(trained_graphs, directory, request.param)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        pytest.param(name, changes, marks=[] if place < 2 else [pytest.mark.slow], id=name)
        for place, (name, changes) in enumerate(CONFIGS.items())
    ],
)
def test_static_matches_eager_for_every_shape_of_model(
    name: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    graphs = fp32_graphs(random_transformer(seed=1, **changes), tmp_path / "portable")
    size = graphs.model.config.src_vocab_size
    write_static(graphs, tmp_path / "fp32", "fp32")
    backend = open_static(graphs, tmp_path / "fp32", "fp32")
    sources = some_sources(np.random.default_rng(0), [4, 1, 7], size)
    assert_same_steps(graphs.eager(), backend, steps=6, sources=sources)
    assert_same_steps(graphs.eager(), backend, steps=3, sources=sources[1:2])
    write_static(graphs, tmp_path / "int8", "int8")
    backend = open_static(graphs, tmp_path / "int8", "int8")
    options = SearchOptions(max_length=10)
    report = check_parity(graphs.eager(), backend, sources, graphs.special_ids, options)
    # Of random weights the model is not sure of anything: its words may be others.
    assert report.log_prob_mean <= 0.1


@pytest.mark.parametrize("lengths", [[5], [4, 1, 12, 7, 2]], ids=["alone", "batched"])
def test_static_matches_eager_every_step(lengths: list[int], tmp_path: Path) -> None:
    """T from 0 to 255, with beams that move and sentences that leave."""
    model = random_transformer(seed=4, max_target=256, encoder=ONE_LAYER, decoder=ONE_LAYER)
    graphs = fp32_graphs(model, tmp_path / "portable")
    write_static(graphs, tmp_path / "static", "fp32")
    backend = open_static(graphs, tmp_path / "static", "fp32")
    sources = some_sources(np.random.default_rng(2), lengths, 300)
    assert_same_steps(graphs.eager(), backend, steps=256, sources=sources)


def test_static_matches_eager_searches(trained: tuple[Graphs, StaticBackend]) -> None:
    graphs, backend = trained
    sources = some_sources(np.random.default_rng(5), [3, 8, 5, 11, 2, 6], 300)
    report = check_parity(graphs.eager(), backend, sources, graphs.special_ids, SearchOptions())
    assert report.passed, report.problems


def test_static_beam_1_has_a_graph_of_its_own_and_loads_it_when_it_is_used(
    trained_graphs: Graphs, tmp_path: Path
) -> None:
    """It is for one row: rows that it computes are rounded by row and block."""
    specs = write_static(trained_graphs, tmp_path, "int8")
    assert [spec.variant for spec in specs] == ["cpu_static", "cpu_static", "cpu_static_greedy"]
    backend: Any = open_static(trained_graphs, tmp_path, "int8")
    sources = some_sources(np.random.default_rng(6), [5, 8], 300)
    ids = trained_graphs.special_ids
    search(backend, sources, SearchOptions(beam_size=2, max_length=6), ids)
    assert backend._greedy is None
    search(backend, sources, SearchOptions(beam_size=1, max_length=6), ids)
    assert backend._greedy.name == "decoder_step.int8.cpu_static_greedy.onnx"


def in_batches(
    graphs: Graphs,
    backend: StaticBackend,
    sources: list[list[int]],
    options: SearchOptions,
    size: int,
) -> list[list[Hypothesis]]:
    batches = [sources[start : start + size] for start in range(0, len(sources), size)]
    return [found for b in batches for found in search(backend, b, options, graphs.special_ids)]


@pytest.mark.parametrize("beam_size", [1, 4])
def test_static_rows_are_the_same_in_any_batch(
    trained: tuple[Graphs, StaticBackend], beam_size: int
) -> None:
    """Bit for bit at batch 1, 8 and 32: under any padding, whichever sentences leave when."""
    graphs, backend = trained
    generator = np.random.default_rng(beam_size)
    lengths = [1, 2, 3, 5, 9, 15, 16, 17, 31, 33, 63, 65, 70, 81, 127, 129, 150, 255, 256]
    lengths += generator.integers(2, 40, 45).tolist()
    sources = some_sources(generator, generator.permutation(lengths).tolist(), 300)
    options = SearchOptions(beam_size=beam_size, max_length=24, num_hypotheses=beam_size)
    alone = in_batches(graphs, backend, sources, options, 1)
    for size in (8, 32):
        assert in_batches(graphs, backend, sources, options, size) == alone


def test_static_threads_do_not_change_a_row(
    trained: tuple[Graphs, StaticBackend], tmp_path: Path
) -> None:
    """Two threads of one call, and calls from two threads at once."""
    graphs, backend = trained
    precision: Precision = backend.capabilities.precision  # type: ignore[assignment]
    sources = some_sources(np.random.default_rng(3), [6, 20, 3, 9, 14, 2, 31, 8], 300)
    options = SearchOptions(max_length=24)
    expected = search(backend, sources, options, graphs.special_ids)
    write_static(graphs, tmp_path, precision)
    both = open_static(graphs, tmp_path, precision, threads=2)
    assert search(both, sources, options, graphs.special_ids) == expected
    found: dict[int, list[list[Hypothesis]]] = {}

    def run(place: int) -> None:
        for _ in range(3):
            found[place] = search(both, sources[place:], options, graphs.special_ids)

    threads = [threading.Thread(target=run, args=(place,)) for place in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {place: expected[place:] for place in range(3)}
    both.close()
