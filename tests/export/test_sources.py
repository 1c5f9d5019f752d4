"""What a build starts from, where something else stands in the demo's place."""

from __future__ import annotations

from pathlib import Path

import pytest

from export.sources import GivenFiles, from_embedded_corpus
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
