from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from calibration.statistics import DEFAULT_METHOD, DEFAULT_PERCENTILE
from export import bundling
from model.checkpoint import load_checkpoint
from model.errors import CheckpointError
from model.search_defaults import search_defaults, told, write_search_defaults
from model.translation import open_translator
from runtime.options import SearchOptions

CHOSEN = SearchOptions(beam_size=5, length_penalty=1.4)


def test_a_checkpoint_has_the_usual_options_until_told_otherwise(
    random_checkpoint: Path, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint"
    shutil.copytree(random_checkpoint, path)
    before = load_checkpoint(path)
    assert search_defaults(before) == SearchOptions()
    sha256 = write_search_defaults(path, CHOSEN)
    after = load_checkpoint(path)
    assert after.sha256 == sha256 != before.sha256
    assert search_defaults(after) == CHOSEN
    assert {**before.metadata, "search_defaults": told(CHOSEN)} == after.metadata
    assert (path / "model.safetensors").read_bytes() == (
        random_checkpoint / "model.safetensors"
    ).read_bytes()
    with open_translator(after) as translator:
        assert translator.defaults == CHOSEN


def test_a_bundle_takes_them_over(random_checkpoint: Path) -> None:
    checkpoint = load_checkpoint(random_checkpoint)
    recipe = bundling.BundleRecipe(method=DEFAULT_METHOD, percentile=DEFAULT_PERCENTILE)
    manifest = bundling._manifest(checkpoint, recipe, [])
    assert manifest.search_defaults == {"beam_size": 4, "length_penalty": 1.0}
    tuned = dataclasses.replace(checkpoint, metadata={"search_defaults": told(CHOSEN)})
    manifest = bundling._manifest(tuned, recipe, [])
    assert manifest.search_defaults == {"beam_size": 5, "length_penalty": 1.4}


def test_what_is_told_makes_the_same_options() -> None:
    options = SearchOptions(beam_size=5, patience=2.0, length_penalty_kind="gnmt")
    assert told(options) == {
        "beam_size": 5, "length_penalty": 1.0, "length_penalty_kind": "gnmt", "patience": 2.0,
    }  # fmt: skip
    assert SearchOptions.from_json(told(options)) == options


@pytest.mark.parametrize(
    "values", [{"beams": 4}, {"beam_size": 0}, 3, {"beam_size": []}, {"length_penalty": 10**400}]
)
def test_damaged_defaults(random_checkpoint: Path, values: object) -> None:
    checkpoint = dataclasses.replace(
        load_checkpoint(random_checkpoint), metadata={"search_defaults": values}
    )
    with pytest.raises(CheckpointError, match=r"search_defaults in the checkpoint's config.json"):
        search_defaults(checkpoint)
