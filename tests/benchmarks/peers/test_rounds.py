from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from benchmarks.peers.rounds import Effort, Timing, ratio, take_turns
from benchmarks.peers.settings import Setting
from benchmarks.peers.subjects import SUBJECTS, Found, Threads
from benchmarks.peers.tuning import FILE_LINES, tune
from benchmarks.peers.worker import Timed
from benchmarks.peers.workloads import WORKLOADS
from runtime.options import SearchOptions

ONE = Threads(count=1)
OPTIONS = SearchOptions()


class FakeWorker:
    """Takes the milliseconds a line that it is told, and notes who was called."""

    def __init__(self, name: str, log: list[str], ms: Any = 1.0) -> None:
        self.subject, self._log, self._ms = SUBJECTS[name], log, ms

    def translate(
        self,
        lines: Sequence[str],
        options: SearchOptions,
        setting: Setting | None = None,
        *,
        want_found: bool = False,
    ) -> Timed:
        self._log.append(self.subject.name)
        seconds = len(lines) * (self._ms(setting) if callable(self._ms) else self._ms) / 1000
        found = tuple(Found(text=line, token_ids=(5, 6), finished=True) for line in lines)
        return Timed(
            seconds=seconds,
            cpu_seconds=seconds / 2,
            num_tokens=tuple(one.num_tokens for one in found),
            found=found if want_found else None,
        )


def run(
    effort: Effort, names: Sequence[str], **options: Any
) -> tuple[dict[str, Timing], list[str]]:
    log: list[str] = []
    workers: Any = {n: FakeWorker(n, log, ms) for n, ms in zip(names, (2.0, 4.0), strict=False)}
    items = [["a"], ["b", "c"]]
    return take_turns(workers, {}, items, OPTIONS, ONE, effort, **options), log


def test_slow_subjects_take_part_in_the_first_rounds_and_the_order_turns() -> None:
    names = ("ctranslate2-int8", "eager")
    timings, log = run(Effort(rounds=3, slow_rounds=1), names)
    assert timings["ctranslate2-int8"].seconds.shape == (3, 2)
    assert timings["eager"].seconds.shape == (1, 2)
    fast, slow = names
    warmup = [fast, fast, slow]  # both items, and the first of them
    assert log == [*warmup, fast, slow, slow, fast, fast, fast, fast, fast]


def test_lines_alone_are_timed_a_few_at_a_turn() -> None:
    log: list[str] = []
    workers: Any = {n: FakeWorker(n, log) for n in ("leanseq-int8", "ctranslate2-int8")}
    effort = Effort(rounds=1, turn=2)
    items = [["a"], ["b"], ["c"]]
    timings = take_turns(workers, {}, items, OPTIONS, ONE, effort, want_found=True)
    ours, theirs = workers
    assert log[6:] == [ours, ours, theirs, theirs, theirs, ours]
    assert [found.text for found in timings[ours].found] == ["a", "b", "c"]
    assert timings[theirs].seconds.shape == (1, 3)
    assert timings[theirs].seconds.min() > 0


def test_translations_are_those_of_the_last_round() -> None:
    timings, _ = run(Effort(rounds=2), ("leanseq-int8",), want_found=True)
    assert [found.text for found in timings["leanseq-int8"].found] == ["a", "b", "c"]
    timings, _ = run(Effort(rounds=2), ("leanseq-int8",))
    assert timings["leanseq-int8"].found == []


def test_summary_is_a_line_and_tokens_count_eos() -> None:
    timings, _ = run(Effort(rounds=3), ("leanseq-int8",))
    summary = timings["leanseq-int8"].summary()
    assert summary["ms"] == pytest.approx({"p50": 2.0, "p95": 2.0, "p99": 2.0})
    assert summary["tokens"] == 9
    assert summary["tokens_per_second"] == pytest.approx(9 / 0.006)
    assert (summary["rounds"], summary["items"]) == (3, 2)
    assert summary["seconds"] == [[0.002, 0.004]] * 3
    assert summary["cpu_seconds"] == [[0.001, 0.002]] * 3


def timing(seconds: list[list[float]]) -> Timing:
    array = np.array(seconds)
    return Timing(seconds=array, cpu_seconds=array * 2, lines=[1, 1], tokens=[1, 1])


def test_ratio_is_of_pairs_that_both_took_part_in() -> None:
    peer = timing([[2.0, 4.0], [6.0, 8.0]])
    found = ratio(peer, timing([[1.0, 1.0]]))
    assert (found["median"], found["pairs"]) == (3.0, 2)
    found = ratio(peer, timing([[1.0, 1.0], [3.0, 2.0]]))  # 2, 4, 2, 4
    assert (found["median"], found["p10"], found["pairs"]) == (3.0, 2.0, 4)
    assert found["cpu"]["median"] == 3.0


def test_tuning_takes_the_quickest_setting() -> None:
    def ms(setting: Setting) -> float:
        wanted = setting.compute_type == "int8", setting.inter_threads == 2
        return 5 - sum(wanted) - (setting.max_batch_size == 16) - 2 * setting.stream

    worker: Any = FakeWorker("ctranslate2-int8", [], ms)
    lines = [str(n) for n in range(500)]
    two = Threads(count=2)
    batch = tune(worker, WORKLOADS["32x4"], two, [lines[:32]], OPTIONS)
    assert batch.setting == Setting(compute_type="int8", inter_threads=2, max_batch_size=16)
    # 2 types x 3 splits, then the winner again beside the other cuts
    assert len(batch.tried) == 6 + 3
    file = tune(worker, WORKLOADS["file"], two, [lines], OPTIONS)
    assert file.setting.stream
    assert max(seconds for _, seconds in file.tried) <= FILE_LINES * 5 / 1000
    single = tune(worker, WORKLOADS["1x1"], two, [["a"]], OPTIONS)
    assert single.setting.compute_type == "int8"
    assert {s.inter_threads for s, _ in single.tried} == {1}
    assert single.to_json()["text"] == single.setting.text


def test_one_setting_needs_no_trying() -> None:
    log: list[str] = []
    worker: Any = FakeWorker("ctranslate2-float32", log)
    tuned = tune(worker, WORKLOADS["1x4"], ONE, [["a"]], OPTIONS)
    assert tuned.setting == Setting(compute_type="float32")
    assert (log, tuned.tried) == ([], ())


def test_threads_that_spin_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("benchmarks.peers.rounds.time.sleep", slept.append)
    worker: Any = FakeWorker("leanseq-int8", [])
    for count in (1, 2):
        take_turns(
            {"leanseq-int8": worker}, {}, [["a"]], OPTIONS, Threads(count=count), Effort(rounds=2)
        )
    assert len(slept) == 2


def test_threads_tell_what_they_are() -> None:
    labels = [Threads(count=1), Threads(count=3), Threads(count=2, all_cores=True)]
    assert [each.label for each in labels] == ["1 thread", "3 threads", "all cores"]
    assert len(set(itertools.chain(each.label for each in labels))) == 3
