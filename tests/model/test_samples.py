from __future__ import annotations

from pathlib import Path

import pytest
from support.tiny_model import random_transformer
from support.tiny_tokenizer import tiny_tokenizer

from model.checkpoint import SAMPLES, load_checkpoint, save_checkpoint
from model.errors import CheckpointError
from model.samples import CALIBRATION_LINES, Samples


def save(path: Path, samples: Samples | None) -> None:
    save_checkpoint(
        path,
        model=random_transformer(),
        tokenizer_proto=tiny_tokenizer().model_proto,
        samples=samples,
    )


def test_they_are_spread_over_the_text() -> None:
    train = [(f"source {i}", f"target {i}") for i in range(2 * CALIBRATION_LINES)]
    samples = Samples.take(train, train[:3])
    assert len(samples.calibration) == CALIBRATION_LINES
    assert samples.calibration[:2] == ("source 0", "source 2")
    assert samples.valid == tuple(train[:3])


def test_a_checkpoint_carries_them(tmp_path: Path) -> None:
    samples = Samples(calibration=("in 3 days", "üñ 你"), valid=(("one", "eins"),))
    save(tmp_path / "c", samples)
    assert load_checkpoint(tmp_path / "c").samples == samples


def test_a_checkpoint_without_replaces_one_with(tmp_path: Path) -> None:
    save(tmp_path / "c", Samples(calibration=("one",), valid=()))
    save(tmp_path / "c", None)
    assert load_checkpoint(tmp_path / "c").samples is None


def test_altered_or_missing_samples(tmp_path: Path) -> None:
    save(tmp_path / "c", Samples(calibration=("one",), valid=()))
    (tmp_path / "c" / SAMPLES).write_text("{}")
    with pytest.raises(CheckpointError, match=r"samples\.json \(2 bytes\) is truncated or altered"):
        load_checkpoint(tmp_path / "c")
    (tmp_path / "c" / SAMPLES).unlink()
    with pytest.raises(CheckpointError, match=r"which manifest\.json lists: No such file"):
        load_checkpoint(tmp_path / "c")


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"calibration": [], "valid": [["a"]]}'])
def test_damaged_text(text: bytes) -> None:
    with pytest.raises(CheckpointError, match=r"samples.json is damaged \(.*; copy the checkpoint"):
        Samples.from_text(text)


def test_lone_surrogates_can_be_written(tmp_path: Path) -> None:
    samples = Samples.take([("a\ud83d", "b")], [("\udc80", "d\ud800")])
    save(tmp_path, samples)
    assert load_checkpoint(tmp_path).samples == Samples(
        calibration=("a\ufffd",), valid=(("\ufffd", "d\ufffd"),)
    )
