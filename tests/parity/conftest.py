"""Models and their graphs, made once a session."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from support.bundles import Graphs, add_int8, fp32_graphs
from support.tiny_model import trained_corpus

from model.checkpoint import load_checkpoint
from runtime.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tokenizer(trained_checkpoint: Path) -> Tokenizer:
    return Tokenizer(load_checkpoint(trained_checkpoint).tokenizer_proto)


@pytest.fixture(scope="session")
def trained_graphs(
    trained_checkpoint: Path, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> Graphs:
    """The trained model of the session: FP32, and INT8 calibrated on phrases of its own split."""
    model = load_checkpoint(trained_checkpoint).model
    graphs = fp32_graphs(model, tmp_path_factory.mktemp("trained-graphs"))
    lines = [source for source, _ in trained_corpus().pairs("calibration")]
    add_int8(graphs, [tokenizer.encode_source(line) for line in lines])
    return graphs
