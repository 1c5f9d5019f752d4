from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from support.tiny_model import random_transformer

from model.config import StackConfig
from model.eager import EagerBackend
from model.transformer import Transformer, banned_mask
from runtime.errors import BackendError

CONFIGS = [
    {"norm": norm, "positions": positions, "tying": tying}
    for norm, positions, tying in itertools.product(
        ("pre", "post"), ("sinusoidal", "learned", "rotary"), ("all", "decoder", "none")
    )
] + [
    {"activation": "gelu", "head_dim": 12},
    {"attention_scale": 0.3, "embedding_scale": 1.0, "position_offset": 2},
    {
        "encoder": StackConfig(num_layers=1, num_heads=2, ffn_dim=48),
        "decoder": StackConfig(num_layers=3, num_heads=5, ffn_dim=40),
    },
    {"src_vocab_size": 150, "tying": "decoder"},
    *({"cross_score": score} for score in ("dot", "general", "concat", "additive")),
]


def make_batch(model: Transformer, batch: int = 3, length: int = 7, seed: int = 0):
    """src_ids [B,S] with padding, src_mask [B,S]."""
    rng = np.random.default_rng(seed)
    src_ids = rng.integers(4, model.config.src_vocab_size, (batch, length), dtype=np.int32)
    src_mask = (
        np.arange(length)[None, :] < np.array([length - 2 * b for b in range(batch)])[:, None]
    )
    return np.where(src_mask, src_ids, 0).astype(np.int32), src_mask


def forced_log_probs(model: Transformer, src_ids, src_mask, tgt_ids) -> np.ndarray:
    """Teacher forcing, [B,T,V]."""
    with torch.no_grad():
        logits = model(
            torch.from_numpy(src_ids), torch.from_numpy(src_mask), torch.from_numpy(tgt_ids)
        )
        logits[:, :, banned_mask(model.config)] = -1e9
        return logits.log_softmax(-1).numpy()


@pytest.mark.parametrize("changes", CONFIGS, ids=str)
def test_stepping_equals_teacher_forcing(changes) -> None:
    model = random_transformer(**changes)
    src_ids, src_mask = make_batch(model)
    rng = np.random.default_rng(1)
    tgt_ids = rng.integers(4, model.config.tgt_vocab_size, (3, 6), dtype=np.int32)
    tgt_ids[:, 0] = model.config.special_ids.decoder_start_id
    expected = forced_log_probs(model, src_ids, src_mask, tgt_ids)
    backend = EagerBackend(model)
    state = backend.begin(src_ids, src_mask, 1, 6)
    for t in range(6):
        got = backend.step(
            state,
            tgt_ids[:, t : t + 1],
            np.zeros((3, 1), np.int32),
            np.zeros((3, 1), np.float32),
            ban_eos=False,
            need_log_probs=True,
        )
        np.testing.assert_allclose(got.log_probs[:, 0], expected[:, t], rtol=1e-4, atol=1e-4)


def test_beams_follow_their_parents_and_dropped_sentences_leave() -> None:
    """Random parents: each beam's log-probs equal teacher forcing over its own history."""
    model = random_transformer(positions="rotary")
    src_ids, src_mask = make_batch(model)
    backend, rng, beams = EagerBackend(model), np.random.default_rng(2), 4
    state = backend.begin(src_ids, src_mask, beams, 8)
    histories = [[[] for _ in range(beams)] for _ in range(3)]
    alive = [0, 1, 2]
    for t in range(8):
        if t == 4:
            state = backend.keep(state, np.array([0, 2], np.int32))
            alive, histories = [0, 2], [histories[0], histories[2]]
        shape = (len(alive), beams)
        parents = rng.integers(0, beams, shape, dtype=np.int32)
        if t in (0, 3):  # no beam moves
            parents = np.tile(np.arange(beams, dtype=np.int32), (len(alive), 1)) * (t > 0)
        tokens = rng.integers(4, model.config.tgt_vocab_size, shape, dtype=np.int32)
        if t == 0:
            tokens[:] = model.config.special_ids.decoder_start_id
        histories = [
            [history[parents[b, k]] + [int(tokens[b, k])] for k in range(beams)]
            for b, history in enumerate(histories)
        ]
        got = backend.step(
            state, tokens, parents, np.zeros(shape, np.float32), ban_eos=False, need_log_probs=True
        )
        for b, sentence in enumerate(alive):
            row = np.array([sentence] * beams)
            want = forced_log_probs(
                model, src_ids[row], src_mask[row], np.array(histories[b], np.int32)
            )[:, -1]
            np.testing.assert_allclose(got.log_probs[b], want, rtol=1e-4, atol=1e-4)


