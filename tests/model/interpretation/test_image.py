from __future__ import annotations

import dataclasses
import logging
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.image import imread

from model.interpretation.heatmap import Heatmap, Map, Selection, make_heatmap
from model.interpretation.image import write_image
from runtime.errors import MissingExtraError, OptionError


@pytest.fixture(scope="module")
def heatmap(random_checkpoint: Path) -> Heatmap:
    return make_heatmap(random_checkpoint, "in 12 days", "été 99")


def relabelled(heatmap: Heatmap, *, rows: list[str]) -> Heatmap:
    """The average cross-attention with other rows."""
    shown = heatmap.maps["cross", "words"]
    renamed = dataclasses.replace(shown, rows=(*rows, *shown.rows[len(rows) :]))
    return dataclasses.replace(heatmap, maps={("cross", "subwords"): renamed})


def test_cells_stand_where_their_rows_and_columns_do(heatmap: Heatmap, tmp_path: Path) -> None:
    weights = np.array([[0.0, 1.0], [0.75, 0.25]], np.float32)
    shown = Map(rows=("a", "b"), columns=("c", "d"), weights=weights[None, None])
    planted = dataclasses.replace(heatmap, maps={("cross", "subwords"): shown})
    write_image(planted, tmp_path / "map.png")
    pixels = imread(tmp_path / "map.png")[:, :, :3]
    (upper_left, upper_right), (lower_left, lower_right) = (
        [middle_of(pixels, colormaps["Blues"](float(weight))[:3]) for weight in row]
        for row in weights
    )
    size = upper_right[1] - upper_left[1]
    assert size > 20
    for found, down, right in ((upper_right, 0, 1), (lower_left, 1, 0), (lower_right, 1, 1)):
        expected = upper_left + size * np.array([down, right])
        np.testing.assert_allclose(found, expected, atol=2)


def middle_of(pixels: np.ndarray, colour: tuple[float, ...]) -> np.ndarray:
    """Row and column of the middle of what has this colour: the cell, with some of the scale."""
    return np.median(np.argwhere((np.abs(pixels - colour) < 0.01).all(axis=2)), axis=0)


def test_each_selection_is_another_image(heatmap: Heatmap, tmp_path: Path) -> None:
    chosen = [
        Selection(),
        Selection(layer=1),
        Selection(layer=2, head=3),
        Selection(kind="encoder"),
        Selection(kind="decoder", units="words"),
        Selection(kind="alignment"),
    ]
    for place, selection in enumerate(chosen):
        write_image(heatmap, tmp_path / f"{place}.png", selection)
    contents = {(tmp_path / f"{place}.png").read_bytes() for place in range(len(chosen))}
    assert len(contents) == len(chosen)
    assert all(content.startswith(b"\x89PNG") for content in contents)


def test_text_is_no_formula_and_may_be_long(heatmap: Heatmap, tmp_path: Path) -> None:
    write_image(relabelled(heatmap, rows=[r"$5 \frac{ $x_$", "y" * 500]), tmp_path / "map.png")
    assert imread(tmp_path / "map.png").shape[1] < 2000


def test_characters_without_a_font_are_told_of(
    heatmap: Heatmap, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_image(relabelled(heatmap, rows=["\U000e0fff\U000f1234", "ok"]), tmp_path / "map.png")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "no font on this machine has \U000e0fff \U000f1234" in record.getMessage()


def test_scripts_from_right_to_left_are_told_of_where_they_come_out_wrong(
    heatmap: Heatmap,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(matplotlib, "__version_info__", (3, 11, 0, "final", 0))
    write_image(relabelled(heatmap, rows=["שלום"]), tmp_path / "map.png")
    assert not caplog.records
    monkeypatch.setattr(matplotlib, "__version_info__", (3, 10, 9, "final", 0))
    write_image(relabelled(heatmap, rows=["שלום"]), tmp_path / "map.png")
    assert "from right to left" in caplog.text


def test_layers_that_are_not_there_are_refused(heatmap: Heatmap, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="layer is 7"):
        write_image(heatmap, tmp_path / "map.png", Selection(layer=7))


def test_a_map_that_is_too_large_is_refused(heatmap: Heatmap, tmp_path: Path) -> None:
    columns = ("c",) * 1501
    shown = Map(rows=("a",), columns=columns, weights=np.zeros((1, 1, 1, 1501), np.float32))
    large = dataclasses.replace(heatmap, maps={("cross", "subwords"): shown})
    with pytest.raises(OptionError, match=r"1 rows and 1,501 columns; an image holds 1,500 of"):
        write_image(large, tmp_path / "map.png")
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_the_extra_is_named(
    heatmap: Heatmap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(MissingExtraError, match=r"pip install -e '\.\[plot\]'"):
        write_image(heatmap, tmp_path / "map.png")
