from __future__ import annotations

import json

import pytest

from benchmarks.random_weights import RandomRun, compare_random
from benchmarks.table import render_random
from model.errors import ConfigError

pytestmark = pytest.mark.slow


def test_random_weights_take_the_steps_that_were_asked_for() -> None:
    run = RandomRun(preset="tiny", sentences=2, source_length=5, steps=4, beam_size=2, rounds=1)
    record = json.loads(json.dumps(compare_random(run)))
    names = [subject["name"] for subject in record["subjects"]]
    assert names == [
        "PyTorch eager",
        "ONNX Runtime FP32",
        "ONNX Runtime INT8",
        "ONNX Runtime INT8, logits float",
    ]
    assert {subject["steps"] for subject in record["subjects"]} == {4}
    sizes = [subject["size_bytes"] for subject in record["subjects"]]
    assert sizes[2] < sizes[1]
    text = render_random(record)
    assert "preset tiny with random weights: 2 sources of 5 ids, 4 forced steps" in text
    assert text.count("times as fast as ONNX Runtime FP32") == 2
    assert max(len(line) for line in text.splitlines()) <= 110


def test_unknown_preset_is_an_error() -> None:
    with pytest.raises(ConfigError, match="unknown preset 'huge'; expected one of"):
        compare_random(RandomRun(preset="huge"))
