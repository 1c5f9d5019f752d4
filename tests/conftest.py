"""Fixtures that tests of several packages share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def random_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of random weights, tiny: 2+2 layers, d 32. Tests must not change it."""
    tiny_model = pytest.importorskip("support.tiny_model")  # absent torch: nothing to test with
    path: Path = tmp_path_factory.mktemp("random") / "checkpoint"
    return tiny_model.write_random_checkpoint(path)


@pytest.fixture(scope="session")
def trained_checkpoint() -> Path:
    """A tiny checkpoint that translates most phrases right. Tests must not change it.

    The first use on a machine trains it, in less than a minute.
    """
    tiny_model = pytest.importorskip("support.tiny_model")
    path: Path = tiny_model.write_trained_checkpoint()
    return path


@pytest.fixture(scope="session")
def random_graphs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """support.bundles.Graphs of 2+2 layers, d 32, random weights: all four precisions.

    Tests must not change the files.
    """
    bundles = pytest.importorskip("support.bundles")
    tiny_model = pytest.importorskip("support.tiny_model")
    graphs = bundles.fp32_graphs(
        tiny_model.random_transformer(), tmp_path_factory.mktemp("random-graphs")
    )
    bundles.add_int8(graphs, [[5, 9, 30, 3], [77, 3], [8, 8, 60, 61, 62, 200, 3], [40, 41, 3]])
    bundles.add_half(graphs, "fp32", "fp16")
    bundles.add_half(graphs, "int8", "int8_fp16")
    return graphs
