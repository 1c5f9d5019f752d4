"""Ranges as a file: round trip, same bytes, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from calibration.errors import CalibrationError
from calibration.ranges import Ranges
from runtime.errors import WriteError


def some_ranges() -> Ranges:
    return Ranges(
        method="percentile",
        percentile=99.9,
        sentences=3,
        sources_sha256="ab",
        search={"beam_size": 4},
        graphs={"encoder": "cd"},
        bounds={"encoder": {"x": 0.1, "y": 3.0}},
    )


def test_round_trip_and_same_bytes(tmp_path: Path):
    some_ranges().save(tmp_path / "a.json")
    loaded = Ranges.load(tmp_path / "a.json")
    assert loaded == some_ranges()
    loaded.save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_bound_of_a_tensor_and_of_one_that_is_missing():
    assert some_ranges().bound("encoder", "y") == 3.0
    with pytest.raises(CalibrationError, match=r"no bound for tensor 'z' .* \(they have 2\)"):
        some_ranges().bound("encoder", "z")
    with pytest.raises(CalibrationError, match=r"of the decoder_step graph \(they have 0\)"):
        some_ranges().bound("decoder_step", "x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "not a ranges file"),
        ({"version": 2}, "have version 2; this leanseq reads 1"),
        ({"bounds": {"encoder": {"x": -1.0}}}, "a bound that is negative or no finite"),
        ({"bounds": {"encoder": {"x": float("nan")}}}, "a bound that is negative or no finite"),
        ({"bounds": {}}, "or no bound at all"),
        ({"bounds": {"encoder": {"x": "wide"}}}, "negative or no finite number"),
        ({"bounds": [1]}, "a malformed one"),
        ({"bounds": {"encoder": {"x": 10**400}}}, "negative or no finite"),
    ],
)
def test_refuses_what_is_not_whole(change: dict[str, Any], message: str):
    with pytest.raises(CalibrationError, match=message):
        Ranges.from_json({**some_ranges().to_json(), **change})


def test_refuses_a_missing_field():
    values = some_ranges().to_json()
    del values["graphs"]
    with pytest.raises(CalibrationError, match=r"lack a field .*'graphs'"):
        Ranges.from_json(values)
    with pytest.raises(CalibrationError, match="not a ranges file"):
        Ranges.from_json([])


def test_refuses_a_file_that_is_not_there_or_not_json(tmp_path: Path):
    with pytest.raises(CalibrationError, match="can't be read"):
        Ranges.load(tmp_path / "missing.json")
    cut = json.dumps(some_ranges().to_json())[:20]
    (tmp_path / "cut.json").write_text(cut)
    with pytest.raises(CalibrationError, match="can't be read"):
        Ranges.load(tmp_path / "cut.json")


def test_says_where_it_could_not_write(tmp_path: Path):
    with pytest.raises(WriteError, match=r"can't be written: No such file .*; expected it, and"):
        some_ranges().save(tmp_path / "no" / "where.json")
