"""The search rules of docs/decisions/0003-search-semantics.md, by plain lists.

Written from the page and not from runtime/search.py; slow on purpose.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from runtime.options import SearchOptions

LogProbs = Callable[[tuple[int, ...], bool], np.ndarray]
"""(prefix, ban_eos) -> float32 log-probabilities [V]."""

Found = tuple[tuple[int, ...], float, bool]
"""(tokens without EOS, score, finished)."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules as they are; each change is a wrong one, which a good test would notice."""

    length_offset: int = 0  # of the normaliser
    replace: bool = True  # a slot whose hypothesis ended is filled from ranks K..2K-1
    eos_past_k_ends: bool = False
    keep_at_most_k: bool = False
    at_max: str = "keep"  # keep | drop: what becomes of hypotheses that are cut
    round_up_halves: bool = True
    bound_stops: bool = False  # stop only when no live hypothesis can beat the worst of K


def reference_search(
    log_probs: LogProbs,
    eos: int,
    max_length: int,
    options: SearchOptions,
    rules: Rules | None = None,
) -> list[Found]:
    rules = rules or Rules()
    beam_size = options.beam_size
    beams: list[tuple[tuple[int, ...], np.float32]] = [((), np.float32(0))]
    stored: list[tuple[tuple[int, ...], np.float32]] = []
    enough = beam_size * options.patience
    enough = math.floor(enough + 0.5) if rules.round_up_halves else round(enough)
    if beam_size == 1:
        enough = 1
    for step in range(max_length):
        candidates = []
        for rank, (prefix, total) in enumerate(beams):
            row = log_probs(prefix, step < options.min_length)
            candidates += [
                (-(total + row[token]), rank, token, prefix) for token in range(row.size)
            ]
        candidates = sorted(candidates)[: 2 * beam_size]
        candidates = [c for c in candidates if -c[0] > -1e8]
        spare = [c for c in candidates[beam_size:] if c[2] != eos] if rules.replace else []
        last = step + 1 == max_length
        beams = []
        for cost, _, token, prefix in candidates[:beam_size]:
            if token == eos or (last and rules.at_max == "keep"):
                stored.append(((*prefix, token), -cost))
            if token != eos:
                beams.append(((*prefix, token), -cost))
            elif spare:
                cost, _, token, prefix = spare.pop(0)
                beams.append(((*prefix, token), -cost))
        if rules.eos_past_k_ends:
            past = candidates[beam_size:]
            stored += [((*prefix, eos), -cost) for cost, _, token, prefix in past if token == eos]
        if rules.keep_at_most_k:
            stored = stored[:beam_size]
        if len(stored) >= enough and rules.bound_stops and beams and not last:
            best = max(float(total) for _, total in beams) / (step + 1) ** options.length_penalty
            if best <= ranked(stored, eos, options, beam_size)[-1][1]:
                break
        elif len(stored) >= enough or not beams:
            break
    return ranked(stored, eos, options, options.num_hypotheses, rules.length_offset)


def exhaustive_search(
    log_probs: LogProbs, eos: int, max_length: int, options: SearchOptions
) -> list[Found]:
    """Every sequence that ends with EOS, and every one of max_length that does not."""
    size = log_probs((), False).size
    stored = []
    for length in range(1, max_length + 1):
        for tokens in itertools.product(range(size), repeat=length):
            if eos in tokens[:-1] or (tokens[-1] != eos and length < max_length):
                continue
            total = np.float32(0)
            for step, token in enumerate(tokens):
                total += log_probs(tokens[:step], step < options.min_length)[token]
            if total > -1e8:
                stored.append((tokens, total))
    return ranked(stored, eos, options, options.num_hypotheses)


def ranked(
    stored: list[tuple[tuple[int, ...], np.float32]],
    eos: int,
    options: SearchOptions,
    count: int,
    length_offset: int = 0,
) -> list[Found]:
    found = []
    for tokens, total in stored:
        length = len(tokens) + length_offset
        if options.length_penalty_kind == "power":
            score = float(total) / length**options.length_penalty
        else:
            score = float(total) / ((5 + length) / 6) ** options.length_penalty
        finished = tokens[-1] == eos
        found.append((tokens[:-1] if finished else tokens, score, finished))
    return sorted(found, key=lambda item: -item[1])[:count]
