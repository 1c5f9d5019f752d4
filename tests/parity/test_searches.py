"""Whole searches, the eager model against ONNX Runtime, on a model that was trained."""

from __future__ import annotations

import numpy as np
import pytest
from support.bundles import Graphs
from support.tiny_model import trained_corpus

from export.parity import check_parity
from runtime.options import SearchOptions
from runtime.search import search
from runtime.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def sources(tokenizer: Tokenizer) -> list[list[int]]:
    return [tokenizer.encode_source(source) for source, _ in trained_corpus().pairs("test")]


@pytest.mark.parametrize("beam_size", [1, 2, 4, 8])
def test_onnxruntime_matches_eager_searches(
    trained_graphs: Graphs, sources: list[list[int]], beam_size: int
) -> None:
    report = check_parity(
        trained_graphs.eager(),
        trained_graphs.backend(),
        sources if beam_size == 4 else sources[:80],
        trained_graphs.special_ids,
        SearchOptions(beam_size=beam_size),
    )
    print(report.summary)
    report.require()
    assert report.steps > report.sentences


def test_onnxruntime_int8_matches_eager_searches(
    trained_graphs: Graphs, sources: list[list[int]]
) -> None:
    report = check_parity(
        trained_graphs.eager(),
        trained_graphs.backend("int8"),
        sources,
        trained_graphs.special_ids,
    )
    print(report.summary)
    report.require()
    assert report.log_prob_mean > 0  # it was quantized


@pytest.mark.parametrize("beam_size", [3, 5, 6, 7])
def test_onnxruntime_matches_eager_n_best(random_graphs: Graphs, beam_size: int) -> None:
    """All hypotheses, scores and lengths; random weights keep every beam busy to the end."""
    generator = np.random.default_rng(beam_size)
    sources = [[*generator.integers(4, 300, n).tolist(), 3] for n in (1, 5, 9, 3)]
    options = SearchOptions(beam_size=beam_size, num_hypotheses=beam_size, max_length=10)
    ids = random_graphs.special_ids
    expected = search(random_graphs.eager(), sources, options, ids)
    found = search(random_graphs.backend(), sources, options, ids)
    for one, other in zip(expected, found, strict=True):
        assert [h.score for h in other] == pytest.approx([h.score for h in one], abs=1e-4)
        assert other[0].token_ids == one[0].token_ids
        assert other[0].finished == one[0].finished
