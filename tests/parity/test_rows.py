"""A line translates the same alone, padded, shuffled, in any batch: bit for bit, FP32 and INT8."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
from support.bundles import Graphs
from support.nasty_lines import NASTY_LINES
from support.tiny_model import trained_corpus

from model.corpora.files import read_lines
from runtime.manifest import Precision
from runtime.options import SearchOptions
from runtime.search import Hypothesis, search
from runtime.tokenizer import Tokenizer

CAPTIONS = [
    "Somebody with a green cap looks at a kite far above the roofs.",
    "Three boys share a melon on the steps of a library.",
    "A black-and-white dog, mid-jump, catches a frisbee near the water's edge.",
    "People on bikes wait at a light while a bus, two taxis and a van go by in the rain.",
    "THE BOY WEARS A RED T-SHIRT & blue jeans (torn at the knee); he's laughing!",
    "5 women, 3 men: all of them over 70 - and still dancing.",
]
LINES = 1000
PRECISIONS: list[Precision] = ["fp32", "int8"]


@pytest.fixture(scope="module")
def sources(tokenizer: Tokenizer, trained_graphs: Graphs) -> list[list[int]]:
    """1,000 lines: captions, what breaks translators, phrases; cut to the model's limit.

    The environment variable LEANSEQ_TEST_LINES names a file whose lines take their place.
    """
    corpus = trained_corpus()
    phrases = [source for split in ("test", "train") for source, _ in corpus.pairs(split)]
    lines = [*CAPTIONS, *NASTY_LINES, *phrases]
    if os.environ.get("LEANSEQ_TEST_LINES"):
        lines = read_lines(os.environ["LEANSEQ_TEST_LINES"])
    lines = lines[:LINES]
    limit = trained_graphs.spec.max_source
    encoded = [tokenizer.encode_source(line) for line in lines]
    return [ids if len(ids) <= limit else [*ids[: limit - 1], ids[-1]] for ids in encoded]


def in_batches(
    graphs: Graphs,
    precision: Precision,
    sources: list[list[int]],
    options: SearchOptions,
    size: int,
) -> list[list[Hypothesis]]:
    found = []
    for start in range(0, len(sources), size):
        batch = sources[start : start + size]
        found += search(graphs.backend(precision), batch, options, graphs.special_ids)
    return found


@pytest.mark.parametrize("precision", PRECISIONS)
def test_onnxruntime_rows_are_the_same_in_any_batch(
    trained_graphs: Graphs, sources: list[list[int]], precision: Precision
) -> None:
    options = SearchOptions(max_length=40)
    alone = in_batches(trained_graphs, precision, sources, options, 1)
    order = list(range(len(sources)))
    random.Random(0).shuffle(order)
    mixed = in_batches(trained_graphs, precision, [sources[i] for i in order], options, 37)
    for position, index in enumerate(order):
        assert mixed[position] == alone[index], f"line {index}"
    by_length = sorted(order, key=lambda i: len(sources[i]))
    sorted_ = in_batches(trained_graphs, precision, [sources[i] for i in by_length], options, 64)
    for position, index in enumerate(by_length):
        assert sorted_[position] == alone[index], f"line {index}"


@pytest.mark.parametrize("beam_size", [1, 2, 3, 8])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_onnxruntime_rows_are_the_same_under_any_padding(
    trained_graphs: Graphs, precision: Precision, beam_size: int
) -> None:
    """Lengths on both sides of the widths that kernels work in, beside one of the limit."""
    generator = np.random.default_rng(beam_size)
    lengths = [1, 2, 3, 5, 9, 15, 16, 17, 31, 33, 63, 65, 70, 81, 127, 129, 150, 255, 256]
    size = trained_graphs.model.config.src_vocab_size
    sources = [[*generator.integers(4, size, n - 1).tolist(), 3] for n in lengths]
    options = SearchOptions(beam_size=beam_size, min_length=8, max_length=12)
    alone = in_batches(trained_graphs, precision, sources, options, 1)
    together = in_batches(trained_graphs, precision, sources, options, len(sources))
    assert together == alone


@pytest.mark.parametrize("precision", PRECISIONS)
def test_onnxruntime_threads_do_not_change_a_row(
    trained_graphs: Graphs, sources: list[list[int]], precision: Precision
) -> None:
    options = SearchOptions(max_length=30)
    backend = trained_graphs.open(precision, threads=2)
    some = sources[:60]
    assert search(backend, some, options, trained_graphs.special_ids) == in_batches(
        trained_graphs, precision, some, options, 1
    )
    backend.close()
