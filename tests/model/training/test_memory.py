"""A model too large to be trained is refused at once, and told what it would take."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.training_cli import small_corpus

from model.config import PRESETS, StackConfig
from model.errors import ConfigError
from model.training.memory import BYTES_A_WEIGHT, check_memory, count_weights, memory_of, read_limit
from model.training.settings import TrainingSettings
from model.training.train import train
from model.transformer import Transformer


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
@pytest.mark.parametrize("tying", ["all", "decoder", "none"])
@pytest.mark.parametrize("cross_score", ["scaled_dot", "additive"])
def test_weights_are_counted_as_a_model_has_them(positions, tying, cross_score) -> None:
    config = PRESETS["tiny"].config(
        200, positions=positions, tying=tying, cross_score=cross_score,
        encoder=StackConfig(num_layers=5, num_heads=4, ffn_dim=96),
        decoder=StackConfig(num_layers=3, num_heads=2, ffn_dim=64),
    )  # fmt: skip
    model = Transformer(config)
    trained = sum(parameter.numel() for parameter in model.parameters())
    assert count_weights(config) == (trained, sum(buffer.numel() for buffer in model.buffers()))


def test_what_fits_and_what_does_not() -> None:
    config = PRESETS["tiny"].config(200, positions="learned")
    needed = BYTES_A_WEIGHT * count_weights(config)[0]
    check_memory(config, needed)
    check_memory(config, None)
    with pytest.raises(
        ConfigError, match=r"needs at least 0\.0 GB to be trained, .* take fewer lay"
    ):
        check_memory(config, needed - 1)


def test_this_machine_has_memory(tmp_path: Path) -> None:
    memory = memory_of(torch.device("cpu"))
    assert memory is None or memory > 2**28
    limit = tmp_path / "memory.max"
    assert read_limit(limit) is None
    for text, found in (("max\n", None), ("536870912\n", 536870912)):
        limit.write_text(text)
        assert read_limit(limit) == found


def test_a_training_that_can_not_be_does_not_begin(tmp_path: Path) -> None:
    settings = TrainingSettings(preset="big", encoder_layers=9_999, vocab_size=400)
    with pytest.raises(ConfigError, match=r"a model of 126,\d+,\d+,\d+ weights needs at least 2,5"):
        train(*small_corpus(20, 5), settings, tmp_path / "out", quiet=True)
