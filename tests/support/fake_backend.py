"""A backend over a table of logits, for tests of everything that stands above the seam.

It computes what the decoder-step graph computes, by the plainest means, and checks that its caller
keeps the contract: shapes, dtypes, states used once, sentences kept in order.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runtime.backend import BoolArray, Candidates, Capabilities, FloatArray, IntArray
from runtime.candidates import candidates_from_log_probs
from runtime.manifest import SpecialTokenIds

PAD, UNK, BOS, EOS = 0, 1, 2, 3
SPECIAL_IDS = SpecialTokenIds(pad=PAD, unk=UNK, bos=BOS, eos=EOS, decoder_start=BOS)

Logits = Callable[[tuple[int, ...], tuple[int, ...]], npt.NDArray[np.float32]]
"""(source ids, target ids so far without the start id) -> logits [V]."""


def random_logits(
    vocab_size: int, seed: int = 0, scale: float = 2.0, eos_bias: float = 0.0
) -> Logits:
    """Logits that depend on the whole history: a fresh random row for each source and prefix."""

    def logits(source: tuple[int, ...], prefix: tuple[int, ...]) -> npt.NDArray[np.float32]:
        key = zlib.crc32(repr((seed, source, prefix)).encode())
        row = (np.random.default_rng(key).standard_normal(vocab_size) * scale).astype(np.float32)
        row[EOS] += eos_bias
        return row

    return logits


def copying_logits(vocab_size: int) -> Logits:
    """A model that repeats its source, nearly surely."""

    def logits(source: tuple[int, ...], prefix: tuple[int, ...]) -> npt.NDArray[np.float32]:
        row = np.zeros(vocab_size, dtype=np.float32)
        row[source[len(prefix)] if len(prefix) < len(source) else EOS] = 20.0
        return row

    return logits


@dataclass
class FakeState:
    sources: list[tuple[int, ...]]
    prefixes: list[list[tuple[int, ...]]] | None  # [B][K]; None before the first step
    beam_size: int
    steps_left: int
    consumed: bool = False


class FakeBackend:
    """banned: ids that leave the logits before the softmax, as the graphs ban pad, bos and unk."""

    def __init__(
        self,
        logits: Logits,
        vocab_size: int,
        *,
        banned: tuple[int, ...] = (PAD, UNK, BOS),
        max_source: int | None = 64,
        max_target: int | None = 64,
    ) -> None:
        self.logits, self.banned = logits, list(banned)
        self.capabilities = Capabilities(
            name="fake",
            device="cpu",
            precision="fp32",
            vocab_size=vocab_size,
            max_source=max_source,
            max_target=max_target,
        )
        self.begun: list[tuple[int, int]] = []  # shape of src_ids of every batch
        self.rows_stepped = 0
        self.closed = False

    def begin(
        self, src_ids: IntArray, src_mask: BoolArray, beam_size: int, max_length: int
    ) -> FakeState:
        assert src_ids.dtype == np.int32
        assert src_mask.dtype == np.bool_
        assert src_ids.shape == src_mask.shape
        self.begun.append((src_ids.shape[0], src_ids.shape[1]))
        sources = [tuple(row[mask].tolist()) for row, mask in zip(src_ids, src_mask, strict=True)]
        return FakeState(sources, None, beam_size, max_length)

    def step(
        self,
        state: FakeState,
        token_ids: IntArray,
        beam_indices: IntArray,
        sum_log_probs: FloatArray,
        *,
        ban_eos: bool,
        need_log_probs: bool = False,
    ) -> Candidates:
        shape = (len(state.sources), state.beam_size)
        assert not state.consumed
        assert state.steps_left > 0
        assert token_ids.shape == beam_indices.shape == sum_log_probs.shape == shape
        assert token_ids.dtype == beam_indices.dtype == np.int32
        assert sum_log_probs.dtype == np.float32
        for array in (token_ids, beam_indices, sum_log_probs):
            assert array.flags.c_contiguous
        if state.prefixes is None:
            assert not beam_indices.any()
            state.prefixes = [[()] * state.beam_size for _ in state.sources]
        else:
            state.prefixes = [
                [(*old[parent], token) for token, parent in zip(tokens, parents, strict=True)]
                for old, tokens, parents in zip(
                    state.prefixes, token_ids.tolist(), beam_indices.tolist(), strict=True
                )
            ]
        state.steps_left -= 1
        self.rows_stepped += token_ids.size
        log_probs = np.stack(
            [
                np.stack([self.log_probs(source, prefix, ban_eos) for prefix in prefixes])
                for source, prefixes in zip(state.sources, state.prefixes, strict=True)
            ]
        )
        found = candidates_from_log_probs(log_probs, sum_log_probs)
        return Candidates(
            scores=found.scores,
            token_ids=found.token_ids,
            parents=found.parents,
            log_probs=log_probs if need_log_probs else None,
        )

    def log_probs(
        self, source: tuple[int, ...], prefix: tuple[int, ...], ban_eos: bool
    ) -> npt.NDArray[np.float32]:
        row = self.logits(source, prefix).astype(np.float64)
        row[self.banned] = -1e9
        if ban_eos:
            row[EOS] = -1e9
        row -= row.max()
        result: npt.NDArray[np.float32] = (row - np.log(np.exp(row).sum())).astype(np.float32)
        return result

    def keep(self, state: FakeState, sentences: IntArray) -> FakeState:
        assert not state.consumed
        assert sentences.dtype == np.int32
        assert state.prefixes is not None
        order = sentences.tolist()
        assert order == sorted(set(order))
        state.consumed = True
        return FakeState(
            [state.sources[i] for i in order],
            [state.prefixes[i] for i in order],
            state.beam_size,
            state.steps_left,
        )

    def close(self) -> None:
        self.closed = True
