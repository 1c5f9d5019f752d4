"""The search rules of docs/decisions/0003-search-semantics.md, by plain lists.

Written from the page and not from runtime/search.py; slow on purpose.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np

from runtime.options import SearchOptions

LogProbs = Callable[[tuple[int, ...], bool], np.ndarray]
"""(prefix, ban_eos) -> float32 log-probabilities [V]."""

Found = tuple[tuple[int, ...], float, bool]
"""(tokens without EOS, score, finished)."""


def reference_search(
    log_probs: LogProbs, eos: int, max_length: int, options: SearchOptions
) -> list[Found]:
    beam_size = options.beam_size
    beams: list[tuple[tuple[int, ...], np.float32]] = [((), np.float32(0))]
    stored: list[tuple[tuple[int, ...], np.float32]] = []
    enough = 1 if beam_size == 1 else math.floor(beam_size * options.patience + 0.5)
    for step in range(max_length):
        candidates = []
        for rank, (prefix, total) in enumerate(beams):
            row = log_probs(prefix, step < options.min_length)
            candidates += [
                (-(total + row[token]), rank, token, prefix) for token in range(row.size)
            ]
        candidates = sorted(candidates)[: 2 * beam_size]
        candidates = [c for c in candidates if -c[0] > -1e8]
        spare = [c for c in candidates[beam_size:] if c[2] != eos]
        beams = []
        for cost, _, token, prefix in candidates[:beam_size]:
            last = step + 1 == max_length
            if token == eos or last:
                stored.append(((*prefix, token), -cost))
            if token != eos:
                beams.append(((*prefix, token), -cost))
            elif spare:
                cost, _, token, prefix = spare.pop(0)
                beams.append(((*prefix, token), -cost))
        if len(stored) >= enough or not beams:
            break
    return ranked(stored, eos, options)


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
    return ranked(stored, eos, options)


def ranked(
    stored: list[tuple[tuple[int, ...], np.float32]], eos: int, options: SearchOptions
) -> list[Found]:
    found = []
    for tokens, total in stored:
        length = len(tokens)
        if options.length_penalty_kind == "power":
            score = float(total) / length**options.length_penalty
        else:
            score = float(total) / ((5 + length) / 6) ** options.length_penalty
        finished = tokens[-1] == eos
        found.append((tokens[:-1] if finished else tokens, score, finished))
    return sorted(found, key=lambda item: -item[1])[: options.num_hypotheses]
