"""Any number of workers, and any number of threads, gives the same bits: FP32 and INT8."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.bundles import Graphs
from support.static_graphs import open_static, write_static
from support.tiny_model import trained_corpus

from runtime.manifest import Precision
from runtime.options import SearchOptions
from runtime.schedule import Schedule
from runtime.scheduled import ScheduledBackends
from runtime.tokenizer import Tokenizer
from runtime.translator import Translation, Translator

BATCH_TOKENS = 64  # so that these lines are a dozen batches


@pytest.fixture(scope="module")
def lines() -> list[str]:
    phrases = [source for source, _ in trained_corpus().pairs("test")][:60]
    return [*phrases[:30], "", *phrases[30:], " ", "a line of the like the model has not seen"]


def translate(
    graphs: Graphs, precision: Precision, tokenizer: Tokenizer, lines: list[str],
    *, workers: int, threads: int, options: SearchOptions,
) -> list[Translation]:  # fmt: skip
    backend = graphs.open(precision, threads)
    backends = ScheduledBackends(backend, Schedule(workers=workers))
    with Translator(backends, tokenizer, graphs.special_ids) as translator:
        return translator.translate(lines, options, batch_tokens=BATCH_TOKENS)


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_workers_match_one_worker_in_every_bit(
    trained_graphs: Graphs, tokenizer: Tokenizer, lines: list[str],
    precision: Precision, beam_size: int,
) -> None:  # fmt: skip
    options = SearchOptions(beam_size=beam_size, num_hypotheses=beam_size)
    given = (trained_graphs, precision, tokenizer, lines)
    alone = translate(*given, workers=1, threads=1, options=options)
    assert len({translation.text for translation in alone}) > 40
    for workers, threads in ((2, 1), (3, 2)):
        found = translate(*given, workers=workers, threads=threads, options=options)
        assert found == alone, (workers, threads)  # scores too, to the last bit


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_workers_match_one_worker_over_graphs_for_cpus(
    trained_graphs: Graphs, tokenizer: Tokenizer, lines: list[str], tmp_path: Path,
    precision: Precision,
) -> None:  # fmt: skip
    """One backend serves all of them: its workspaces go from one search to another, of other
    shapes, and grow while others run."""
    write_static(trained_graphs, tmp_path, precision)
    with Translator(
        ScheduledBackends(open_static(trained_graphs, tmp_path, precision), Schedule(workers=3)),
        tokenizer,
        trained_graphs.special_ids,
    ) as translator:
        for beam_size, min_length in ((1, 0), (4, 0), (3, 40), (4, 0)):
            options = SearchOptions(
                beam_size=beam_size, num_hypotheses=beam_size, min_length=min_length
            )
            given = lines[:8] if min_length else lines
            alone = [
                translator.translate([line], options, batch_tokens=BATCH_TOKENS)[0]
                for line in given
            ]
            found = translator.translate(given, options, batch_tokens=BATCH_TOKENS)
            assert found == alone, beam_size  # scores too, to the last bit
