"""A training that is killed at random moments, as a whole process, ends like one that never was."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.training_cli import small_corpus, train_arguments

from model.redo import PENDING
from model.training.history import read_history
from model.training.settings import TrainingSettings

# Everything that a training can have going on: validations that decide when it ends, its best
# weights, the average of the last, curves.
SETTINGS = TrainingSettings(
    vocab_size=400,
    max_updates=48,
    warmup=4,
    batch_tokens=64,
    accumulation=2,
    save_every=3,
    validate_every=4,
    valid_lines=8,
    learning_rate=0.03,  # too high: a validation gets worse on the way, and patience ends
    patience=1,
    average=3,
    dropout=0.1,
    bpe_dropout=0.1,
)
KILLS = 5


def start(command: Sequence[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    """The training, from the moment at which it begins to make updates."""
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    told = ""
    while not told.startswith("training "):
        told = process.stderr.readline()
        assert told, "ended before its first update"
    return process


def kill(process: subprocess.Popen[str]) -> bool:
    """Whether it still ran."""
    process.kill()
    process.communicate()
    return process.returncode < 0


def writing(folder: Path) -> bool:
    """Whether a state is being written, or was when the writer was killed."""
    places = [*folder.glob(".writing-*"), folder / PENDING]
    return any((place / "state.safetensors").exists() for place in places)


def hashes(out: Path) -> dict[str, str]:
    """Of all files that hold something other than times."""
    names = [path.name for path in out.glob("[!.]*.*")]
    names += [f"training/{path.name}" for path in out.glob("training/*.safetensors")]
    return {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in sorted(names)}


def untimed_history(out: Path) -> list[dict[str, object]]:
    timed = {"time", "seconds", "tokens_per_second"}
    return [
        {name: value for name, value in record.items() if name not in timed}
        for record in read_history(out)
    ]


@pytest.mark.slow  # six starts of a process that imports PyTorch
def test_killed_at_five_moments_one_of_them_inside_a_save(tmp_path: Path) -> None:
    corpus, rng = small_corpus(), random.Random(4)
    environment = os.environ | {"OMP_NUM_THREADS": "2"}

    def command(out: Path) -> list[str]:
        arguments = train_arguments(corpus, SETTINGS, tmp_path, out)
        return [sys.executable, "-m", "model", *arguments, "--resume"]

    never = start(command(tmp_path / "never"), environment)
    begun = time.monotonic()
    never.communicate()
    assert never.returncode == 0
    seconds = time.monotonic() - begun

    out = tmp_path / "killed"
    inside = rng.randrange(KILLS)
    for moment in range(KILLS):
        killed = False
        while not killed:  # it came too late: once more
            process = start(command(out), environment)
            if moment == inside:
                while process.poll() is None and not writing(out / "training"):
                    time.sleep(0.001)
                killed = kill(process) and writing(out / "training")
            else:
                time.sleep(rng.uniform(0, seconds / KILLS))
                killed = kill(process)
    last = start(command(out), environment)
    last.communicate()
    assert last.returncode == 0
    assert hashes(out) == hashes(tmp_path / "never")
    assert untimed_history(out) == untimed_history(tmp_path / "never")
