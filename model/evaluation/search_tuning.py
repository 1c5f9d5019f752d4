"""Which length penalty (and beam) scores best on validation lines; never to be asked of a test set.

The search ends its hypotheses without looking at the length penalty, which only ranks those that
ended (docs/decisions/0003-search-semantics.md, rules 3 to 6). So one search of each beam size
serves all penalties.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from model.errors import DataError
from model.evaluation.bootstrap import (
    RESAMPLES,
    FloatArray,
    PairedDifference,
    paired_difference,
    resampled_scores,
    score,
    sentence_counts,
)
from model.evaluation.metrics import METRIC_NAMES, metrics_for, signature
from model.evaluation.sets import EvaluationFiles, EvaluationSet
from model.evaluation.systems import System
from runtime.errors import OptionError
from runtime.options import SearchOptions
from runtime.search import Hypothesis, normalise
from runtime.translator import Translator

_log = logging.getLogger(__name__)

LENGTH_PENALTIES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One point of the grid. score: BLEU, 0 to 100. length_ratio: tokens of the translations (as
    BLEU splits them) for each of the references."""

    options: SearchOptions
    score: float
    length_ratio: float


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """trials: of every beam size and length penalty. best: the one with the highest score; the
    present options where they score as high. present: as the system searches without being told.
    difference: of the best from the present."""

    trials: tuple[Trial, ...]
    best: Trial
    present: Trial
    difference: PairedDifference
    metric: str
    signature: str
    num_lines: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def at_edge(self) -> bool:
        """Whether the best penalty is the smallest or the largest of several that were tried."""
        tried = {trial.options.length_penalty for trial in self.trials}
        return len(tried) > 1 and self.best.options.length_penalty in (min(tried), max(tried))

    @property
    def flags(self) -> str:
        options = self.best.options
        return f"--beam-size {options.beam_size} --length-penalty {options.length_penalty:g}"

    def render(self) -> str:
        """A line for each trial, and what they say."""
        rows = [f"{'beam':>4}  {'length penalty':>14}  {self.metric:>8}  {'length':>6}"]
        for trial in self.trials:
            options = trial.options
            mark = "  <- best" if trial is self.best else ""
            rows.append(
                f"{options.beam_size:>4}  {options.length_penalty:>14g}  {trial.score:>8.2f}  "
                f"{trial.length_ratio:>6.3f}{mark}"
            )
        rows += ["", f"on {self.num_lines:,} validation lines; {self.signature}"]
        present = self.present.options
        if self.best.options == present:
            rows.append(f"the best is what it searches with already: {self.flags}")
        else:
            rows.append(
                f"{self.flags} against beam {present.beam_size}, length penalty "
                f"{present.length_penalty:g}: {self.difference.text}"
            )
        if self.at_edge:
            rows.append("the best penalty is at the edge of what was tried: try some beyond")
        return "\n".join(rows)


def validation_set(system: System, files: EvaluationFiles) -> EvaluationSet:
    """Of the files, or else of the validation lines that the system's checkpoint carries.

    Raises OptionError where there are neither, and as EvaluationFiles.read does.
    """
    if files.any_given:
        return files.read()
    if system.samples is None or not system.samples.valid:
        raise OptionError(
            f"{system.source} carries no validation lines; give some with --src and --ref, or --tsv"
        )
    return EvaluationSet.from_pairs(system.samples.valid)


def tune_search(
    translator: Translator,
    valid: EvaluationSet,
    *,
    base: SearchOptions,
    length_penalties: Sequence[float] = LENGTH_PENALTIES,
    beam_sizes: Sequence[int] = (),
    metric_name: str = METRIC_NAMES[0],
    target_language: str = "",
) -> Tuning:
    """Scores every length penalty with every beam size, the present options among them.

    valid: validation lines, with sources; those that are empty or longer than the model reads are
    left out. base: the options for all else; they are tried as well. beam_sizes: base's if none
    are given. metric_name: "BLEU" or "BLEU -lc". Raises DataError where no line is left, and
    OptionError for options that can't be served, before anything is searched.
    """
    grid = _grid(base, length_penalties, beam_sizes)
    for options in grid:
        translator.check(options)
    sources, references = _usable(translator, valid)
    metric = metrics_for(references, target_language)[METRIC_NAMES.index(metric_name)]
    counts: dict[SearchOptions, FloatArray] = {}
    for beam_size in dict.fromkeys(options.beam_size for options in grid):
        searched = dataclasses.replace(base, beam_size=beam_size)
        _log.info("searching %s lines with beam %d", f"{len(sources):,}", beam_size)
        ended = translator.search_ids(sources, searched, all_ended=True)
        for options in grid:
            if options.beam_size == beam_size:
                texts = [_best_text(translator, several, options) for several in ended]
                counts[options] = sentence_counts(metric, texts, references)
    trials = {options: _trial(metric, options, counts[options]) for options in grid}
    best = max(trials.values(), key=lambda trial: (trial.score, trial.options == base))
    ours, present = resampled_scores(
        [(metric, counts[best.options]), (metric, counts[base])], RESAMPLES
    )
    return Tuning(
        trials=tuple(trials.values()),
        best=best,
        present=trials[base],
        difference=paired_difference(best.score - trials[base].score, ours, present),
        metric=metric_name,
        signature=signature(metric, RESAMPLES),
        num_lines=len(sources),
    )


def _grid(
    base: SearchOptions, length_penalties: Sequence[float], beam_sizes: Sequence[int]
) -> list[SearchOptions]:
    """All pairs, in order of beam size, then penalty, each once; the base's own among them."""
    pairs = {
        (beam_size, float(penalty))
        for beam_size in beam_sizes or (base.beam_size,)
        for penalty in length_penalties
    }
    pairs.add((base.beam_size, float(base.length_penalty)))
    return [
        dataclasses.replace(base, beam_size=beam_size, length_penalty=penalty)
        for beam_size, penalty in sorted(pairs)
    ]


def _usable(
    translator: Translator, valid: EvaluationSet
) -> tuple[list[list[int]], list[tuple[str, ...]]]:
    """Token ids, EOS included, and the references of the lines that the model reads whole."""
    assert valid.sources is not None
    limit = translator.capabilities.max_source
    encoded = [translator.source_tokenizer.encode_source(line) for line in valid.sources]
    chosen = [i for i, ids in enumerate(encoded) if 1 < len(ids) <= (limit or len(ids))]
    if not chosen:
        raise DataError(
            f"none of {len(encoded):,} validation lines can be used: they are empty, or longer "
            f"than the {limit} tokens that the model reads"
        )
    if len(chosen) < len(encoded):
        _log.warning(
            "%d of %d lines are left out: they are empty, or longer than the model reads",
            len(encoded) - len(chosen), len(encoded),
        )  # fmt: skip
    return [encoded[i] for i in chosen], [valid.references[i] for i in chosen]


def _best_text(translator: Translator, ended: Sequence[Hypothesis], options: SearchOptions) -> str:
    """Of what a search ended with, in that order, the best under these options."""
    best = max(
        ended,
        key=lambda found: normalise(
            found.sum_log_prob, len(found.token_ids) + int(found.finished), options
        ),
    )
    return translator.target_tokenizer.decode(best.token_ids)


def _trial(metric: Any, options: SearchOptions, counts: FloatArray) -> Trial:
    ours, theirs = counts[:, 0].sum(), counts[:, 1].sum()  # BLEU counts the lengths first
    return Trial(options=options, score=score(metric, counts), length_ratio=float(ours / theirs))
