"""Any number of workers, and any number of threads, gives the same bits: FP32 and INT8."""

from __future__ import annotations

import pytest
from support.bundles import Graphs
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
