"""What a build starts from, where something else stands in the demo's place."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from export.build import BuildSettings
from export.sources import GivenFiles, _check_is_the_demos, from_embedded_corpus
from runtime.directory import aside_path
from runtime.errors import OptionError


@pytest.mark.parametrize("name", ["config.json", "training/state.json"])
@pytest.mark.parametrize("force", [False, True])
def test_a_checkpoint_of_the_users_own_is_not_trained_over(
    tmp_path: Path, name: str, force: bool
) -> None:
    file = tmp_path / "checkpoint" / name
    file.parent.mkdir(parents=True)
    file.write_text("hours of training")
    with pytest.raises(OptionError, match=r"is not the demo's, since .*corpus is missing; build"):
        from_embedded_corpus(tmp_path, "de", GivenFiles(), max_minutes=None, force=force)
    assert file.read_text() == "hours of training"
    assert not (tmp_path / "corpus").exists()


def test_a_corpus_that_a_kill_left_aside_is_the_demos(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "config.json").write_text("{")
    aside_path(tmp_path / "corpus").mkdir()
    _check_is_the_demos(tmp_path)
    assert (tmp_path / "corpus").is_dir()


@pytest.mark.parametrize("minutes", [0.0, -1.0, math.inf, math.nan])
def test_minutes_are_checked_before_a_corpus_is_made(tmp_path: Path, minutes: float) -> None:
    with pytest.raises(OptionError, match=f"--max-minutes is {minutes}; expected a number above 0"):
        BuildSettings(work_dir=tmp_path, max_minutes=minutes)