def test_candidates_are_the_best_of_all_continuations() -> None:
    model = random_transformer()
    src_ids, src_mask = make_batch(model)
    backend = EagerBackend(model)
    state = backend.begin(src_ids, src_mask, 4, 4)
    zeros = np.zeros((3, 4), np.int32)
    sums = np.array([[-1.0, -0.5, -np.inf, -0.5]] * 3, np.float32)
    got = backend.step(state, zeros + 2, zeros, sums, ban_eos=True, need_log_probs=True)
    flat = (got.log_probs + sums[:, :, None]).reshape(3, -1)
    order = np.argsort(-flat, axis=1, kind="stable")[:, :8]
    size = backend.capabilities.vocab_size
    # Beams 1 and 3 have equal scores and histories: every candidate is a tie.
    np.testing.assert_array_equal(got.parents * size + got.token_ids, order)
    np.testing.assert_array_equal(got.scores, np.take_along_axis(flat, order, 1))
    assert got.scores.dtype == np.float32
    assert got.token_ids.dtype == got.parents.dtype == np.int32


def test_banned_ids_and_eos_leave_before_the_softmax() -> None:
    model = random_transformer()
    ids = model.config.special_ids
    src_ids, src_mask = make_batch(model, batch=1)
    backend = EagerBackend(model)
    zeros, sums = np.zeros((1, 1), np.int32), np.zeros((1, 1), np.float32)
    for ban_eos, banned in (
        (False, {ids.pad_id, ids.bos_id, ids.unk_id}),
        (True, {ids.pad_id, ids.bos_id, ids.unk_id, ids.eos_id}),
    ):
        state = backend.begin(src_ids, src_mask, 1, 2)
        got = backend.step(state, zeros + 2, zeros, sums, ban_eos=ban_eos, need_log_probs=True)
        row = got.log_probs[0, 0]
        assert all(row[i] < -1e8 for i in banned)
        assert (row[model.config.tgt_vocab_size :] < -1e8).all()
        assert (row[ids.eos_id] < -1e8) == ban_eos
        assert np.exp(row.astype(np.float64)).sum() == pytest.approx(1.0, abs=1e-5)


def test_what_exceeds_the_model_is_refused() -> None:
    model = random_transformer()
    backend = EagerBackend(model)
    ones = np.ones((1, 65), np.int32)
    with pytest.raises(BackendError, match=r"65 source tokens asked for; the model has .* 64"):
        backend.begin(ones, ones.astype(bool), 1, 4)
    with pytest.raises(BackendError, match=r"65 target tokens \(max_length\)"):
        backend.begin(ones[:, :4], ones[:, :4].astype(bool), 1, 65)
    state = backend.begin(ones[:, :4], ones[:, :4].astype(bool), 1, 1)
    zeros, sums = np.zeros((1, 1), np.int32), np.zeros((1, 1), np.float32)
    backend.step(state, zeros, zeros, sums, ban_eos=False)
    with pytest.raises(BackendError, match=r"step 2 after begin\(max_length=1\)"):
        backend.step(state, zeros, zeros, sums, ban_eos=False)
