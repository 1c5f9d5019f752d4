from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
from support import rank_jobs
from support.ranks import run_ranks

from model.distributed import ALONE, join_ranks
from model.errors import ConfigError


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
