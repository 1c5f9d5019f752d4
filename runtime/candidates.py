"""Pure selection: from scores to the candidates of a step, and from candidates to the next beams.

Letters: B sentences, K beam size, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from runtime.backend import Candidates, FloatArray, IntArray

# At or below it a score means "cannot be reached": banned tokens lie at -1e9, dead beams at -inf,
# and no sum of honest log-probabilities comes near.
UNREACHABLE = np.float32(-1e8)


class Beams(NamedTuple):
    """K continuations of each sentence: token_ids, parents [B,K] int32, scores [B,K] float32."""

    token_ids: IntArray
    parents: IntArray
    scores: FloatArray

    def take(self, indices: npt.NDArray[np.integer]) -> Beams:
        """The candidates at indices [B,n] of each sentence."""
        rows = np.arange(len(indices))[:, None]
        return Beams(
            self.token_ids[rows, indices], self.parents[rows, indices], self.scores[rows, indices]
        )

    def first(self, count: int) -> Beams:
        """A copy of the first `count` of each sentence: backends reuse what they return."""
        return Beams(
            self.token_ids[:, :count].copy(),
            self.parents[:, :count].copy(),
            self.scores[:, :count].copy(),
        )

    def rows(self, indices: npt.NDArray[np.integer]) -> Beams:
        """These sentences alone."""
        return Beams(self.token_ids[indices], self.parents[indices], self.scores[indices])


class Choice(NamedTuple):
    """What a step leads to. reached [B,K]: the best candidates, in rank order. going [B,K]: the
    beams that go on. plain: all of reached go on, so the two are the same."""

    reached: Beams
    going: Beams
    plain: bool


def top_indices(values: npt.NDArray[np.floating], count: int) -> npt.NDArray[np.intp]:
    """Indices of the `count` largest of values [n], largest first, ties by lowest index.

    NaN counts as the largest, so that it is seen.
    """
    count = min(count, values.size)
    largest = np.partition(values, values.size - count)[values.size - count :]
    if np.isnan(largest).any():
        values = np.where(np.isnan(values), np.inf, values)
        largest = np.partition(values, values.size - count)[values.size - count :]
    threshold = largest[0]
    above = np.flatnonzero(values > threshold)
    equal = np.flatnonzero(values == threshold)[: count - above.size]
    indices = np.sort(np.concatenate([above, equal]))
    return indices[np.argsort(-values[indices], kind="stable")]


def candidates_from_log_probs(log_probs: FloatArray, sum_log_probs: FloatArray) -> Candidates:
    """The 2K best continuations, as the decoder-step graph computes them.

    log_probs [B,K,V] float32, banned tokens at or below -1e9; sum_log_probs [B,K] float32. One
    float32 addition a candidate, as in the graph, so the two agree bit for bit.
    """
    num_sentences, beam_size, vocab_size = log_probs.shape
    scores = (sum_log_probs[:, :, None] + log_probs).reshape(num_sentences, -1)  # [B, K*V]
    best = np.stack([top_indices(row, 2 * beam_size) for row in scores])  # [B, 2K]
    return Candidates(
        scores=np.take_along_axis(scores, best, axis=1),
        token_ids=(best % vocab_size).astype(np.int32),
        parents=(best // vocab_size).astype(np.int32),
        log_probs=log_probs,
    )


def choose(candidates: Candidates, eos_id: int) -> Choice:
    """Ranks the candidates, and replaces those that end.

    At most steps of most batches nothing ends; these cost a few calls of numpy, whatever the batch,
    since they are most of what a search of one sentence adds to its graphs.
    """
    ranked = sort_candidates(candidates)
    beam_size = ranked.scores.shape[1] // 2
    reached = ranked.first(beam_size)
    last = reached.scores[:, -1]  # NaN, which ranks last, is not above anything
    plain = not np.count_nonzero(reached.token_ids == eos_id) and (
        np.count_nonzero(last > UNREACHABLE) == len(last)
    )
    return Choice(reached, reached if plain else replace_ended(ranked, eos_id), bool(plain))


def sort_candidates(candidates: Candidates) -> Beams:
    """All 2K candidates by score descending, then parent*V + token ascending: [B,2K] each.

    Backends deliver them in this order where they can; TensorRT's TopK promises none among ties.
    """
    scores, token_ids, parents = candidates.scores, candidates.token_ids, candidates.parents
    falling = scores[:, :-1] > scores[:, 1:]
    if np.count_nonzero(falling) == falling.size:
        return Beams(token_ids, parents, scores)
    order = np.lexsort((token_ids, parents, -scores), axis=-1)
    return Beams(token_ids, parents, scores).take(order)


def replace_ended(ranked: Beams, eos_id: int) -> Beams:
    """The K beams that go on: ranked [B,2K] less those that end.

    Rank k stays in slot k unless its token is EOS; then the slot takes the next candidate that is
    not EOS from ranks K..2K-1. There are enough: each beam can end only once, so at most K of the
    2K candidates are EOS.
    """
    beam_size = ranked.token_ids.shape[1] // 2
    is_eos = ranked.token_ids == eos_id  # [B, 2K]
    going = ranked.first(beam_size)
    if np.count_nonzero(is_eos[:, :beam_size]):
        row, slot = np.nonzero(is_eos[:, :beam_size])  # [n] each, row by row: few of B*K
        # By pair, not by sentence: what a step costs here does not grow with the batch.
        spare = np.argsort(is_eos[row, beam_size:], axis=1, kind="stable")  # not EOS first: [n, K]
        pair = np.arange(len(row))
        taken = pair - np.searchsorted(row, row)  # how many slots of the row before it are replaced
        source = beam_size + spare[pair, taken]
        for array, candidates in zip(going, ranked, strict=True):
            array[row, slot] = candidates[row, source]
    return going
