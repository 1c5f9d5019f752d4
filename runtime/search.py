"""The one decode loop: greedy search, beam search and sampling over any Backend.

It sees the model only through `begin`, `step` and `keep`, and text not at all. Its rules are
CTranslate2's; docs/decisions/0003-search-semantics.md spells them out and names the exceptions.

Letters: B sentences still searched, K beams of each, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from runtime.backend import Backend, BoolArray, Candidates, Capabilities, FloatArray, IntArray
from runtime.candidates import UNREACHABLE, Beams, Choice, choose
from runtime.errors import BackendError, OptionError, SplitBatchError
from runtime.manifest import SpecialTokenIds
from runtime.options import SearchOptions
from runtime.sampling import draw, uniform


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """One target sentence that a search found.

    token_ids: without EOS. score: sum_log_prob, normalised by the length. sum_log_prob: EOS counted
    where there is one. finished: False if it was cut at max_length.
    """

    token_ids: tuple[int, ...]
    score: float
    sum_log_prob: float
    finished: bool


def search(
    backend: Backend,
    sources: Sequence[Sequence[int]],
    options: SearchOptions,
    special_ids: SpecialTokenIds,
    *,
    input_indices: Sequence[int] | None = None,
    all_ended: bool = False,
) -> list[list[Hypothesis]]:
    """The best hypotheses of each source, best first: at least one, at most num_hypotheses.

    all_ended: instead all that ended, in the order in which they did. Which these are does not
    depend on the length penalty, so one search serves every penalty.

    sources: B lists of token ids, EOS included, of any lengths. input_indices [B]: what sampling
    keys its draws by; 0..B-1 if not given. Searched apart where the backend can't take them
    together. Raises OptionError for lengths beyond the model's limits, BackendError if the model
    computes NaN.
    """
    if not sources:
        return []
    keys = np.arange(len(sources)) if input_indices is None else np.asarray(input_indices)
    try:
        return _search_together(backend, sources, options, special_ids, keys, all_ended)
    except SplitBatchError as split:
        groups = split.groups
    found: list[list[Hypothesis]] = [[] for _ in sources]
    for group in groups:
        some = [sources[i] for i in group]
        results = search(
            backend, some, options, special_ids,
            input_indices=keys[group].tolist(), all_ended=all_ended,
        )  # fmt: skip
        for i, result in zip(group, results, strict=True):
            found[i] = result
    return found


def _search_together(
    backend: Backend,
    sources: Sequence[Sequence[int]],
    options: SearchOptions,
    special_ids: SpecialTokenIds,
    keys: npt.NDArray[np.int64],
    all_ended: bool,
) -> list[list[Hypothesis]]:
    """The decode loop, for one batch. keys [B]: what sampling keys its draws by."""
    limits = max_lengths([len(source) for source in sources], options, backend.capabilities)
    next_limit = int(limits.min())
    beam_size = options.num_hypotheses if options.sampling else options.beam_size
    found = _Found(len(sources), beam_size, options, special_ids.eos)
    rows = np.arange(len(sources))  # which sources are still searched: [B]
    beams = _start(len(sources), beam_size, options, special_ids.decoder_start)
    state = backend.begin(*pad_sources(sources, special_ids.pad), beam_size, int(limits.max()))
    for step in range(int(limits.max())):
        candidates = backend.step(
            state,
            *beams,
            ban_eos=step < options.min_length,
            need_log_probs=options.sampling,
        )
        if options.sampling:
            choice = _draw_beams(candidates, beams, options, special_ids.eos, keys[rows], step)
        else:
            choice = choose(candidates, special_ids.eos)
        if not choice.plain and np.count_nonzero(np.isnan(choice.reached.scores)):
            raise BackendError(_nan_text(backend.capabilities, step))
        beams = choice.going
        done = found.add(rows, choice, limits == step + 1 if step + 1 >= next_limit else None)
        if done is None:
            continue
        going = np.flatnonzero(~done)
        if not len(going):
            break
        if len(going) < len(rows):
            rows, limits, beams = rows[going], limits[going], beams.rows(going)
            next_limit = int(limits.min())
            state = backend.keep(state, going.astype(np.int32))
    return found.ended() if all_ended else found.results()


def max_lengths(
    source_lengths: Sequence[int], options: SearchOptions, capabilities: Capabilities
) -> npt.NDArray[np.int64]:
    """The most target tokens, EOS counted, of each source: [B].

    It depends on that source alone, not on what it is batched with: options.max_length, or
    2S + 20 (but no less than min_length) within the model's limit.
    """
    longest, limit = max(source_lengths), capabilities.max_target
    if capabilities.max_source is not None and longest > capabilities.max_source:
        raise OptionError(
            f"a source has {longest} tokens; the model reads at most {capabilities.max_source}, "
            "EOS included: cut the source"
        )
    for name in ("max_length", "min_length"):
        value = getattr(options, name)
        if limit is not None and value is not None and value > limit:
            raise OptionError(f"{name} is {value}; this model makes at most {limit} tokens")
    lengths = np.array([max(2 * length + 20, options.min_length) for length in source_lengths])
    if options.max_length is not None:
        lengths[:] = options.max_length
    return lengths if limit is None else np.minimum(lengths, limit)


def pad_sources(sources: Sequence[Sequence[int]], pad_id: int) -> tuple[IntArray, BoolArray]:
    """src_ids [B,S] int32 and src_mask [B,S] bool (True = a real token), padded on the right."""
    lengths = np.array([len(source) for source in sources])
    if lengths.min() == 0:
        raise OptionError("a source has no tokens; expected at least EOS")
    src_mask = np.arange(lengths.max()) < lengths[:, None]
    src_ids = np.full(src_mask.shape, pad_id, dtype=np.int32)
    src_ids[src_mask] = np.concatenate([np.asarray(source, dtype=np.int32) for source in sources])
    return src_ids, src_mask


def normalise(sum_log_prob: float, length: int, options: SearchOptions) -> float:
    """The score of a hypothesis of `length` tokens, EOS counted.

    power: sum / length**alpha. gnmt: sum / ((5 + length) / 6)**alpha (Wu et al. 2016, section 7).
    """
    base = length if options.length_penalty_kind == "power" else (5 + length) / 6
    return float(sum_log_prob / base**options.length_penalty)


def _start(num_sentences: int, beam_size: int, options: SearchOptions, start_id: int) -> Beams:
    """One empty hypothesis a sentence, or, when sampling, one for each sample."""
    shape = (num_sentences, beam_size)
    sums = np.zeros(shape, dtype=np.float32)
    if not options.sampling:
        sums[:, 1:] = -np.inf
    token_ids = np.full(shape, start_id, dtype=np.int32)
    return Beams(token_ids, np.zeros(shape, dtype=np.int32), sums)


def _draw_beams(
    candidates: Candidates,
    beams: Beams,
    options: SearchOptions,
    eos_id: int,
    keys: npt.NDArray[np.int64],
    step: int,
) -> Choice:
    """Sampling's choice: what each sample reached, and the same with ended samples dead."""
    log_probs = candidates.log_probs
    assert log_probs is not None
    num_sentences, beam_size = beams.scores.shape
    token_ids = np.full((num_sentences, beam_size), eos_id, dtype=np.int32)
    scores = np.full((num_sentences, beam_size), -np.inf, dtype=np.float32)
    for row, sample in np.argwhere(beams.scores > UNREACHABLE).tolist():
        distribution = log_probs[row, sample]
        if np.isnan(distribution).any():
            scores[row, sample] = np.nan
            continue
        token_id = draw(distribution, options, uniform(options.seed, int(keys[row]), sample, step))
        token_ids[row, sample] = token_id
        scores[row, sample] = beams.scores[row, sample] + distribution[token_id]
    own = np.tile(np.arange(beam_size, dtype=np.int32), (num_sentences, 1))
    going = np.where(token_ids == eos_id, np.float32(-np.inf), scores)
    return Choice(Beams(token_ids, own, scores), Beams(token_ids, own, going), plain=False)


