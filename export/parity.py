"""Does a backend compute what the reference computes: log-probabilities, and whole searches.

Two questions. At every step of the reference's own translations, fed token by token to both, how
far apart are the log-probabilities? And do searches of their own, with the same options, find the
same translation? Where they don't, the reference scores both: within TIE it is a tie.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from export.errors import ParityError
from runtime.backend import Backend, Capabilities, FloatArray
from runtime.candidates import UNREACHABLE
from runtime.manifest import SpecialTokenIds
from runtime.options import SearchOptions
from runtime.search import Hypothesis, normalise, pad_sources, search

TIE = 1e-4
"""Two translations whose scores by the reference are this close are equally good."""


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """What a precision is allowed: the largest difference of a log-probability (natural log), the
    mean of these differences, the share of searches that may find something else, and by how much
    that may be worse (ParityReport.score_loss). None: no bound."""

    max_log_prob: float | None
    mean_log_prob: float
    different: float | None
    score_loss: float | None = None


TOLERANCES: dict[str, Tolerance] = {
    "fp32": Tolerance(max_log_prob=1e-4, mean_log_prob=1e-5, different=0.0),
    "fp16": Tolerance(max_log_prob=0.5, mean_log_prob=0.02, different=0.02),
    # A token of probability 1e-9 may move by a whole unit and harm nobody: no bound on the largest.
    # A model that is not sure of itself finds other words that are as good. So words are not
    # counted, but how much worse they are: after 21 updates every fifth sentence, by 0.007.
    "int8": Tolerance(max_log_prob=None, mean_log_prob=0.2, different=None, score_loss=0.05),
    "int8_fp16": Tolerance(max_log_prob=None, mean_log_prob=0.2, different=None, score_loss=0.05),
}


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    """A sentence whose translations differ. Scores: of both, normalised, by the reference."""

    index: int
    reference_ids: tuple[int, ...]
    candidate_ids: tuple[int, ...]
    reference_score: float
    candidate_score: float

    @property
    def is_tie(self) -> bool:
        return abs(self.reference_score - self.candidate_score) <= TIE


@dataclass(frozen=True, kw_only=True)
class ParityReport:
    """What was compared and found. steps: decoding steps whose log-probabilities were compared;
    log_prob_max, log_prob_mean: differences of these over all tokens that can be predicted."""

    reference: str
    candidate: str
    precision: str
    beam_size: int
    sentences: int
    equal: int
    ties: int
    different: int
    steps: int
    log_prob_max: float
    log_prob_mean: float
    disagreements: tuple[Disagreement, ...] = ()

    @property
    def problems(self) -> list[str]:
        """What lies outside the tolerances of the precision; empty where parity holds."""
        allowed = TOLERANCES[self.precision]
        found = []
        bound = allowed.max_log_prob
        if bound is not None and not self.log_prob_max <= bound:
            found.append(
                f"log-probabilities differ by up to {self.log_prob_max:.2g}, allowed {bound}"
            )
        if not self.log_prob_mean <= allowed.mean_log_prob:
            found.append(
                f"log-probabilities differ by {self.log_prob_mean:.2g} on average, allowed "
                f"{allowed.mean_log_prob}"
            )
        if allowed.different is not None and self.different > allowed.different * self.sentences:
            found.append(
                f"{self.different} of {self.sentences} translations differ, allowed "
                f"{allowed.different:.0%}"
            )
        if allowed.score_loss is not None and not self.score_loss <= allowed.score_loss:
            found.append(
                f"translations score {self.score_loss:.2g} a token lower by the reference, allowed "
                f"{allowed.score_loss}"
            )
        return found

    @property
    def score_loss(self) -> float:
        """By how much the candidate's translations score lower than the reference's own, by the
        reference and normalised, averaged over all sentences; those that score higher count 0."""
        losses = (d.reference_score - d.candidate_score for d in self.disagreements)
        return sum(max(0.0, loss) for loss in losses) / self.sentences

    @property
    def passed(self) -> bool:
        return not self.problems

    @property
    def summary(self) -> str:
        """One line: what was found, and beside it in brackets what is required."""
        allowed = TOLERANCES[self.precision]
        different = f"{self.different} different{_most(allowed.different, '.0%')}"
        if allowed.score_loss is not None:
            loss = f"{self.score_loss:.2g} a token{_most(allowed.score_loss)}"
            different = f"{different}, worse by {loss}"
        return (
            f"against {self.reference}, beam {self.beam_size}: {self.equal} of {self.sentences} "
            f"equal, {self.ties} ties, {different}; log-probs over {self.steps} steps "
            f"differ by up to {self.log_prob_max:.1e}{_most(allowed.max_log_prob)}, on average by "
            f"{self.log_prob_mean:.1e}{_most(allowed.mean_log_prob)}"
        )

    def require(self) -> None:
        """Raises ParityError, naming what differs, where parity doesn't hold."""
        if self.problems:
            first = next((d for d in self.disagreements if not d.is_tie), None)
            example = "" if first is None else f"; the first is sentence {first.index}"
            raise ParityError(
                f"{self.candidate} does not compute what {self.reference} computes: "
                f"{'; '.join(self.problems)}{example}. Build again with the versions of "
                "constraints.txt, and report this if it stays"
            )

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "passed": self.passed, "summary": self.summary}


def _most(bound: float | None, form: str = "g") -> str:
    return "" if bound is None else f" (at most {bound:{form}})"


