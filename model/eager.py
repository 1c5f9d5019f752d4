"""The eager reference: PyTorch behind the `Backend` protocol, for the search and for comparisons.

As quick as plain PyTorch allows, so that comparisons with it are fair: inference_mode, caches
allocated once and reordered only where beams moved, cross keys and values made once a sentence.

Letters: B sentences, K beams, N = B*K, V vocabulary (padded), L layers, H heads, Dh head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model.config import ModelConfig
from model.layers import ExtendCache
from model.transformer import Transformer, banned_mask
from runtime.backend import (
    BoolArray,
    Candidates,
    Capabilities,
    DecoderState,
    FloatArray,
    IntArray,
    check_room,
)
from runtime.cores import check_threads
from runtime.errors import BackendError
from runtime.manifest import SpecialTokenIds

BANNED_LOGIT = -1e9


@dataclass(kw_only=True)
class EagerState:
    """What is carried between steps: `length` tokens of each beam are in the caches."""

    beam_size: int
    length: int
    src_mask: Tensor  # bool [B,S]
    cross: Sequence[tuple[Tensor, Tensor]]  # per layer float32 [B,H,S,Dh] twice
    cache: Tensor  # float32 [2L,N,H,Tmax,Dh]: keys and values of layer i at 2i and 2i+1
    identity: IntArray  # [B,K]: beam_indices under which no beam moves


class EagerBackend:
    """Runs a Transformer as it stands; the model must not be trained meanwhile.

    threads: sets PyTorch's number of threads, for the whole process; None leaves it alone.
    """

    def __init__(self, model: Transformer, threads: int | None = None) -> None:
        check_threads(threads)
        if threads is not None:
            torch.set_num_threads(threads)
        self._model = model.eval()
        self._device = next(model.parameters()).device
        config = model.config
        bias = torch.zeros(banned_mask(config).shape, dtype=torch.float32)  # [V]
        bias[banned_mask(config)] = BANNED_LOGIT
        without_eos = bias.clone()
        without_eos[config.special_ids.eos_id] = BANNED_LOGIT
        self._bias = bias.to(self._device)
        self._bias_without_eos = without_eos.to(self._device)

    @property
    def capabilities(self) -> Capabilities:
        config = self._model.config
        return Capabilities(
            name="eager",
            device=str(self._device),
            precision="fp32",
            vocab_size=self._bias.numel(),
            max_source=config.max_source,
            max_target=config.max_target,
            detail={"torch": torch.__version__, "threads": torch.get_num_threads()},
        )

    @torch.inference_mode()
    def begin(
        self, src_ids: IntArray, src_mask: BoolArray, beam_size: int, max_length: int
    ) -> EagerState:
        """src_ids int32 [B,S], src_mask bool [B,S]. Raises BackendError beyond the limits."""
        config = self._model.config
        for name, found, limit in (
            ("source tokens", src_ids.shape[1], config.max_source),
            ("target tokens (max_length)", max_length, config.max_target),
        ):
            if found > limit:
                raise BackendError(
                    f"{found} {name} asked for; the model has positions for {limit}: shorten the "
                    "input or lower max_length"
                )
        mask = torch.from_numpy(np.ascontiguousarray(src_mask)).to(self._device)
        ids = torch.from_numpy(np.ascontiguousarray(src_ids)).to(self._device)
        sentences, stack = src_ids.shape[0], config.decoder
        shape = (
            2 * stack.num_layers,
            sentences * beam_size,
            stack.num_heads,
            max_length,
            config.head_dim,
        )
        return EagerState(
            beam_size=beam_size,
            length=0,
            src_mask=mask,
            cross=[(k.contiguous(), v.contiguous()) for k, v in self._model.encode(ids, mask)],
            cache=torch.empty(shape, dtype=torch.float32, device=self._device),
            identity=_identity(sentences, beam_size),
        )

    @torch.inference_mode()
    def step(
        self,
        state: DecoderState,
        token_ids: IntArray,
        beam_indices: IntArray,
        sum_log_probs: FloatArray,
        *,
        ban_eos: bool,
        need_log_probs: bool = False,
    ) -> Candidates:
        """token_ids, beam_indices int32 [B,K], sum_log_probs float32 [B,K]."""
        assert isinstance(state, EagerState)
        check_room(state.length, state.cache.size(3))
        self._reorder(state, beam_indices)
        ids = torch.from_numpy(token_ids.reshape(-1, 1)).to(self._device)  # [N,1]
        positions = torch.tensor([state.length], device=self._device)
        hidden = self._model.decoder.step(
            ids, positions, state.cross, state.src_mask, _extenders(state)
        )
        logits = self._model.project_output(hidden[:, 0])  # [N,V]
        state.length += 1
        logits += self._bias_without_eos if ban_eos else self._bias
        log_probs = logits.log_softmax(dim=-1).view(*token_ids.shape, -1)  # [B,K,V]
        sums = torch.from_numpy(np.ascontiguousarray(sum_log_probs)).to(self._device)
        scores, flat_ids = _top(
            (log_probs + sums.unsqueeze(-1)).flatten(1), 2 * state.beam_size
        )  # [B,2K]
        parents, tokens = np.divmod(flat_ids, log_probs.size(-1))
        return Candidates(
            scores=scores,
            token_ids=tokens.astype(np.int32),
            parents=parents.astype(np.int32),
            log_probs=log_probs.cpu().numpy() if need_log_probs else None,
        )

    @torch.inference_mode()
    def keep(self, state: DecoderState, sentences: IntArray) -> EagerState:
        """Goes on with only these sentences: positions 0..B-1, ascending, int32."""
        assert isinstance(state, EagerState)
        if len(sentences) == state.src_mask.size(0):
            return state
        kept = torch.from_numpy(np.asarray(sentences, dtype=np.int64)).to(self._device)
        beams = torch.arange(state.beam_size, device=self._device)
        rows = (kept.unsqueeze(1) * state.beam_size + beams).flatten()  # [N']
        filled = state.cache[:, :, :, : state.length]
        cache = state.cache.new_empty((state.cache.size(0), rows.numel(), *state.cache.shape[2:]))
        cache[:, :, :, : state.length] = filled.index_select(1, rows)
        state.cache = cache
        state.src_mask = state.src_mask.index_select(0, kept)
        state.cross = [(k.index_select(0, kept), v.index_select(0, kept)) for k, v in state.cross]
        state.identity = _identity(len(sentences), state.beam_size)
        return state

    def close(self) -> None:
        """Nothing to free: the model belongs to the caller."""

    def _reorder(self, state: EagerState, beam_indices: IntArray) -> None:
        """Moves each beam's cached keys and values to the beam that continues it."""
        if state.length == 0 or np.array_equal(beam_indices, state.identity):
            return
        first_rows = np.arange(len(beam_indices), dtype=np.int64)[:, None] * state.beam_size
        rows = torch.from_numpy((first_rows + beam_indices).reshape(-1)).to(self._device)  # [N]
        filled = state.cache[:, :, :, : state.length]
        filled.copy_(filled.index_select(1, rows))