def _nan_text(capabilities: Capabilities, step: int) -> str:
    return (
        f"the {capabilities.name} backend ({capabilities.precision}) computed NaN at step {step}; "
        "its weights are damaged or its precision overflows: try precision fp32"
    )


class _Step(NamedTuple):
    """The beams that went on after a step. row_of [sources]: which row each source has, where it is
    there. token_ids, parents [B,K]."""

    row_of: list[int]
    token_ids: IntArray
    parents: IntArray


class _Ended(NamedTuple):
    """Hypotheses that ended at one step: [n] each, by row, then rank."""

    step: int
    sources: npt.NDArray[np.intp]
    parents: IntArray  # the beam of the step before that each continues
    token_ids: IntArray  # the last of each
    sums: FloatArray


class _End(NamedTuple):
    """One hypothesis that ended. parent: the beam of the step before that it continues."""

    step: int
    parent: int
    token_id: int
    sum_log_prob: float
    score: float


class _Found:
    """The hypotheses that ended, and the back-pointers that spell them when all have ended."""

    def __init__(
        self, num_sources: int, beam_size: int, options: SearchOptions, eos_id: int
    ) -> None:
        self._options, self._eos_id = options, eos_id
        self._beam_size = beam_size
        # K=1 is CTranslate2's greedy loop, which knows no patience.
        self._enough = 1 if beam_size == 1 else options.max_finished
        if options.sampling:
            self._enough = beam_size
        self._rows: npt.NDArray[np.intp] | None = None  # of the last step
        self._row_of = [0] * num_sources
        self._steps: list[_Step] = []
        self._ended: list[_Ended] = []
        self._counts = np.zeros(num_sources, dtype=np.int64)  # of ended

    def add(
        self, rows: npt.NDArray[np.intp], choice: Choice, at_limit: BoolArray | None
    ) -> BoolArray | None:
        """Stores what ended at this step; True for each of rows [B] whose search is over, or None
        where nothing has changed: most steps, so these are to cost little.

        at_limit [B]: max_length is reached, so all that was reached ends here; None is all False.
        """
        done = None
        if at_limit is not None or not choice.plain:
            done = self._end(rows, choice, at_limit)
        if rows is not self._rows:
            self._rows, self._row_of = rows, self._row_of.copy()
            for row, source in enumerate(rows.tolist()):
                self._row_of[source] = row
        self._steps.append(_Step(self._row_of, choice.going.token_ids, choice.going.parents))
        return done

    def _end(
        self, rows: npt.NDArray[np.intp], choice: Choice, at_limit: BoolArray | None
    ) -> BoolArray:
        reached = choice.reached
        ends = reached.token_ids == self._eos_id
        alive = choice.going.scores > UNREACHABLE
        if at_limit is not None:
            ends = ends | at_limit[:, None]
        ends = ends & (reached.scores > UNREACHABLE)
        if np.count_nonzero(ends):
            self._store(rows, reached, *np.nonzero(ends))
        counts = self._counts[rows]
        done: BoolArray = (counts >= self._enough) | ~alive.any(axis=1)
        if at_limit is not None:
            done |= at_limit
        nothing = np.flatnonzero(done & (counts == 0))  # could be reached: the best of that
        if len(nothing):
            self._store(rows, reached, nothing, np.zeros_like(nothing))
        return done

    def _store(
        self,
        rows: npt.NDArray[np.intp],
        reached: Beams,
        places: npt.NDArray[np.intp],
        ranks: npt.NDArray[np.intp],
    ) -> None:
        """places, ranks [n]: which of rows [B], and which of its candidates, has ended."""
        sources = rows[places]
        self._ended.append(
            _Ended(
                len(self._steps),
                sources,
                reached.parents[places, ranks],
                reached.token_ids[places, ranks],
                reached.scores[places, ranks],
            )
        )
        self._counts += np.bincount(sources, minlength=len(self._counts))

    def ended(self) -> list[list[Hypothesis]]:
        """Of each source, in the order in which they ended."""
        return self._spelt(self._ends())

    def results(self) -> list[list[Hypothesis]]:
        """Best first; among equal scores the one that ended first. Only these are spelt."""
        count = self._options.num_hypotheses
        return self._spelt(
            [sorted(ends, key=lambda end: -end.score)[:count] for ends in self._ends()]
        )

    def _ends(self) -> list[list[_End]]:
        """Of each source, in the order in which they ended."""
        found: list[list[_End]] = [[] for _ in self._counts]
        for ended in self._ended:
            arrays = (ended.sources, ended.parents, ended.token_ids, ended.sums)
            for source, beam, last, sum_log_prob in zip(*(a.tolist() for a in arrays), strict=True):
                score = normalise(sum_log_prob, ended.step + 1, self._options)
                found[source].append(_End(ended.step, beam, last, sum_log_prob, score))
        return found

    def _spelt(self, ends: list[list[_End]]) -> list[list[Hypothesis]]:
        # Lists, since single numbers of an array take several times as long.
        steps = [
            (step.row_of, step.token_ids.ravel().tolist(), step.parents.ravel().tolist())
            for step in self._steps
        ]
        found = []
        for source, its_ends in enumerate(ends):
            found.append([self._spell(source, end, steps) for end in its_ends])
        return found

    def _spell(
        self, source: int, end: _End, steps: list[tuple[list[int], list[int], list[int]]]
    ) -> Hypothesis:
        """Follows the back-pointers. steps: row_of, token_ids, parents of each, flat."""
        beam, is_eos = end.parent, end.token_id == self._eos_id
        token_ids = [] if is_eos else [end.token_id]
        for row_of, tokens, parents in steps[: end.step][::-1]:
            place = row_of[source] * self._beam_size + beam
            token_ids.append(tokens[place])
            beam = parents[place]
        return Hypothesis(
            token_ids=tuple(reversed(token_ids)),
            score=end.score,
            sum_log_prob=end.sum_log_prob,
            finished=is_eos,
        )
