from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from support import rank_jobs
from support.ranks import run_ranks, start_ranks
from support.training_cli import Pairs, small_corpus, train_arguments

from model.errors import ConfigError
from model.training.distributed import ALONE, join_ranks
from model.training.progress import Progress
from model.training.settings import TrainingSettings
from model.training.state import has_state, load_state
from model.training.train import train


def test_ranks_get_what_one_process_has(tmp_path: Path) -> None:
    codes, texts = zip(*run_ranks(3, rank_jobs.exchange, (), tmp_path), strict=True)
    said = "TrainingError: the 3 processes of this training have different words"
    assert said in "".join(texts)
    assert codes == (1, 1, 1)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("one", "error: planted"),
        ("all", "error: planted"),
        ("killed", "error: another process of this training has ended, perhaps killed or out of"),
    ],
)
def test_one_rank_tells_of_an_error(tmp_path: Path, how: str, said: str) -> None:
    (first, first_said), (second, second_said) = run_ranks(2, rank_jobs.fail, (how,), tmp_path)
    assert first == 1
    assert second == (-signal.SIGKILL if how == "killed" else 1)
    assert (first_said + second_said).count("error: ") == 1
    assert said in first_said + second_said


def test_an_order_of_batches_matters() -> None:
    """Else the test of `add_up` would not tell."""
    forth, back = (
        ALONE.add_up(map(rank_jobs.made_gradient, order), 7, rank_jobs.LENGTH)
        for order in (range(7), reversed(range(7)))
    )
    assert not torch.equal(forth, back)
    torch.testing.assert_close(forth, back)


def test_a_process_without_torchrun_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with join_ranks() as ranks:
        assert ranks == ALONE
        assert ranks.share((1, 2)) == (1, 2)
        ranks.require_same("words", "any")


@pytest.mark.parametrize("size", ["2", "two"])
def test_ranks_that_cannot_find_each_other(monkeypatch: pytest.MonkeyPatch, size: str) -> None:
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", size)
    with (
        pytest.raises(ConfigError, match=rf"this is one of {size} processes .* start them with"),
        join_ranks(),
    ):
        pass


# An update has 3 batches and an epoch 22, so that its last update has one, for one process.
SETTINGS = TrainingSettings(
    vocab_size=320,
    max_updates=18,
    max_minutes=1000.0,
    warmup=4,
    learning_rate=0.3,  # too high: a validation gets worse, and patience ends
    patience=1,
    batch_tokens=128,
    accumulation=3,
    save_every=4,
    validate_every=3,
    valid_lines=8,
    average=2,
    dropout=0.1,
    r_drop=2.0,
    r_drop_from=0.5,
)


@pytest.fixture(scope="module")
def corpus() -> tuple[Pairs, Pairs]:
    return small_corpus(train=120)


@pytest.fixture(scope="module")
def alone(corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The training of one process."""
    out: Path = tmp_path_factory.mktemp("alone") / "out"
    train(*corpus, SETTINGS, out, quiet=True, threads=1)
    return out


def check_equal(out: Path, expected: Path) -> None:
    """Bit for bit: weights, averages, Adam's moments, and the sum of all losses."""
    for name in ("manifest.json", "model.safetensors", "training/state.safetensors"):
        assert (out / name).read_bytes() == (expected / name).read_bytes(), name
    positions = [load_state(path).position for path in (out, expected)]
    assert positions[0].window_nll == positions[1].window_nll
    assert replace(positions[0], seconds=0.0) == replace(positions[1], seconds=0.0)


@pytest.mark.parametrize(("size", "planted"), [(2, "fast clock"), (3, "")])
def test_several_processes_train_what_one_trains(
    corpus, alone: Path, tmp_path: Path, size: int, planted: str
) -> None:
    """Also where the clock of another rank than the first is wrong."""
    arguments = train_arguments(corpus, SETTINGS, tmp_path, tmp_path / "out")
    ended = run_ranks(size, rank_jobs.train, (arguments, planted), tmp_path)
    assert [code for code, _ in ended] == [0] * size
    check_equal(tmp_path / "out", alone)
    (_, first), *others = ended
    assert "update 6, epoch 1: validation loss" in first
    assert first.count('"updates": ') == 1
    assert ("2 processes share 3 batches an update" in first) == (size == 2)
    assert all(not text for _, text in others)


def test_another_number_of_processes_goes_on(corpus, alone: Path, tmp_path: Path) -> None:
    """Ctrl-C after update 4, of two processes; one goes on."""
    out = tmp_path / "out"
    arguments = train_arguments(corpus, SETTINGS, tmp_path, out)
    ranks = start_ranks(2, rank_jobs.train, (arguments, ""), tmp_path)
    while not has_state(out) and all(rank.process.is_alive() for rank in ranks):
        time.sleep(0.01)
    for rank in ranks:
        os.kill(rank.process.pid, signal.SIGINT)
    (first, text), (second, nothing) = (rank.finish() for rank in ranks)
    assert (first, second) == (130, 130)
    assert text.count("stopped; --resume goes on after update") == 1
    assert "error" not in text + nothing
    train(*corpus, SETTINGS, out, resume=True, quiet=True, threads=1)
    check_equal(out, alone)


def test_several_go_on_where_one_was_killed(
    corpus, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(_: Progress, done: int, *__: float) -> None:
        if done == 6:
            raise Killed

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(Progress, "update", killed)
        with pytest.raises(Killed):
            train(*corpus, SETTINGS, out, quiet=True, threads=1)
    arguments = [*train_arguments(corpus, SETTINGS, tmp_path, out), "--resume"]
    ended = run_ranks(2, rank_jobs.train, (arguments, ""), tmp_path)
    assert [code for code, _ in ended] == [0, 0]
    assert "going on after update 4" in ended[0][1]
    check_equal(out, alone)


@pytest.mark.parametrize(
    ("more", "planted", "said", "codes"),
    [
        ([], "an error", "internal error: RuntimeError: planted", (1, 1)),
        ([], "other weights", "error: the 2 processes of this training have different w", (1, 1)),
        (["--train-tsv", "missing.tsv"], "", "error: missing.tsv does not exist", (1, 1)),
        (["--accumulation", "1"], "", "error: 2 processes share the batches of an upda", (2, 2)),
        (["--warmup", "0"], "", "error: warmup is 0; expected", (2, 2)),
    ],
)
def test_an_error_is_told_once_and_ends_all(
    corpus, tmp_path: Path, more: list[str], planted: str, said: str, codes: tuple[int, int]
) -> None:
    arguments = train_arguments(corpus, SETTINGS, tmp_path, tmp_path / "out") + more
    ended = run_ranks(2, rank_jobs.train, (arguments, planted), tmp_path)
    text = "".join(text for _, text in ended)
    assert said in text
    assert text.count("error: ") == 1
    assert tuple(code for code, _ in ended) == codes


@pytest.mark.slow  # torchrun takes its time to start
def test_torchrun_starts_again_what_was_killed(corpus, alone: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launcher += ["--nproc-per-node", "2", "--max-restarts", "1", "-m", "model"]
    arguments = [*train_arguments(corpus, SETTINGS, tmp_path, out), "--resume"]
    with subprocess.Popen(
        [*launcher, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while process.poll() is None and not has_state(out):
            time.sleep(0.01)
        second = [
            child
            for child in psutil.Process(process.pid).children(recursive=True)
            if child.environ().get("RANK") == "1"
        ]
        second[0].kill()
        stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    assert "going on after update" in stderr
    assert json.loads(stdout)["updates"] == load_state(alone).position.updates
    check_equal(out, alone)
