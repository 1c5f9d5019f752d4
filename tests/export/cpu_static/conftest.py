"""The step in INT8 with its logits in INT8 too, which the small vocabulary of tests lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from support.bundles import Graphs
from support.static_graphs import quantize_all


@pytest.fixture(scope="session")
def int8_logits(random_graphs: Graphs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The decoder step of random_graphs. Tests must not change the file."""
    return quantize_all(random_graphs, tmp_path_factory.mktemp("int8-logits"))["decoder_step"]
