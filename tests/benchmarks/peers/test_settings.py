from __future__ import annotations

import pytest

from benchmarks.peers.settings import (
    Setting,
    batch_candidates,
    compute_types,
    file_candidates,
    thread_splits,
)
from benchmarks.peers.workloads import WORKLOADS, Workload
from runtime.options import SearchOptions


@pytest.mark.parametrize(
    ("threads", "parallel", "expected"),
    [
        (1, False, [(1, 1)]),
        (1, True, [(1, 1)]),
        (2, False, [(1, 1), (1, 2)]),
        (2, True, [(1, 1), (1, 2), (2, 1)]),
        (4, True, [(1, 1), (1, 4), (2, 2), (4, 1)]),
        (6, False, [(1, 1), (1, 2), (1, 3), (1, 6)]),
    ],
)
def test_threads_are_split_in_every_even_way(
    threads: int, parallel: bool, expected: list[tuple[int, int]]
) -> None:
    found = thread_splits(threads, parallel=parallel)
    assert found == expected
    assert all(inter * intra <= threads for inter, intra in found)


def test_batches_are_cut_for_the_workers() -> None:
    assert list(batch_candidates(32, 1)) == [{}, {"max_batch_size": 16}, {"max_batch_size": 8}]
    assert {"max_batch_size": 11} in list(batch_candidates(32, 3))
    assert list(batch_candidates(4, 2)) == [{}]  # parts of less than 4 lines are not tried


def test_files_are_cut_by_tokens_by_lines_and_as_a_stream() -> None:
    settings = [Setting(compute_type="int8", **cut) for cut in file_candidates()]
    assert {setting.batch_type for setting in settings} == {"tokens", "examples"}
    assert any(setting.stream for setting in settings)
    assert all(setting.max_batch_size for setting in settings)


def test_setting_is_told_in_words() -> None:
    setting = Setting(
        compute_type="int8", inter_threads=2, max_batch_size=1024, batch_type="tokens", stream=True
    )
    assert setting.text == (
        "int8, inter_threads 2, intra_threads 1, max_batch_size 1024 tokens, translate_iterable"
    )
    assert setting.model_key == ("int8", 2, 1)
    assert compute_types("ctranslate2-float32") == ("float32",)
    assert compute_types("ctranslate2-int8") == ("int8", "int8_float32")


def test_items_are_spread_over_the_lines() -> None:
    lines = [str(number) for number in range(100)]
    assert WORKLOADS["1x1"].items(lines, 4) == [["0"], ["25"], ["50"], ["75"]]
    batches = WORKLOADS["32x4"].items(lines, 2)
    assert batches == [lines[0:32], lines[32:64]]
    assert WORKLOADS["32x4"].items(lines[:5], 2) == [lines[:5]]
    assert WORKLOADS["file"].items(lines, 2) == [lines]


def test_options_of_a_workload() -> None:
    defaults = SearchOptions(beam_size=7, num_hypotheses=3, length_penalty=0.6)
    workload: Workload = WORKLOADS["1x1"]
    options = workload.options(defaults, None)
    assert (options.beam_size, options.num_hypotheses, options.length_penalty) == (1, 1, 0.6)
    forced = workload.options(defaults, 24)
    assert (forced.min_length, forced.max_length) == (24, 24)
