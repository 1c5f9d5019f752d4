"""The graphs against the eager model: the encoder, every decoder step, every shape of model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.bundles import Graphs, fp32_graphs
from support.model_shapes import SHAPES
from support.steps import FP32, assert_same_steps, some_sources
from support.tiny_model import random_transformer

from export.parity import forced_log_probs
from runtime.candidates import UNREACHABLE
from runtime.search import pad_sources


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES.keys())
def test_onnxruntime_matches_eager_for_every_shape_of_model(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    graphs = fp32_graphs(random_transformer(seed=1, **changes), tmp_path)
    size = graphs.model.config.src_vocab_size
    sources = some_sources(np.random.default_rng(0), [4, 1, 7], size)
    assert_same_steps(graphs.eager(), graphs.open(), steps=6, sources=sources)
    assert_same_steps(graphs.eager(), graphs.open(), steps=3, sources=sources[1:2])


def test_onnxruntime_matches_eager_encoder(random_graphs: Graphs) -> None:
    """Cross keys and values, with and without padding, S from 1 to the model's limit."""
    generator = np.random.default_rng(1)
    backend = random_graphs.open(observer=lambda name, value: None)  # an observer: no padding
    for lengths in ([1], [2], [64], [3, 9, 1, 5], [7, 7, 64]):
        ids, mask = pad_sources(some_sources(generator, lengths, 300), 0)
        state: Any = backend.begin(ids, mask, 1, 4)
        with torch.inference_mode():
            cross = random_graphs.model.encode(torch.from_numpy(ids), torch.from_numpy(mask))
        expected = [tensor.numpy() for pair in cross for tensor in pair]
        assert len(expected) == len(state.cross)
        for one, other in zip(expected, state.cross, strict=True):
            real = np.broadcast_to(mask[:, None, :, None], one.shape)
            np.testing.assert_allclose(other.numpy()[real], one[real], atol=1e-4)


@pytest.mark.parametrize("lengths", [[5], [4, 1, 12, 7, 2]], ids=["alone", "batched"])
def test_onnxruntime_matches_eager_every_step(random_graphs: Graphs, lengths: list[int]) -> None:
    """T from 0 to max_length, the model's limit, with beams that move and sentences that leave."""
    sources = some_sources(np.random.default_rng(2), lengths, 300)
    steps = random_graphs.model.config.max_target
    assert_same_steps(random_graphs.eager(), random_graphs.backend(), steps=steps, sources=sources)


def test_onnxruntime_steps_match_teacher_forcing(random_graphs: Graphs) -> None:
    """Token by token through the caches is what one pass over the whole target computes."""
    generator = np.random.default_rng(3)
    sources = some_sources(generator, [6, 3, 9], 300)
    targets = generator.integers(4, 300, (3, 20))
    model = random_graphs.model
    ids, mask = pad_sources(sources, 0)
    fed = np.concatenate([np.full((3, 1), 2), targets[:, :-1]], axis=1)
    with torch.inference_mode():
        logits = model(torch.from_numpy(ids), torch.from_numpy(mask), torch.from_numpy(fed))
        logits[..., list(model.config.banned_ids)] = -1e9
    expected = logits.log_softmax(-1).numpy()
    stepped = forced_log_probs(
        random_graphs.backend(), sources, targets.tolist(), random_graphs.special_ids
    )
    for step, found in enumerate(stepped):
        can = found > UNREACHABLE
        assert np.array_equal(can, expected[:, step] > UNREACHABLE)
        np.testing.assert_allclose(found[can], expected[:, step][can], atol=FP32)
    assert step == 19
