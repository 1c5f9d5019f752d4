"""Drawing tokens from the model's distribution, the same in every batch.

Each draw has its own counter-based stream (Philox, Salmon et al. 2011), keyed by the seed and the
index of the input, with the sample and the step in the counter. What stands beside a sentence in
its batch, or how many samples are drawn, changes nothing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from runtime.candidates import top_indices
from runtime.options import SearchOptions

_WORD = 2**64
# With top_p alone the likeliest tokens are looked at first; sorting all of V is 20 times slower.
_FIRST_LOOK = 256


def uniform(seed: int, input_index: int, sample: int, step: int) -> float:
    """One number in [0, 1) for each key, 53 bits of Philox's first output."""
    stream = np.random.Philox(
        key=np.array([seed % _WORD, input_index % _WORD], dtype=np.uint64),
        counter=np.array([0, step, sample, seed // _WORD % _WORD], dtype=np.uint64),
    )
    return float(int(stream.random_raw()) >> 11) * 2.0**-53


def draw(log_probs: npt.NDArray[np.float32], options: SearchOptions, number: float) -> int:
    """The token that `number` in [0, 1) picks from log_probs [V] under top_k, top_p, temperature.

    First the temperature, then the top_k likeliest, then the smallest set of those whose share of
    what is left reaches top_p. float64 throughout; equal tokens in order of their id.
    """
    with np.errstate(over="ignore"):  # at a temperature near 0 all but the likeliest get -inf
        scaled = (log_probs.astype(np.float64) - log_probs.max()) / options.temperature
    weights = np.exp(scaled)  # [V]
    if options.top_k == 0 and options.top_p == 1.0:
        return _pick(np.arange(weights.size), weights, number)
    count = min(options.top_k or weights.size, weights.size)
    total = None if options.top_k else float(weights.sum())
    if total is not None and count > _FIRST_LOOK:
        first = top_indices(log_probs, _FIRST_LOOK)
        if weights[first].sum() >= options.top_p * total:
            count = _FIRST_LOOK
    tokens = top_indices(log_probs, count)  # not of weights: exp may round two to one
    mass = np.cumsum(weights[tokens])
    wanted = options.top_p * (mass[-1] if total is None else total)
    kept = min(int(np.searchsorted(mass, wanted)) + 1, count)
    return _pick(tokens[:kept], weights[tokens[:kept]], number)


def _pick(tokens: npt.NDArray[np.intp], weights: npt.NDArray[np.float64], number: float) -> int:
    mass = np.cumsum(weights)
    index = int(np.searchsorted(mass, number * mass[-1], side="right"))
    # number * mass may round up to the whole mass; and no token without weight is ever drawn
    return int(tokens[min(index, int(np.searchsorted(mass, mass[-1])))])
