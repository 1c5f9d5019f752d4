"""The two subjects that are written here: the plain loop, and PyTorch's INT8."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.tiny_model import random_transformer
from torch import nn

from benchmarks.peers.plain_loop import PlainLoopBackend
from benchmarks.peers.torch_int8 import quantize_linears
from model.eager import EagerBackend, special_token_ids
from runtime.bundle import Bundle
from runtime.manifest import Precision
from runtime.options import SearchOptions
from runtime.search import search
from runtime.tokenizer import Tokenizer
from runtime.translator import Translator

GOLDEN = Path(__file__).parents[2] / "golden" / "bundle-schema-1"
LINES = [f"in {number} days" for number in range(2, 30)] + ["7 months ago", "", "in in in 3 years"]


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("beam_size", [1, 3])
def test_plain_loop_translates_as_the_backend_does(precision: Precision, beam_size: int) -> None:
    bundle = Bundle.open(GOLDEN)
    tokenizer = Tokenizer(bundle.tokenizer_protos()[0])
    plain = Translator(
        PlainLoopBackend(bundle, precision, 1), tokenizer, bundle.manifest.special_ids
    )
    options = SearchOptions(beam_size=beam_size, num_hypotheses=beam_size)
    with Translator.open(bundle, precision=precision, threads=1) as translator:
        for one, other in zip(
            plain.translate(LINES, options), translator.translate(LINES, options), strict=True
        ):
            assert [h.token_ids for h in one.hypotheses] == [h.token_ids for h in other.hypotheses]
            assert [h.score for h in one.hypotheses] == pytest.approx(
                [h.score for h in other.hypotheses], abs=1e-5
            )


def test_plain_loop_keeps_min_length() -> None:
    bundle = Bundle.open(GOLDEN)
    backend = PlainLoopBackend(bundle, "fp32", 1)
    options = SearchOptions(min_length=9, max_length=9)
    (found,) = search(backend, [[40, 50, 3]], options, bundle.manifest.special_ids)
    assert len(found[0].token_ids) == 9
    assert not found[0].finished
    assert backend.capabilities.name == "plain loop"


@pytest.mark.parametrize("tying", ["all", "none"])
def test_quantized_torch_model_is_close_and_its_origin_unchanged(tying: str) -> None:
    model = random_transformer(seed=2, tying=tying)
    sources = [[5, 9, 30, 42, 7, 3], [77, 13, 3]]
    ids, mask = torch.tensor([sources[0]]), torch.ones(1, 6, dtype=torch.bool)
    with torch.inference_mode():
        before = model(ids, mask, torch.tensor([[2, 8, 60]]))
        quantized = quantize_linears(model)
        after = quantized(ids, mask, torch.tensor([[2, 8, 60]]))
        assert torch.equal(before, model(ids, mask, torch.tensor([[2, 8, 60]])))
    difference = (before - after).abs().max().item()
    assert 0 < difference < 0.1 * before.abs().max().item()
    assert not [m for m in quantized.modules() if type(m) is nn.Linear]  # all are INT8
    # The projection to the vocabulary as well, though it is no Linear where tables are tied.
    hidden = torch.randn(1, 32)
    with torch.inference_mode():
        exact = hidden @ model.output_weight.T
        found = quantized.project_output(hidden)
    assert 0 < (exact - found).abs().max().item() < 0.1 * exact.abs().max().item()
    special_ids = special_token_ids(model.config)
    hypotheses = search(EagerBackend(quantized), sources, SearchOptions(), special_ids)
    assert all(np.isfinite(found[0].score) for found in hypotheses)