def special_token_ids(config: ModelConfig) -> SpecialTokenIds:
    """The config's ids as the search and the translator take them."""
    ids = config.special_ids
    return SpecialTokenIds(
        pad=ids.pad_id,
        unk=ids.unk_id,
        bos=ids.bos_id,
        eos=ids.eos_id,
        decoder_start=ids.decoder_start_id,
        banned=config.banned_ids,
    )


def _identity(sentences: int, beam_size: int) -> IntArray:
    return np.tile(np.arange(beam_size, dtype=np.int32), (sentences, 1))


def _extenders(state: EagerState) -> list[ExtendCache]:
    """One function a layer that stores the new keys and values and gives all so far."""

    def extender(layer: int) -> ExtendCache:
        keys, values = state.cache[2 * layer], state.cache[2 * layer + 1]  # [N,H,Tmax,Dh]
        position = state.length

        def extend(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            keys[:, :, position : position + 1] = k
            values[:, :, position : position + 1] = v
            return keys[:, :, : position + 1], values[:, :, : position + 1]

        return extend

    return [extender(layer) for layer in range(state.cache.size(0) // 2)]


def _top(scores: Tensor, count: int) -> tuple[FloatArray, npt.NDArray[np.int64]]:
    """The best `count` of each row of scores [B, K*V], ties by the lowest index.

    Gives scores float32 and indices int64, both [B, count].
    """
    # One more than needed tells whether a tie straddles the edge, where topk chooses at random.
    best, indices = scores.topk(min(count + 1, scores.size(1)), dim=1)
    values, flat_ids = best.cpu().numpy(), indices.cpu().numpy()
    if values.shape[1] > count and (values[:, count - 1] == values[:, count]).any():
        best, indices = scores.sort(dim=1, descending=True, stable=True)
        return best[:, :count].cpu().numpy(), indices[:, :count].cpu().numpy()
    values, flat_ids = values[:, :count], flat_ids[:, :count]
    order = np.lexsort((flat_ids, -values))  # descending scores, then ascending indices
    return np.take_along_axis(values, order, 1), np.take_along_axis(flat_ids, order, 1)
