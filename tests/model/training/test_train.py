from __future__ import annotations

import errno
import itertools
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from filelock import FileLock
from safetensors.torch import save_file
from support.event_files import points

import model.training.run
import model.training.train
from model import redo
from model.checkpoint import load_checkpoint, model_weights
from model.corpora import phrases
from model.diagnosis import stall
from model.errors import CheckpointError, ConfigError, DataError, TrainingError
from model.training import state as training_state
from model.training.best import Score
from model.training.history import read_history
from model.training.progress import Progress
from model.training.schedule import learning_rate
from model.training.settings import TrainingSettings
from model.training.train import train
from model.training.validation import Validation, Validator
from model.transformer import Transformer

SETTINGS = TrainingSettings(
    vocab_size=400,
    max_updates=10,
    warmup=4,
    batch_tokens=64,
    accumulation=2,
    save_every=3,
    validate_every=4,
    average=2,
    dropout=0.1,
    r_drop=2.0,
    r_drop_from=0.5,
    bpe_dropout=0.1,
    valid_lines=8,
)


@pytest.fixture(scope="module")
def pairs() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    corpus = phrases.make("de", 1500, valid=50, calibration=50, test=50)
    return corpus.pairs("train"), corpus.pairs("valid")[:20]


@pytest.fixture(scope="module")
def uninterrupted(pairs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("training") / "out"
    train(*pairs, SETTINGS, path, quiet=True)
    return path


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours catches it."""


def kill_after(monkeypatch: pytest.MonkeyPatch, updates: int) -> None:
    shown = Progress.update

    def update(self: Progress, done: int, *values: float) -> None:
        if done == updates:
            raise Killed
        shown(self, done, *values)

    monkeypatch.setattr(Progress, "update", update)


@pytest.mark.parametrize("killed_after", [[2], [4], [9, 5, 10]])
def test_killed_and_resumed_gives_equal_weights(
    pairs, uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_after
) -> None:
    for updates in killed_after:
        with monkeypatch.context() as patch:
            kill_after(patch, updates)
            try:
                train(*pairs, SETTINGS, tmp_path, resume=True, quiet=True)
            except Killed:
                continue
    train(*pairs, SETTINGS, tmp_path, resume=True, quiet=True)
    for name in ("model.safetensors", "tokenizer.model", "samples.json", "manifest.json"):
        assert (tmp_path / name).read_bytes() == (uninterrupted / name).read_bytes(), name


def test_a_kill_in_the_middle_of_a_save_goes_on(
    pairs, uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = training_state.save_file

    def killed(tensors, path: Path, **told: object) -> None:
        if path.name == "state.safetensors" and int(tensors["adam.0.step"]) == 6:
            raise Killed
        saved(tensors, path, **told)

    with monkeypatch.context() as patch:
        patch.setattr(training_state, "save_file", killed)
        with pytest.raises(Killed):
            train(*pairs, SETTINGS, tmp_path, quiet=True)
    train(*pairs, SETTINGS, tmp_path, resume=True, quiet=True)
    assert load_checkpoint(tmp_path).sha256 == load_checkpoint(uninterrupted).sha256


def test_a_real_kill(pairs, uninterrupted: Path, tmp_path: Path) -> None:
    """The whole process, through the command line, killed once the first state is there."""
    for split, lines in zip(("train", "valid"), pairs, strict=True):
        text = "".join(f"{source}\t{target}\n" for source, target in lines)
        (tmp_path / f"{split}.tsv").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "model", "train", "--out", str(tmp_path / "out"), "--resume"]
    for split in ("train", "valid"):
        command += [f"--{split}-tsv", str(tmp_path / f"{split}.tsv")]
    for name, value in SETTINGS.to_json().items():
        if value is not None:
            command += [f"--{name.replace('_', '-')}", str(value)]
    state = tmp_path / "out" / "training" / "state.json"
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not state.exists():
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "out" / "manifest.json").exists()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "going on after update" in done.stderr
    assert '"updates": 10' in done.stdout
    name = "model.safetensors"
    assert (tmp_path / "out" / name).read_bytes() == (uninterrupted / name).read_bytes()


def test_ctrl_c_says_where_it_goes_on(pairs, tmp_path: Path, monkeypatch, caplog) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(model.training.run.Progress, "update", interrupt)
    with caplog.at_level(logging.INFO), pytest.raises(KeyboardInterrupt):
        train(*pairs, SETTINGS, tmp_path, quiet=True)
    assert "stopped; --resume goes on after update 0" in caplog.text


@pytest.mark.parametrize("stopped_after", [[1], [4], [5, 7], [10]])
def test_ctrl_c_saves_the_update_that_is_under_way(
    pairs, uninterrupted: Path, tmp_path: Path, monkeypatch, caplog, stopped_after: list[int]
) -> None:
    """And the end is that of a training that never stopped: the bytes, and the history."""
    shown = Progress.update
    for updates in stopped_after:

        def update(self: Progress, done: int, *values: float, at: int = updates) -> None:
            shown(self, done, *values)
            if done == at:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)  # the same, passed on by a wrapper

        with monkeypatch.context() as patch, caplog.at_level(logging.INFO):
            patch.setattr(Progress, "update", update)
            with pytest.raises(KeyboardInterrupt):
                train(*pairs, SETTINGS, tmp_path, resume=True, quiet=True)
        assert f"stopped; --resume goes on after update {updates}" in caplog.text
        assert training_state.load_state(tmp_path).position.updates == updates
    train(*pairs, SETTINGS, tmp_path, resume=True, quiet=True)
    for name in ("model.safetensors", "tokenizer.model", "samples.json", "manifest.json"):
        assert (tmp_path / name).read_bytes() == (uninterrupted / name).read_bytes(), name
    snapshots = [
        {file.name: file.read_bytes() for file in (path / "training").glob("snapshot-*")}
        for path in (tmp_path, uninterrupted)
    ]
    assert snapshots[0] == snapshots[1]
    assert history_of(tmp_path) == history_of(uninterrupted)


def test_ctrl_c_and_a_kill_later(pairs, uninterrupted: Path, tmp_path: Path, monkeypatch) -> None:
    shown = Progress.update

    def update(self: Progress, done: int, *values: float) -> None:
        shown(self, done, *values)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "update", update)
        for _ in range(4):  # one update each
            with pytest.raises(KeyboardInterrupt):
                train(*pairs, SETTINGS, tmp_path, resume=True, quiet=True)
    with monkeypatch.context() as patch:
        kill_after(patch, 6)
        with pytest.raises(Killed):
            train(*pairs, SETTINGS, tmp_path, resume=True, quiet=True)
    assert training_state.load_state(tmp_path).position.updates == 4
    result = train(*pairs, SETTINGS, tmp_path, resume=True, quiet=True)
    assert result.sha256 == load_checkpoint(uninterrupted).sha256
    assert history_of(tmp_path) == history_of(uninterrupted)


def test_what_a_checkpoint_says_about_its_training(pairs, uninterrupted: Path) -> None:
    loaded = load_checkpoint(uninterrupted)
    assert loaded.metadata["updates"] == 10
    assert loaded.metadata["settings"] == SETTINGS.to_json()
    assert loaded.metadata["valid_loss"] < 6.5
    assert loaded.metadata["valid_lines"] == 8
    assert "tok:13a" in loaded.metadata["valid_bleu_signature"]
    assert loaded.samples is not None
    assert loaded.samples.valid == tuple(pairs[1])


def scripted(monkeypatch: pytest.MonkeyPatch, bleus: list[float]) -> None:
    """Validations find these BLEUs, in turn, and losses that fall."""
    left = list(bleus)

    def validate(self: Validator, model: Transformer) -> Validation:
        bleu = left.pop(0)
        score = Score(loss=5.0 + len(left) / 100, bleu=bleu, bleu_lc=bleu)
        return Validation(score=score, signature="scripted", samples=())

    monkeypatch.setattr(Validator, "validate", validate)


@pytest.mark.parametrize(
    ("bleus", "chosen", "averaged", "updates"),
    [
        # Validated after updates 4 and 8; then the average, then the last weights.
        ([1.0, 2.0, 4.0, 3.0], "average of the last 2 saves", 2, [9, 10]),
        ([1.0, 2.0, 3.0, 4.0], "last weights", 1, [10]),
        ([4.0, 2.0, 3.0, 3.0], "best validated weights (update 4)", 1, [4]),
        ([1.0, 4.0, 3.0, 3.0], "best validated weights (update 8)", 1, [8]),
        ([1.0, 3.0, 3.0, 3.0], "last weights", 1, [10]),  # the lowest loss among equals
    ],
)
def test_the_weights_of_the_best_validation_bleu_are_written(
    pairs, tmp_path: Path, monkeypatch, caplog, bleus, chosen: str, averaged: int, updates
) -> None:
    scripted(monkeypatch, bleus)
    with caplog.at_level(logging.INFO):
        result = train(*pairs, SETTINGS, tmp_path, quiet=True)
    assert (result.chosen, result.averaged) == (chosen, averaged)
    assert result.valid_bleu == max(bleus)
    assert f"{chosen}: BLEU {max(bleus):.2f}" in caplog.text
    assert caplog.text.count("<- written") == 1
    scored = [line for line in caplog.messages if line.startswith("scoring candidate ")]
    assert scored == [
        "scoring candidate 1 of 3: average of the last 2 saves ...",
        "scoring candidate 2 of 3: last weights ...",
    ]
    loaded = load_checkpoint(tmp_path)
    mean = training_state.average_snapshots(tmp_path, updates)
    for name, tensor in model_weights(loaded.model).items():
        assert torch.equal(tensor, mean[name])
    told = {one["name"]: one for one in loaded.metadata["candidates"]}
    assert told[chosen]["updates"] == updates
    assert loaded.metadata["chosen"] == chosen
    assert {one["valid_bleu"] for one in told.values()} == set(bleus[2:]) | {max(bleus[:2])}


def test_the_best_weights_survive_kills(pairs, tmp_path: Path, monkeypatch) -> None:
    """Found after update 4, a kill before that is saved, and one after; written in the end."""
    for killed_after, bleus in ((5, [4.0]), (9, [4.0, 2.0])):
        with monkeypatch.context() as patch:
            scripted(patch, bleus)
            kill_after(patch, killed_after)
            with pytest.raises(Killed):
                train(*pairs, SETTINGS, tmp_path, resume=True, quiet=True)
    scripted(monkeypatch, [2.0, 3.0, 3.0])
    result = train(*pairs, SETTINGS, tmp_path, resume=True, quiet=True)
    assert result.chosen == "best validated weights (update 4)"
    names = {path.name for path in (tmp_path / "training").glob("snapshot-*")}
    assert names == {f"snapshot-{updates}.safetensors" for updates in (4, 9, 10)}


PATIENT = replace(SETTINGS, max_updates=100, validate_every=1, patience=2, warmup=1)


@pytest.mark.parametrize(
    ("cooldown", "bleus", "begins", "ends"),
    [
        (0.0, [1.0, 3.0, 2.0, 3.5, 3.0, 2.0], 6, 6),
        (0.5, [1.0, 3.0, 3.0, 2.5, 1.0, *[1.0] * 4], 5, 10),  # equal BLEU, lower loss: better
        (0.75, [3.0, 2.0, 1.0, *[1.0] * 8], 3, 12),
    ],
)
def test_patience_begins_the_cool_down(
    pairs, tmp_path: Path, monkeypatch, caplog, cooldown: float, bleus, begins: int, ends: int
) -> None:
    scripted(monkeypatch, [*bleus, 0.5, 0.5])  # the average and the last weights at the end
    with caplog.at_level(logging.INFO):
        result = train(*pairs, replace(PATIENT, cooldown=cooldown), tmp_path, quiet=True)
    assert result.updates == ends
    assert caplog.text.count("no better BLEU in 2 validations: the cool-down begins") == 1
    assert f"the training ends after update {ends}" in caplog.text
    told = caplog.text.index("the cool-down begins")
    assert caplog.text.rindex(f"update {begins}, epoch", 0, told) > 0
    assert f"update {begins + 1}, epoch" not in caplog.text[:told]
    last = [r for r in read_history(tmp_path) if r["kind"] == "training"][-1]
    assert last["learning_rate"] == learning_rate(
        ends, (ends - 1) / ends, peak=PATIENT.peak_learning_rate, warmup=1, cooldown=cooldown
    )


def test_patience_that_is_given_up_later(pairs, tmp_path: Path, monkeypatch) -> None:
    scripted(monkeypatch, [3.0, 2.0, 1.0, *[1.0] * 100])
    settings = replace(PATIENT, cooldown=0.0)
    assert train(*pairs, settings, tmp_path, quiet=True).updates == 3
    settings = replace(settings, patience=None, max_updates=6)
    assert train(*pairs, settings, tmp_path, resume=True, quiet=True).updates == 6


def history_of(path: Path) -> list[dict[str, object]]:
    """What does not depend on the clock."""
    clocks = ("time", "seconds", "tokens_per_second")
    return [{k: v for k, v in r.items() if k not in clocks} for r in read_history(path)]


def test_history_and_curves_after_kills_are_those_of_a_run_never_killed(
    pairs, uninterrupted: Path, tmp_path: Path, monkeypatch
) -> None:
    for updates in (5, 5, 9):
        with monkeypatch.context() as patch:
            kill_after(patch, updates)
            with pytest.raises(Killed):
                train(*pairs, SETTINGS, tmp_path, resume=True, quiet=True)
    with (tmp_path / "training" / "history.jsonl").open("a") as file:
        file.write('{"kind": "training", "upd')  # a kill in the middle of a line
    train(*pairs, SETTINGS, tmp_path, resume=True, quiet=True)
    assert history_of(tmp_path) == history_of(uninterrupted)
    steps = [(r["kind"], r["updates"]) for r in read_history(tmp_path)]
    assert steps == [
        ("training", 3), ("validation", 4), ("training", 6), ("validation", 8), ("training", 9),
        ("training", 10), ("end", 10),
    ]  # fmt: skip
    assert points(tmp_path, "training/loss") == points(uninterrupted, "training/loss")
    assert [step for step, _ in points(tmp_path, "validation/BLEU")] == [4, 8, 10]


def test_no_curves_where_they_are_not_wanted(pairs, tmp_path: Path) -> None:
    settings = replace(SETTINGS, max_updates=1)
    train(*pairs, settings, tmp_path, quiet=True, tensorboard=False)
    assert not (tmp_path / "tensorboard").exists()
    assert [r["kind"] for r in read_history(tmp_path)] == ["training", "end"]


def test_what_is_told_about_a_checkpoint(pairs, tmp_path: Path) -> None:
    train(*pairs, replace(SETTINGS, max_updates=1), tmp_path, quiet=True, about={"recipe": "mine"})
    assert load_checkpoint(tmp_path).metadata["recipe"] == "mine"


def test_samples_and_losses_are_shown(pairs, tmp_path: Path, caplog) -> None:
    with caplog.at_level(logging.INFO):
        train(*pairs, replace(SETTINGS, max_updates=5), tmp_path, quiet=True)
    assert "update 4, epoch 1: validation loss" in caplog.text
    assert caplog.text.count("(expected: ") == 3
    assert "training done: 5 updates, 0 epochs" in caplog.text


@pytest.mark.parametrize("updates", [3, 4])
def test_an_end_within_the_warm_up_is_told(pairs, tmp_path: Path, caplog, updates: int) -> None:
    train(*pairs, replace(SETTINGS, max_updates=updates, warmup=4), tmp_path, quiet=True)
    told = "ended in its warm-up, after 3 of 4 updates" in caplog.text
    assert told == (updates == 3)


def test_minutes_end_a_training_too(pairs, tmp_path: Path, monkeypatch) -> None:
    seconds = itertools.count()  # one more each time the clock is looked at
    clock = SimpleNamespace(monotonic=lambda: float(next(seconds)))
    monkeypatch.setattr(model.training.run, "time", clock)
    settings = replace(SETTINGS, max_updates=100_000, max_minutes=0.5, validate_every=1000)
    result = train(*pairs, settings, tmp_path, quiet=True)
    assert 2 < result.updates < 30
    assert 30 <= result.seconds < 50


def test_accumulated_batches_are_one_update(pairs, tmp_path: Path) -> None:
    settings = replace(SETTINGS, max_updates=2, accumulation=3, average=1)
    train(*pairs, settings, tmp_path, quiet=True)
    assert training_state.load_state(tmp_path).position.batch == 6


def test_the_random_state_of_the_caller_is_left_alone(pairs, tmp_path: Path) -> None:
    torch.manual_seed(5)
    train(*pairs, replace(SETTINGS, max_updates=1), tmp_path, quiet=True)
    got = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(got, torch.rand(1))


def test_more_updates_can_be_asked_for_later(pairs, tmp_path: Path) -> None:
    train(*pairs, replace(SETTINGS, max_updates=2), tmp_path, quiet=True)
    result = train(*pairs, replace(SETTINGS, max_updates=4), tmp_path, resume=True, quiet=True)
    assert result.updates == 4


def test_a_second_stage_has_another_schedule_and_loss(pairs, tmp_path: Path, caplog) -> None:
    """Once the first has made all its updates; and it is what its settings say."""
    first = replace(SETTINGS, max_updates=2)
    second = replace(first, max_updates=4, learning_rate=1e-3, r_drop=1.0, cooldown=0.5, average=1)
    train(*pairs, first, tmp_path / "ended", quiet=True)
    with pytest.raises(ConfigError, match=r"other settings \(learning_rate: None, now 0.001; "):
        train(*pairs, replace(second, max_updates=2), tmp_path / "ended", resume=True, quiet=True)
    with pytest.raises(ConfigError, match=r"other settings \(norm: 'pre', now 'post'\)"):
        train(*pairs, replace(second, norm="post"), tmp_path / "ended", resume=True, quiet=True)
    with caplog.at_level(logging.INFO):
        found = train(*pairs, second, tmp_path / "ended", resume=True, quiet=True)
    assert found.updates == 4
    assert "with other settings: max_updates: 2, now 4; learning_rate: None, now 0.001" in (
        caplog.text
    )
    settings = load_checkpoint(tmp_path / "ended").metadata["settings"]
    assert (settings["r_drop"], settings["learning_rate"]) == (1.0, 1e-3)
    train(*pairs, replace(first, max_updates=4), tmp_path / "plain", quiet=True)
    assert load_checkpoint(tmp_path / "ended").sha256 != load_checkpoint(tmp_path / "plain").sha256


FIRST = replace(SETTINGS, max_updates=4)
THEN = (
    replace(FIRST, max_updates=6),
    replace(FIRST, max_updates=9, learning_rate=1e-3, r_drop=1.0, cooldown=0.2, save_every=2),
)


@pytest.fixture(scope="module")
def three_stages(pairs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each by a call of its own."""
    path: Path = tmp_path_factory.mktemp("stages") / "out"
    train(*pairs, FIRST, path, quiet=True)
    for settings in THEN:
        train(*pairs, settings, path, resume=True, quiet=True)
    return path


@pytest.mark.parametrize("killed_after", [[], [2, 5], [4, 6, 9]])
def test_stages_in_one_call_are_those_of_several(
    pairs, three_stages: Path, tmp_path: Path, monkeypatch, caplog, killed_after
) -> None:
    """Killed or not: within a stage, before its checkpoint is written, at the end of all."""
    for updates in killed_after:
        with monkeypatch.context() as patch:
            kill_after(patch, updates)
            with pytest.raises(Killed):
                train(*pairs, FIRST, tmp_path, then=THEN, resume=True, quiet=True)
    with caplog.at_level(logging.INFO):
        result = train(*pairs, FIRST, tmp_path, then=THEN, resume=True, quiet=True)
    assert result.updates == 9
    assert "stage 3 of 3" in caplog.text
    for name in ("model.safetensors", "tokenizer.model", "samples.json", "manifest.json"):
        assert (tmp_path / name).read_bytes() == (three_stages / name).read_bytes(), name


def test_ctrl_c_after_the_last_update_of_a_stage(pairs, tmp_path: Path, monkeypatch) -> None:
    """The next stage averages what it would have without: the save at the end of this one too."""
    shown, then = Progress.update, [replace(FIRST, max_updates=5)]

    def update(self: Progress, done: int, *values: float) -> None:
        shown(self, done, *values)
        if done == FIRST.max_updates:
            signal.raise_signal(signal.SIGINT)

    plain, stopped = tmp_path / "plain", tmp_path / "stopped"
    train(*pairs, FIRST, plain, then=then, quiet=True)
    with monkeypatch.context() as patch:
        patch.setattr(Progress, "update", update)
        with pytest.raises(KeyboardInterrupt):
            train(*pairs, FIRST, stopped, then=then, quiet=True)
    train(*pairs, FIRST, stopped, then=then, resume=True, quiet=True)
    snapshots = [training_state.load_state(path).position.snapshots for path in (plain, stopped)]
    assert snapshots == [[4, 5], [4, 5]]
    assert load_checkpoint(stopped).sha256 == load_checkpoint(plain).sha256


def test_a_training_that_ended_elsewhere_is_no_stage(pairs, tmp_path: Path) -> None:
    """Of 5 updates, where the first stage has 4: the second was not trained as it says."""
    train(*pairs, replace(FIRST, max_updates=5), tmp_path, quiet=True)
    second = replace(FIRST, max_updates=6, r_drop=1.0)
    with pytest.raises(ConfigError, match=r"other settings \(r_drop: 2.0, now 1.0\)"):
        train(*pairs, FIRST, tmp_path, then=[second], resume=True, quiet=True)


def test_a_stage_that_cannot_follow_is_refused_before_anything(pairs, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="stage 2 can't follow the one before: max_updates is 4"):
        train(*pairs, FIRST, tmp_path / "out", then=[FIRST], quiet=True)
    assert not (tmp_path / "out").exists()


def test_what_is_there_is_not_overwritten_unasked(pairs, uninterrupted: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds a training already; go on with --resume"):
        train(*pairs, SETTINGS, uninterrupted, quiet=True)


def test_a_checkpoint_from_elsewhere_is_not_overwritten(
    pairs, random_checkpoint: Path, tmp_path: Path
) -> None:
    for file in random_checkpoint.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    for resume in (True, False):
        with pytest.raises(ConfigError, match=r"holds a checkpoint already; give another --out"):
            train(*pairs, SETTINGS, tmp_path, resume=resume, quiet=True)
    train(*pairs, replace(SETTINGS, max_updates=1), tmp_path, overwrite=True, quiet=True)
    assert load_checkpoint(tmp_path).metadata["updates"] == 1


def test_force_starts_anew(pairs, uninterrupted: Path, tmp_path: Path) -> None:
    train(*pairs, replace(SETTINGS, max_updates=2, seed=9), tmp_path, quiet=True)
    train(*pairs, SETTINGS, tmp_path, overwrite=True, quiet=True)
    assert load_checkpoint(tmp_path).sha256 == load_checkpoint(uninterrupted).sha256


def test_force_that_fails_leaves_what_was_there(pairs, uninterrupted: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(uninterrupted, out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(DataError, match="vocab_size 30000 is too large"):
        train(*pairs, replace(SETTINGS, vocab_size=30_000), out, overwrite=True, quiet=True)
    short, long = [*pairs[0], ("a", "b")], [("a b c", "d e f")]
    settings = replace(SETTINGS, max_target=4, max_source=4)
    with pytest.raises(DataError, match="no pair of the validation corpus can be used"):
        train(short, long, settings, out, overwrite=True, quiet=True)
    assert {path: path.read_bytes() for path in before} == before
    with pytest.raises(ConfigError, match=r"--resume goes on .* and --force replaces it; give one"):
        train(*pairs, SETTINGS, out, resume=True, overwrite=True, quiet=True)


def test_resuming_needs_the_same_settings_and_corpus(pairs, uninterrupted: Path) -> None:
    with pytest.raises(ConfigError, match=r"other settings \(learning_rate: None, now 0.1\)"):
        train(*pairs, replace(SETTINGS, learning_rate=0.1), uninterrupted, resume=True, quiet=True)
    with pytest.raises(ConfigError, match="the corpus: other lines"):
        train(pairs[0], pairs[0][:5], SETTINGS, uninterrupted, resume=True, quiet=True)


def test_two_trainings_into_one_place(pairs, tmp_path: Path) -> None:
    with (
        FileLock(str(tmp_path / ".training.lock")),
        pytest.raises(TrainingError, match="another training is writing to"),
    ):
        train(*pairs, SETTINGS, tmp_path, quiet=True)


def test_a_place_that_cannot_be_written(pairs, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot write to .*file/out"):
        train(*pairs, SETTINGS, tmp_path / "file" / "out", quiet=True)


def test_a_place_whose_name_is_not_utf8(pairs, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"caf\\udce9' is not UTF-8; give another --out"):
        train(*pairs, SETTINGS, tmp_path / "caf\udce9", quiet=True)
    assert not list(tmp_path.iterdir())


def test_a_damaged_state(pairs, tmp_path: Path) -> None:
    train(*pairs, replace(SETTINGS, max_updates=1), tmp_path, quiet=True)
    path = tmp_path / "training" / "state.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"the training state in .* is damaged"):
        train(*pairs, replace(SETTINGS, max_updates=1), tmp_path, resume=True, quiet=True)
    path = tmp_path / "training" / "state.json"
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 7'))
    with pytest.raises(CheckpointError, match="has schema 7, expected 1"):
        train(*pairs, replace(SETTINGS, max_updates=1), tmp_path, resume=True, quiet=True)


def test_a_flipped_bit_of_a_state_is_found(pairs, uninterrupted: Path, tmp_path: Path) -> None:
    shutil.copytree(uninterrupted / "training", tmp_path / "training")
    flip(tmp_path / "training" / "state.safetensors", -1000)
    with pytest.raises(CheckpointError, match=r"damaged \(state.safetensors is not what was writ"):
        train(*pairs, SETTINGS, tmp_path, resume=True, quiet=True)


def test_a_state_without_hashes_goes_on(pairs, uninterrupted: Path, tmp_path: Path) -> None:
    shutil.copytree(uninterrupted / "training", tmp_path / "training")
    path = tmp_path / "training" / "state.json"
    values = json.loads(path.read_text())
    del values["sha256"]
    path.write_text(json.dumps(values))
    result = train(*pairs, SETTINGS, tmp_path, resume=True, quiet=True)
    assert result.sha256 == load_checkpoint(uninterrupted).sha256


@pytest.mark.parametrize("file", ["state.safetensors", "tokenizer.model"])
def test_a_state_that_may_not_be_read_is_not_called_damaged(
    pairs, uninterrupted: Path, tmp_path: Path, file: str
) -> None:
    shutil.copytree(uninterrupted / "training", tmp_path / "training")
    (tmp_path / "training" / file).unlink()
    (tmp_path / "training" / file).mkdir()
    with pytest.raises(
        CheckpointError, match=rf"{file} cannot be read \(Is a directory\); make it a file that "
    ):
        train(*pairs, SETTINGS, tmp_path, resume=True, quiet=True)


def test_a_new_training_where_there_is_none_to_go_on_with(pairs, tmp_path: Path, caplog) -> None:
    with caplog.at_level(logging.INFO):
        train(*pairs, replace(SETTINGS, max_updates=1), tmp_path, resume=True, quiet=True)
    assert f"{tmp_path} holds no training to go on with: a new one begins" in caplog.text


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("state.json", '"updates": 1', '"updates": "x"'),
        ("state.json", '"updates": 1', '"updates": -1'),
        ("state.json", '"last_window": null', '"last_window": NaN'),
        ("state.json", '"last_window": null', '"last_window": "x"'),
        ("state.json", '"best": null', '"best": {"updates": 1, "score": {}}'),
        ("state.json", '"best": null', '"best": 3'),
        ("state.json", '"norm": 0.0', '"norm": "x"'),
        ("state.json", '"norm": 0.0', '"mean": 0.0'),
        ("state.json", '"window": {', '"window": 3, "other": {'),
        ("state.json", '"ends_at": null', '"ends_at": 0.5'),
        ("state.json", '"last_window": null', f'"last_window": {10**400}'),
        ("state.json", '"updates": 1', f'"updates": {10**400}'),
        ("state.json", '"r_drop": 2.0', f'"r_drop": {10**400}'),
        ("state.json", '"sha256": {', '"sha256": 3, "other": {'),
        ("tokenizer.model", None, "x"),
    ],
)
def test_an_edited_state(pairs, tmp_path: Path, file: str, before: str | None, after: str) -> None:
    train(*pairs, replace(SETTINGS, max_updates=1), tmp_path, quiet=True)
    path = tmp_path / "training" / file
    path.write_text(after if before is None else path.read_text().replace(before, after))
    with pytest.raises(CheckpointError, match=r"the training state in .* is damaged"):
        train(*pairs, replace(SETTINGS, max_updates=2), tmp_path, resume=True, quiet=True)


def test_a_bundle_is_not_overwritten(pairs, tmp_path: Path) -> None:
    for name in ("manifest.json", "tokenizer.model", "encoder.fp32.onnx"):
        (tmp_path / name).write_text("of a bundle")
    with pytest.raises(
        ConfigError, match=r"holds tokenizer.model, manifest.json of something else"
    ):
        train(*pairs, SETTINGS, tmp_path, quiet=True)
    assert (tmp_path / "manifest.json").read_text() == "of a bundle"


def test_a_state_of_other_shapes(pairs, tmp_path: Path) -> None:
    train(*pairs, replace(SETTINGS, max_updates=1), tmp_path, quiet=True)
    path = tmp_path / "training" / "state.json"
    path.write_text(path.read_text().replace('"preset": "tiny"', '"preset": "small"'))
    settings = replace(SETTINGS, max_updates=1, preset="small")
    with pytest.raises(CheckpointError, match="does not fit its settings"):
        train(*pairs, settings, tmp_path, resume=True, quiet=True)


def test_a_missing_snapshot_costs_its_candidate_only(
    pairs, uninterrupted: Path, tmp_path: Path, caplog
) -> None:
    out = tmp_path / "out"
    shutil.copytree(uninterrupted, out)
    for updates, text in ((9, None), (8, "cut short")):  # of the average, and the best validated
        path = out / "training" / f"snapshot-{updates}.safetensors"
        path.unlink()
        if text is not None:
            path.write_text(text)
    result = train(*pairs, SETTINGS, out, resume=True, quiet=True)
    assert result.chosen == "last weights"
    for name in ("average of the last 2 saves", "best validated weights (update 8)"):
        assert f"{name}: left out, since {out}" in caplog.text
    (told,) = load_checkpoint(out).metadata["candidates"]
    assert told["updates"] == [10]
    (out / "training" / "snapshot-10.safetensors").unlink()
    with pytest.raises(
        CheckpointError, match=r"snapshot-10.safetensors cannot be read .*; bring it back and "
    ):
        train(*pairs, SETTINGS, out, resume=True, quiet=True)


@pytest.mark.parametrize("place", [-1000, 100])  # among the weights, and among their names
def test_a_flipped_bit_of_a_snapshot_is_found(
    pairs, uninterrupted: Path, tmp_path: Path, caplog, place: int
) -> None:
    out = tmp_path / "out"
    shutil.copytree(uninterrupted, out)
    flip(out / "training" / "snapshot-9.safetensors", place)
    result = train(*pairs, SETTINGS, out, resume=True, quiet=True)
    assert result.chosen != "average of the last 2 saves"
    assert f"average of the last 2 saves: left out, since {out}" in caplog.text
    flip(out / "training" / "snapshot-10.safetensors", place)
    with pytest.raises(
        CheckpointError,
        match=r"10.safetensors cannot be read \((its weights are not what was written|.*)\); bring",
    ):
        train(*pairs, SETTINGS, out, resume=True, quiet=True)


def test_a_flipped_bit_among_weights_is_told_as_such(uninterrupted: Path, tmp_path: Path) -> None:
    shutil.copytree(uninterrupted / "training", tmp_path / "training")
    before = training_state.average_snapshots(tmp_path, [9])
    flip(tmp_path / "training" / "snapshot-9.safetensors", -1000)
    with pytest.raises(CheckpointError, match=r"read \(its weights are not what was written\); br"):
        training_state.average_snapshots(tmp_path, [9])
    flip(tmp_path / "training" / "snapshot-9.safetensors", -1000)
    after = training_state.average_snapshots(tmp_path, [9])
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_snapshot_of_an_earlier_version_has_no_hash(tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    weights = {"w": torch.tensor([1.0, 2.0])}
    save_file(weights, tmp_path / "training" / "snapshot-3.safetensors")
    assert torch.equal(training_state.average_snapshots(tmp_path, [3])["w"], weights["w"])


def flip(path: Path, place: int) -> None:
    """A bit of a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"precision": "fp32"}, r"(?s)not finite at update 2 .*\nProbably the learning rate"),
        ({"precision": "bf16"}, r"(?s)not finite at update 2 .*, bf16, .*\nProbably the learning"),
        ({"clip_norm": 0.0}, "gradients are not clipped: set --clip-norm 1"),
    ],
)
def test_nan_stops_with_its_likely_cause(pairs, tmp_path: Path, changes, advice: str) -> None:
    settings = replace(SETTINGS, learning_rate=1e38, warmup=1, **changes)
    with pytest.raises(TrainingError, match=advice):
        train(*pairs, settings, tmp_path, quiet=True)


def test_a_loss_that_stands_still_stops(pairs, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(stall, "STALL_UPDATES", 4)
    settings = replace(SETTINGS, learning_rate=1e-9, bpe_dropout=0.0)
    with pytest.raises(
        TrainingError, match=r"the loss stands still: .* learning rate \(1e-09\) is too low"
    ):
        train(*pairs, settings, tmp_path, quiet=True)


def test_a_loss_that_falls_does_not_stop(pairs, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(stall, "STALL_UPDATES", 4)
    assert train(*pairs, SETTINGS, tmp_path, quiet=True).updates == 10


def test_a_training_that_can_not_begin_leaves_nothing(pairs, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kept").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    for out in (tmp_path / "new" / "newer", tmp_path / "mine"):
        with pytest.raises(DataError, match="vocab_size 30000 is too large"):
            train(*pairs, replace(SETTINGS, vocab_size=30_000), out, quiet=True)
        with pytest.raises(DataError, match="no pair of the validation corpus can be used"):
            train(pairs[0], [("", "")], SETTINGS, out, quiet=True)
        with pytest.raises(ConfigError, match="weights needs at least"):
            train(*pairs, replace(SETTINGS, preset="big", encoder_layers=9999), out, quiet=True)
        with monkeypatch.context() as patch:
            patch.setattr(redo, "_flush", full_disk)
            with pytest.raises(CheckpointError, match="cannot write to"):
                train(*pairs, SETTINGS, out, quiet=True)
        assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot write to .*file/out"):
        train(*pairs, SETTINGS, tmp_path / "file" / "out", quiet=True)
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "file"])


def full_disk(path: Path) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_others_put_there_meanwhile_stays(pairs, tmp_path: Path, monkeypatch) -> None:
    out = tmp_path / "out"

    def fails(*_: object, **__: object) -> None:
        (out / "theirs").write_text("theirs")
        raise DataError("no")

    monkeypatch.setattr(model.training.train, "Run", fails)
    with pytest.raises(DataError, match="no"):
        train(*pairs, SETTINGS, out, quiet=True)
    assert [path.name for path in out.iterdir()] == ["theirs"]
