from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support import peer_records as records

from benchmarks.peers.bars import SPEED_BARS, judge
from benchmarks.peers.plot import check_plot_path, cost_path, plot_cost, plot_pareto
from benchmarks.peers.report import render
from benchmarks.peers.workloads import WORKLOADS
from runtime.errors import MissingExtraError, OptionError, WriteError


def verdicts(record: dict[str, Any]) -> Counter[bool | None]:
    return Counter(verdict.holds for verdict in judge(record))


def small(int8: float, fp32: float, **changes: Any) -> dict[str, Any]:
    ratios = {"leanseq-int8": int8, "leanseq-fp32": fp32}
    names = ("1x1", "1x4", "32x4")
    one, every = (records.block(count, count > 1, dict.fromkeys(names, ratios)) for count in (1, 2))
    return records.record("small", [one, every], **changes)


def test_bars_name_workloads_that_there_are() -> None:
    assert {bar.workload for bar in SPEED_BARS} == set(WORKLOADS)
    assert len(SPEED_BARS) == 21
    assert all(bar.at_least >= 1.0 for bar in SPEED_BARS)


def test_what_is_fast_enough_holds() -> None:
    assert verdicts(small(1.6, 1.3)) == {True: 6 + 3 + 3}


def test_each_bar_is_judged_by_its_own_figure() -> None:
    """1.38 clears the bars of 1 x 4 and 32 x 4, and neither of 1 x 1."""
    found = {verdict.bar.split(":")[0]: verdict for verdict in judge(small(1.38, 1.1))}
    assert found["small 1x1, 1 thread, INT8"].holds is False
    assert found["small 1x1, all cores, INT8"].holds is False
    assert found["small 1x4, 1 thread, INT8"].holds is True
    assert found["small 32x4, all cores, INT8"].holds is True
    # The lower bound counts in FP32: 1.1 - 0.2 is below 1.
    fp32 = found["small 1x4, 1 thread, FP32"]
    assert (fp32.holds, fp32.found) == (False, "1.10 (0.90-1.30, 100 pairs)")


def test_what_was_not_measured_is_told() -> None:
    record = small(1.6, 1.3)
    record["threads"] = record["threads"][:1]
    del record["threads"][0]["workloads"]["1x1"]
    record["subjects"] = {}
    assert verdicts(record) == {True: 2 + 2, None: 4 + 1 + 3}
    assert verdicts(records.record("tiny", [], subjects={})) == {None: 3}


def test_quality_and_sizes_of_a_trained_model() -> None:
    ratios = {"leanseq-int8": 1.4, "leanseq-fp32": 1.3}
    blocks = [records.block(n, n > 1, {"file": ratios}) for n in (1, 2)]
    record = records.record("trained", blocks)
    assert verdicts(record) == {True: 2 + 1 + 1 + 3}
    name = "leanseq-int8"
    record["subjects"][name] = records.subject(name, 39.85, 12_000_000, 46_000_000)
    found = [verdict for verdict in judge(record) if not verdict.holds]
    assert [verdict.found for verdict in found] == [
        "39.85 against 40.00 (-0.15)",
        "12.0 MB over 10.0 MB: 1.20",
        "46.0 MB over 30.0 MB: 1.53",
    ]
    record["subjects"][name] = records.subject(name, 39.95, 10_900_000, 44_000_000)
    assert all(verdict.holds for verdict in judge(record))


def test_cost_is_judged_by_its_fastest_term() -> None:
    assert verdicts(small(1.6, 1.3, cost=records.cost(0.05))) == {True: 14}
    record = small(1.6, 1.3, cost=records.cost(0.2))
    (failed,) = [verdict for verdict in judge(record) if not verdict.holds]
    assert failed.found == "20% at 128"
    record["cost"]["lengths"] = {}
    assert verdicts(record) == {True: 13, None: 1}


def test_text_tells_everything() -> None:
    record = small(1.38, 1.1, cost=records.cost(0.0))
    record["bars"] = [verdict.to_json() for verdict in judge(record)]
    text = render(record)
    assert (
        "preset small, random, d 256, 3+3 layers, V 8,000; 64 lines of test.en, 24 forced" in text
    )
    assert "give the same tokens: beam 4: 64 of 64 equal" in text
    assert "1x4, all cores" in text
    assert "1.38 (1.18-1.58)" in text
    assert "1: 99.0 ms (99%)" in text
    assert "CTranslate2 int8: int8, inter_threads 1, intra_threads 1 (the quickest of 1" in text
    assert "leanseq INT8, all cores: precision int8, threads 1" in text
    assert "DOES NOT HOLD  small 1x1, 1 thread, INT8" in text
    assert "found 1.38 (1.18-1.58, 100 pairs)" in text
    lines = text.splitlines()
    assert lines[-1] == "bars: 9 hold, 5 do not, 0 not measured"
    record["what"]["rounds"] = 2
    assert render(record).splitlines()[-1] == "fewer than 5 rounds: these verdicts say little"
    trained = render(records.record("trained", [], bars=[]))
    assert "trained weights" in trained
    assert "real ends" in trained
    assert "BLEU s" in trained
    assert trained.splitlines()[-1] == "no bars are set for this preset"


def test_plots_are_drawn(tmp_path: Path) -> None:
    path = tmp_path / "results" / "peers.png"
    ratios = {"leanseq-int8": 1.4}
    record = records.record("trained", [records.block(1, False, {"1x4": ratios})])
    assert plot_pareto(record, path)
    plot_cost(records.cost(0.1), cost_path(path))
    assert cost_path(path).name == "peers-cost.png"
    for file in (path, cost_path(path)):
        assert file.read_bytes().startswith(b"\x89PNG")
    assert not plot_pareto(small(1.0, 1.0), tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()
    with pytest.raises(WriteError, match=r"results can't be written: Is a directory; expected a f"):
        plot_pareto(record, path.parent)


def test_plots_need_a_png_and_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match=r"--plot is peers\.svg; expected the name of a PNG"):
        check_plot_path(Path("peers.svg"))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"needs the package matplotlib.*'\.\[peers\]"):
        check_plot_path(Path("peers.png"))
