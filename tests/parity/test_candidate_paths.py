"""Candidates from the graph and candidates from its log-probabilities: the same, bit for bit.

Two pairs of tokens share their output weights, so exact ties stand at every rank.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.tiny_model import random_transformer

from export.graphs import export_decoder_step, export_encoder, model_spec
from model.eager import EagerBackend, special_token_ids
from model.transformer import Transformer
from runtime.backend import Backend, Candidates, DecoderState
from runtime.candidates import UNREACHABLE, candidates_from_log_probs, sort_candidates
from runtime.onnxruntime_backend import OnnxRuntimeBackend
from runtime.options import SearchOptions
from runtime.search import search


class Checking:
    """Passes everything on, and compares the two paths at every step."""

    def __init__(self, backend: Backend, *, sort_both: bool) -> None:
        self.backend, self.sort_both = backend, sort_both
        self.capabilities = backend.capabilities
        self.steps = self.ties = 0

    def begin(self, *arguments: Any) -> DecoderState:
        return self.backend.begin(*arguments)

    def keep(self, *arguments: Any) -> DecoderState:
        return self.backend.keep(*arguments)

    def close(self) -> None:
        self.backend.close()

    def step(
        self,
        state: DecoderState,
        token_ids: Any,
        beam_indices: Any,
        sum_log_probs: Any,
        *,
        ban_eos: bool,
        need_log_probs: bool = False,
    ) -> Candidates:
        found = self.backend.step(
            state, token_ids, beam_indices, sum_log_probs, ban_eos=ban_eos, need_log_probs=True
        )
        assert found.log_probs is not None
        other = candidates_from_log_probs(found.log_probs, sum_log_probs)
        ours = sort_candidates(found) if self.sort_both else found
        reachable = other.scores > UNREACHABLE
        for name in ("scores", "token_ids", "parents"):
            mine, theirs = getattr(ours, name), getattr(other, name)
            assert np.array_equal(mine[reachable], theirs[reachable]), (name, self.steps)
        assert np.array_equal(ours.scores > UNREACHABLE, reachable)
        self.steps += 1
        self.ties += int((np.diff(other.scores[reachable]) == 0).sum())
        return found


@pytest.fixture(scope="module")
def model() -> Transformer:
    model = random_transformer(seed=5, tying="none")
    with torch.no_grad():
        for one, other in ((200, 201), (50, 350)):
            model.output.weight[one] = model.output.weight[other]
        model.output.weight[[50, 200, 201, 350]] *= 2
    return model


@pytest.fixture(scope="module")
def onnxruntime_backend(
    model: Transformer, tmp_path_factory: pytest.TempPathFactory
) -> OnnxRuntimeBackend:
    directory = tmp_path_factory.mktemp("candidate_paths")
    encoder, step = directory / "encoder.onnx", directory / "decoder_step.onnx"
    export_encoder(model, encoder)
    export_decoder_step(model, step)
    special_ids = special_token_ids(model.config)
    return OnnxRuntimeBackend(Path(encoder), Path(step), model_spec(model.config), special_ids)


def check(backend: Checking, model: Transformer, beam_size: int) -> None:
    sources = [[5, 9, 30, 3], [77, 3], [8, 8, 8, 60, 61, 62, 200, 3]]
    options = SearchOptions(beam_size=beam_size, num_hypotheses=beam_size, max_length=12)
    search(backend, sources, options, special_token_ids(model.config))
    assert backend.steps >= 2
    assert beam_size == 1 or backend.ties >= 5


@pytest.mark.parametrize("beam_size", [1, 2, 3, 4, 8])
def test_onnxruntime_candidates_match_log_probs(
    model: Transformer, onnxruntime_backend: OnnxRuntimeBackend, beam_size: int
) -> None:
    """Sorted as the contract says, too: nothing is sorted again before the comparison."""
    check(Checking(onnxruntime_backend, sort_both=False), model, beam_size)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_eager_candidates_match_log_probs(model: Transformer, beam_size: int) -> None:
    check(Checking(EagerBackend(model), sort_both=True), model, beam_size)
