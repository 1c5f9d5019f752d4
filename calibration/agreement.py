"""How far a backend is from its FP32 original: whole searches, and every step of a fixed path.

Letters: B sentences, K beams, V vocabulary.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.backend import Backend, BoolArray, FloatArray, IntArray
from runtime.batching import plan_batches
from runtime.manifest import SpecialTokenIds
from runtime.options import SearchOptions
from runtime.search import Hypothesis, pad_sources, search

log = logging.getLogger(__name__)

BATCH_TOKENS = 512


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """sentences: searched by both. equal: whose best hypotheses have the same tokens.

    Along the reference's best hypotheses, over all their steps: kl_mean and kl_max, of
    KL(reference || candidate) in nats; log_prob_mean and log_prob_max, of the absolute difference
    in the log-probability of the token taken.
    """

    sentences: int
    equal: int
    steps: int
    kl_mean: float
    kl_max: float
    log_prob_mean: float
    log_prob_max: float

    @property
    def equal_percent(self) -> float:
        return 100 * self.equal / self.sentences

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measure_agreement(
    reference: Backend,
    candidates: Mapping[str, Backend],
    sources: Sequence[Sequence[int]],
    options: SearchOptions,
    special_ids: SpecialTokenIds,
) -> dict[str, Agreement]:
    """Each candidate beside the reference. sources: token ids, EOS included."""
    equal = dict.fromkeys(candidates, 0)
    errors: dict[str, list[npt.NDArray[np.float64]]] = {name: [] for name in candidates}
    batches = plan_batches([len(source) for source in sources], BATCH_TOKENS)
    for batch in batches:
        chosen = [sources[i] for i in batch]
        best = [found[0] for found in search(reference, chosen, options, special_ids)]
        for name, backend in candidates.items():
            other = [found[0] for found in search(backend, chosen, options, special_ids)]
            pairs = zip(best, other, strict=True)
            equal[name] += sum(a.token_ids == b.token_ids for a, b in pairs)
        found = _follow(reference, candidates, chosen, best, options, special_ids)
        for name, rows in found.items():
            errors[name].append(rows)
    joined = {name: np.concatenate(rows) for name, rows in errors.items()}  # [steps, 2]
    return {
        name: Agreement(
            sentences=len(sources),
            equal=equal[name],
            steps=len(rows),
            kl_mean=float(rows[:, 0].mean()),
            kl_max=float(rows[:, 0].max()),
            log_prob_mean=float(rows[:, 1].mean()),
            log_prob_max=float(rows[:, 1].max()),
        )
        for name, rows in joined.items()
    }


def _follow(
    reference: Backend,
    candidates: Mapping[str, Backend],
    sources: Sequence[Sequence[int]],
    paths: Sequence[Hypothesis],
    options: SearchOptions,
    special_ids: SpecialTokenIds,
) -> dict[str, npt.NDArray[np.float64]]:
    """Feeds every backend the reference's hypotheses: a KL and a difference a step, [steps, 2].

    Steps after the end of a hypothesis are not among them.
    """
    token_ids, is_real = _paths(paths, special_ids)  # [B,T]
    backends = [reference, *candidates.values()]
    batch, length = token_ids.shape
    states = [b.begin(*pad_sources(sources, special_ids.pad), 1, length) for b in backends]
    fed = np.full((batch, 1), special_ids.decoder_start, dtype=np.int32)
    zeros = np.zeros((batch, 1), dtype=np.int32)
    rows: dict[str, list[npt.NDArray[np.float64]]] = {name: [] for name in candidates}
    for step in range(length):
        expected, *others = [
            _log_probs(backend, state, fed, zeros, ban_eos=step < options.min_length)
            for backend, state in zip(backends, states, strict=True)
        ]
        fed = np.ascontiguousarray(token_ids[:, step : step + 1])
        for name, log_probs in zip(candidates, others, strict=True):
            both = _step_errors(expected, log_probs, fed)
            rows[name].append(both[is_real[:, step]])
    return {name: np.concatenate(of_step) for name, of_step in rows.items()}


def _paths(
    hypotheses: Sequence[Hypothesis], special_ids: SpecialTokenIds
) -> tuple[IntArray, BoolArray]:
    """token_ids int32 [B,T], the EOS of finished ones included, padded; and which are real."""
    spelt = [[*h.token_ids, special_ids.eos] if h.finished else [*h.token_ids] for h in hypotheses]
    return pad_sources(spelt, special_ids.pad)


def _log_probs(
    backend: Backend, state: Any, fed: IntArray, beam_indices: IntArray, *, ban_eos: bool
) -> FloatArray:
    """[B,V], a copy: the backend may reuse its buffer."""
    sums = np.zeros(fed.shape, dtype=np.float32)
    found = backend.step(state, fed, beam_indices, sums, ban_eos=ban_eos, need_log_probs=True)
    assert found.log_probs is not None
    return found.log_probs[:, 0].copy()


def _step_errors(
    expected: FloatArray, found: FloatArray, token_ids: IntArray
) -> npt.NDArray[np.float64]:
    """expected, found [B,V], token_ids [B,1] -> [B,2]: KL, and the difference at the token."""
    difference = expected.astype(np.float64) - found
    # Banned tokens have no mass: exp(-1e9) is 0.
    kl = np.sum(np.exp(expected.astype(np.float64)) * difference, axis=1)
    taken = np.abs(np.take_along_axis(difference, token_ids.astype(np.int64), axis=1)[:, 0])
    return np.stack([np.maximum(kl, 0), taken], axis=1)
