"""One tiny model in all its forms, made once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NANO = "nano"


@pytest.fixture(scope="session")
def nano_preset() -> Iterator[str]:
    """A preset so small that its bundle is made in seconds."""
    config = pytest.importorskip("model.config")
    config.PRESETS[NANO] = config.Preset(
        num_encoder_layers=1,
        num_decoder_layers=1,
        d_model=16,
        ffn_dim=32,
        num_heads=2,
        dropout=0.1,
        vocab_size=200,
    )
    yield NANO
    del config.PRESETS[NANO]


@pytest.fixture(scope="session")
def prepared(nano_preset: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """benchmarks.peers.materials.Prepared of random weights; tests must not change it."""
    pytest.importorskip("ctranslate2")
    from benchmarks.peers.materials import prepare_random
    from benchmarks.peers.subjects import SUBJECTS

    directory: Path = tmp_path_factory.mktemp("peers")
    return prepare_random(nano_preset, directory, list(SUBJECTS))
