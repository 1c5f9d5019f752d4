from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from support.event_files import open_events, points

import model.training.curves
from model.errors import CheckpointError
from model.training.history import History, read_history
from model.training.window import Window

SAMPLE: dict[str, Any] = {"source": "a | b", "translation": "c\\d", "references": ["e", "f"]}


def write(path: Path, *, updates: int = 0, to: int, tensorboard: bool = True) -> None:
    """Lines of every kind, after `updates` updates, until `to`."""
    history = History(path, updates=updates, tensorboard=tensorboard)
    for update in range(updates + 1, to + 1):
        values = {"loss": 1 / update, "learning_rate": 0.5, "gradient_norm": 2.0, "epoch": 0.25}
        history.add("training", update, 1.5, tokens_per_second=100.0, **values)
        values = {"valid_loss": 3.0, "valid_bleu": 10.0 + update, "valid_bleu_lc": 12.0}
        history.add("validation", update, 2.0, samples=[SAMPLE], **values)
    history.add("end", to, 2.5, chosen="last weights", candidates=[])
    history.close()


def test_every_curve_is_there(tmp_path: Path) -> None:
    write(tmp_path, to=2)
    events = open_events(tmp_path)
    assert set(events.Tags()["scalars"]) == set(model.training.curves.SCALARS.values())
    assert points(tmp_path, "training/loss") == [(1, 1.0), (2, 0.5)]
    assert points(tmp_path, "validation/BLEU") == [(1, 11.0), (2, 12.0)]
    (first, _) = events.Tensors("samples/text_summary")
    table = first.tensor_proto.string_val[0].decode().split("\n")
    assert table == [
        "| source | translation | references |",
        "| --- | --- | --- |",
        "| a \\| b | c\\\\d | e / f |",
    ]
    assert first.wall_time == pytest.approx(read_history(tmp_path)[1]["time"])


def test_going_on_drops_what_came_after_the_save(tmp_path: Path) -> None:
    write(tmp_path, to=4)
    write(tmp_path, updates=2, to=3)
    steps = [(record["kind"], record["updates"]) for record in read_history(tmp_path)]
    assert steps == [
        *[(kind, update) for update in (1, 2, 3) for kind in ("training", "validation")],
        ("end", 3),
    ]
    for name in ("training/loss", "validation/loss"):
        assert [step for step, _ in points(tmp_path, name)] == [1, 2, 3]
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1


def test_curves_can_be_asked_for_later(tmp_path: Path) -> None:
    write(tmp_path, to=2, tensorboard=False)
    assert not (tmp_path / "tensorboard").exists()
    write(tmp_path, updates=2, to=3)
    assert [step for step, _ in points(tmp_path, "training/loss")] == [1, 2, 3]
    write(tmp_path, updates=3, to=4, tensorboard=False)
    assert not list((tmp_path / "tensorboard").iterdir())


def test_without_tensorboard_there_is_a_history_only(tmp_path: Path, monkeypatch, caplog) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with caplog.at_level("INFO"):
        write(tmp_path, to=1)
    assert "no curves for TensorBoard, which is not installed: pip install" in caplog.text
    assert len(read_history(tmp_path)) == 3


def test_curves_that_cannot_be_written_do_not_stop_a_training(tmp_path: Path, caplog) -> None:
    (tmp_path / "tensorboard").write_text("in the way")
    write(tmp_path, to=1)
    assert "no curves for TensorBoard, since " in caplog.text
    assert "tensorboard cannot be written: " in caplog.text
    assert len(read_history(tmp_path)) == 3


def test_a_line_that_was_cut_short_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, to=2, tensorboard=False)
    path = tmp_path / "training" / "history.jsonl"
    content = path.read_bytes()
    path.write_bytes(content[:-9] + b"\xff\n[3]\n{}\n")
    assert [record["updates"] for record in read_history(tmp_path)] == [1, 1, 2, 2]


@pytest.mark.parametrize(
    "change",
    [
        {"updates": "2"},
        {"updates": 1.5},
        {"updates": 10**30},
        {"kind": ["training"]},
        {"time": None},
        {"loss": "low"},
        {"loss": 10**400},
        {"samples": [{}]},
        {"samples": 3},
        {"samples": [{**SAMPLE, "references": [4]}]},
    ],
)
def test_a_line_that_is_no_record_is_left_out(tmp_path: Path, change: dict[str, Any]) -> None:
    write(tmp_path, to=1, tensorboard=False)
    path = tmp_path / "training" / "history.jsonl"
    record = {"kind": "validation", "updates": 1, "time": 2.0, "loss": 3, "samples": [SAMPLE]}
    for line in (record, record | change):
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    write(tmp_path, updates=1, to=2)
    assert read_history(tmp_path)[2] == record
    assert [r["updates"] for r in read_history(tmp_path)] == [1, 1, 1, 2, 2, 2]


needs_full_disk = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="Linux alone has a disk that is always full"
)


@needs_full_disk
def test_curves_end_where_the_disk_is_full(tmp_path: Path, monkeypatch, caplog) -> None:
    (tmp_path / "tensorboard").mkdir()
    monkeypatch.setattr(model.training.curves, "_FILE", "full")
    (tmp_path / "tensorboard" / "full").symlink_to("/dev/full")
    write(tmp_path, to=2)
    assert caplog.text.count("full cannot be written: No space left on device") == 1
    assert len(read_history(tmp_path)) == 5


@needs_full_disk
def test_curves_that_can_no_longer_be_written(tmp_path: Path, caplog) -> None:
    history = History(tmp_path, updates=0, tensorboard=True)
    assert history._curves is not None
    with Path("/dev/full").open("wb") as full:
        os.dup2(full.fileno(), history._curves._records._writer.fileno())
    for update in (1, 2):
        history.add("validation", update, 1.0, valid_bleu=3.0, samples=[])
        history.flush()
    history.close()
    assert caplog.text.count("cannot be written: No space left on device") == 1
    assert [record["updates"] for record in read_history(tmp_path)] == [1, 2]


def test_curves_in_a_directory_whose_name_is_not_utf8(tmp_path: Path) -> None:
    write(tmp_path / "caf\udce9", to=1)
    assert list((tmp_path / "caf\udce9" / "tensorboard").glob("events.out.tfevents.*"))


def test_a_history_that_cannot_be_used(tmp_path: Path) -> None:
    history = History(tmp_path, updates=0, tensorboard=False)
    path = tmp_path / "training" / "history.jsonl"
    path.unlink()
    path.mkdir()
    with pytest.raises(CheckpointError, match=r"cannot write to .*history\.jsonl: Is a directory"):
        history.add("training", 1, 1.0)
    with pytest.raises(
        CheckpointError, match=r"cannot be read \(Is a directory\); make it readable"
    ):
        read_history(tmp_path)


def test_means_of_a_window() -> None:
    window = Window()
    window.add(nll=2.0, tokens=100, norm=1.0, rate=0.25, seconds=0.5)
    window.add(nll=1.0, tokens=300, norm=2.0, rate=0.125, seconds=0.5)
    assert window.means() == {
        "loss": 1.25, "learning_rate": 0.125, "gradient_norm": 1.5, "tokens_per_second": 400.0,
    }  # fmt: skip


def test_lines_are_json_of_their_own(tmp_path: Path) -> None:
    write(tmp_path, to=1, tensorboard=False)
    lines = (tmp_path / "training" / "history.jsonl").read_text("utf-8").splitlines()
    records: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert [record["kind"] for record in records] == ["training", "validation", "end"]
    assert records[0]["seconds"] == 1.5
    assert records[2]["chosen"] == "last weights"
