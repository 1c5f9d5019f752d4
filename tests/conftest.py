"""Fixtures that tests of several packages share."""

from __future__ import annotations

from pathlib import Path

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
