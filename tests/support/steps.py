"""Two backends fed the same beams, step by step, as a search would feed them."""

from __future__ import annotations

from typing import Any

import numpy as np

from export.parity import TOLERANCES
from runtime.backend import Backend, Candidates
from runtime.candidates import UNREACHABLE
from runtime.search import pad_sources

FP32 = TOLERANCES["fp32"].max_log_prob
assert FP32 is not None


def some_sources(generator: np.random.Generator, lengths: list[int], size: int) -> list[list[int]]:
    return [[*generator.integers(4, size, length - 1).tolist(), 3] for length in lengths]


def assert_same_steps(reference: Backend, candidate: Backend, *, steps: int, sources: Any) -> None:
    """Feeds both the reference's own beams, reordered as a search would, for `steps` steps."""
    beam_size = 3
    states = [b.begin(*pad_sources(sources, 0), beam_size, steps) for b in (reference, candidate)]
    token_ids = np.full((len(sources), beam_size), 2, dtype=np.int32)
    parents = np.zeros_like(token_ids)
    sums = np.full(token_ids.shape, -np.inf, dtype=np.float32)
    sums[:, 0] = 0
    for step in range(steps):
        expected, found = (
            backend.step(state, token_ids, parents, sums, ban_eos=step < 2, need_log_probs=True)
            for backend, state in zip((reference, candidate), states, strict=True)
        )
        assert_same(expected, found, step)
        token_ids, parents, sums = (
            np.ascontiguousarray(array[:, :beam_size])
            for array in (expected.token_ids, expected.parents, expected.scores)
        )
        if step == steps // 2 and len(sources) > 2:
            going = np.arange(0, len(token_ids), 2, dtype=np.int32)
            states = [
                backend.keep(state, going)
                for backend, state in zip((reference, candidate), states, strict=True)
            ]
            token_ids, parents, sums = token_ids[going], parents[going], sums[going]


def assert_same(expected: Candidates, found: Candidates, step: int) -> None:
    assert expected.log_probs is not None
    assert found.log_probs is not None
    can = expected.log_probs > UNREACHABLE
    assert np.array_equal(can, found.log_probs > UNREACHABLE), f"step {step} bans other tokens"
    difference = np.abs(expected.log_probs - found.log_probs)[can].max()
    assert difference <= FP32, f"step {step}: log-probs differ by {difference}"
    reached = expected.scores > UNREACHABLE
    np.testing.assert_allclose(found.scores[reached], expected.scores[reached], atol=2e-4)