def check_parity(
    reference: Backend,
    candidate: Backend,
    sources: Sequence[Sequence[int]],
    special_ids: SpecialTokenIds,
    options: SearchOptions | None = None,
    *,
    batch_size: int = 32,
) -> ParityReport:
    """Compares two backends over the same weights on sources: token ids, EOS included.

    Both search in the same batches of at most batch_size sentences of similar lengths. Costs about
    three searches. Raises ParityError when there are no sources, BackendError when a backend fails.
    """
    if not sources:
        raise ParityError("there are no sentences to check parity with; give at least one")
    options = options if options is not None else SearchOptions()
    differences = _Differences()
    disagreements: list[Disagreement] = []
    for indices in _batches(sources, batch_size):
        batch = [sources[i] for i in indices]
        expected = [found[0] for found in search(reference, batch, options, special_ids)]
        found = [found[0] for found in search(candidate, batch, options, special_ids)]
        _compare_steps(reference, candidate, batch, expected, special_ids, differences)
        differing = [n for n in range(len(batch)) if not _same(expected[n], found[n])]
        if differing:
            disagreements += _judge(
                reference,
                [(indices[n], batch[n], expected[n], found[n]) for n in differing],
                special_ids,
                options,
            )
    ties = sum(disagreement.is_tie for disagreement in disagreements)
    return ParityReport(
        reference=_label(reference.capabilities),
        candidate=_label(candidate.capabilities),
        precision=candidate.capabilities.precision,
        beam_size=options.beam_size,
        sentences=len(sources),
        equal=len(sources) - len(disagreements),
        ties=ties,
        different=len(disagreements) - ties,
        steps=differences.steps,
        log_prob_max=differences.largest,
        log_prob_mean=differences.mean,
        disagreements=tuple(sorted(disagreements, key=lambda d: d.index)),
    )


def forced_log_probs(
    backend: Backend,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    special_ids: SpecialTokenIds,
) -> Iterator[FloatArray]:
    """Feeds targets, EOS included where there is one, token by token.

    Gives, for each step, the log-probabilities [B,V] of the token that comes next; rows whose
    target has ended go on with padding and mean nothing.
    """
    longest = max(len(target) for target in targets)
    state = backend.begin(*pad_sources(sources, special_ids.pad), 1, longest)
    zeros = np.zeros((len(sources), 1), dtype=np.int32)
    sums = np.zeros((len(sources), 1), dtype=np.float32)
    for step in range(longest):
        fed = [special_ids.decoder_start if step == 0 else _at(t, step - 1) for t in targets]
        token_ids = np.array(fed, dtype=np.int32)[:, None]  # [B,1]
        candidates = backend.step(state, token_ids, zeros, sums, ban_eos=False, need_log_probs=True)
        assert candidates.log_probs is not None
        yield candidates.log_probs[:, 0]


class _Differences:
    """Running figures over absolute differences of log-probabilities."""

    def __init__(self) -> None:
        self.steps, self.largest = 0, 0.0
        self._sum, self._count = 0.0, 0

    def add(self, expected: FloatArray, found: FloatArray) -> None:
        """expected, found [rows, V]; banned tokens must be the same and are left out."""
        can = expected > UNREACHABLE
        if not np.array_equal(can, found > UNREACHABLE) or np.isnan(found).any():
            self.largest = self._sum = float("inf")
        difference = np.abs(expected - found)[can]
        self.steps += len(expected)
        self.largest = max(self.largest, float(difference.max(initial=0.0)))
        self._sum += float(difference.sum(dtype=np.float64))
        self._count += difference.size

    @property
    def mean(self) -> float:
        return self._sum / max(1, self._count)


def _compare_steps(
    reference: Backend,
    candidate: Backend,
    sources: Sequence[Sequence[int]],
    hypotheses: Sequence[Hypothesis],
    special_ids: SpecialTokenIds,
    differences: _Differences,
) -> None:
    targets = [_target(hypothesis, special_ids.eos) for hypothesis in hypotheses]
    both = (forced_log_probs(b, sources, targets, special_ids) for b in (reference, candidate))
    for step, (expected, found) in enumerate(zip(*both, strict=True)):
        live = np.array([len(target) > step for target in targets])
        differences.add(expected[live], found[live])


def _judge(
    reference: Backend,
    cases: Sequence[tuple[int, Sequence[int], Hypothesis, Hypothesis]],
    special_ids: SpecialTokenIds,
    options: SearchOptions,
) -> list[Disagreement]:
    """Scores both translations of each case by the reference, all in one batch."""
    sources = [source for _, source, _, _ in cases for _ in range(2)]
    targets = [_target(h, special_ids.eos) for _, _, *pair in cases for h in pair]
    sums = np.zeros(len(targets), dtype=np.float64)
    for step, log_probs in enumerate(forced_log_probs(reference, sources, targets, special_ids)):
        for row, target in enumerate(targets):
            if step < len(target):
                sums[row] += log_probs[row, target[step]]
    scores = [normalise(s, len(t), options) for s, t in zip(sums, targets, strict=True)]
    return [
        Disagreement(
            index=index,
            reference_ids=expected.token_ids,
            candidate_ids=found.token_ids,
            reference_score=scores[2 * n],
            candidate_score=scores[2 * n + 1],
        )
        for n, (index, _, expected, found) in enumerate(cases)
    ]


def _batches(sources: Sequence[Sequence[int]], batch_size: int) -> Iterator[list[int]]:
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def _same(one: Hypothesis, other: Hypothesis) -> bool:
    return one.token_ids == other.token_ids and one.finished == other.finished


def _target(hypothesis: Hypothesis, eos_id: int) -> list[int]:
    return [*hypothesis.token_ids, *([eos_id] if hypothesis.finished else [])]


def _at(target: Sequence[int], step: int) -> int:
    return target[step] if step < len(target) else target[-1]


def _label(capabilities: Capabilities) -> str:
    return f"{capabilities.name} {capabilities.precision}"
