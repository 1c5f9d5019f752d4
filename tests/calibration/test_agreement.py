"""Agreement of two backends whose logits are known."""

from __future__ import annotations

import numpy as np
import pytest
from support.fake_backend import EOS, SPECIAL_IDS, FakeBackend, random_logits

from calibration.agreement import measure_agreement
from runtime.options import SearchOptions

VOCAB = 12
SOURCES = [[5, 6, EOS], [7, EOS], [4, 5, 6, 7, EOS]]


def backend_of(logits) -> FakeBackend:
    return FakeBackend(logits, VOCAB)


def changed(base, position: int, size: float):
    """base, with one logit moved wherever the target is that long."""

    def logits(source, prefix):
        row = base(source, prefix).copy()
        if len(prefix) == position:
            row[5] += size
        return row

    return logits


def test_a_backend_agrees_with_itself():
    base = random_logits(VOCAB, eos_bias=1.0)
    found = measure_agreement(
        backend_of(base), {"same": backend_of(base)}, SOURCES, SearchOptions(), SPECIAL_IDS
    )["same"]
    assert (found.sentences, found.equal, found.equal_percent) == (3, 3, 100)
    assert (found.kl_mean, found.kl_max, found.log_prob_mean, found.log_prob_max) == (0, 0, 0, 0)


def test_errors_are_those_of_the_steps_of_the_reference_path():
    base = random_logits(VOCAB, eos_bias=1.0)
    reference, other = backend_of(base), backend_of(changed(base, 1, 0.5))
    options = SearchOptions()
    found = measure_agreement(reference, {"other": other}, SOURCES, options, SPECIAL_IDS)["other"]
    kls, differences = [], []
    for source in SOURCES:
        best = reference_best(reference, source, options)
        for step in range(len(best)):
            prefix = tuple(best[:step])
            expected, moved = (
                b.log_probs(tuple(source), prefix, step < 1).astype(np.float64)
                for b in (reference, other)
            )
            real = expected > -1e8
            kls.append(np.sum(np.exp(expected) * (expected - moved), where=real))
            differences.append(abs(expected[best[step]] - moved[best[step]]))
    assert found.steps == len(kls)
    assert found.kl_max > 0
    assert found.kl_mean == pytest.approx(np.mean(kls), rel=1e-5)
    assert found.kl_max == pytest.approx(np.max(kls), rel=1e-5)
    assert found.log_prob_mean == pytest.approx(np.mean(differences), rel=1e-5)
    assert found.log_prob_max == pytest.approx(np.max(differences), rel=1e-5)
    assert found.to_json()["kl_max"] == found.kl_max


def test_other_translations_are_not_equal():
    base = random_logits(VOCAB, eos_bias=1.0)
    found = measure_agreement(
        backend_of(base),
        {"far": backend_of(changed(base, 0, 50.0)), "same": backend_of(base)},
        SOURCES,
        SearchOptions(beam_size=2),
        SPECIAL_IDS,
    )
    assert found["far"].equal < 3
    assert found["same"].equal == 3


def reference_best(backend: FakeBackend, source: list[int], options: SearchOptions) -> list[int]:
    from runtime.search import search

    best = search(backend, [source], options, SPECIAL_IDS)[0][0]
    return [*best.token_ids, EOS] if best.finished else list(best.token_ids)
