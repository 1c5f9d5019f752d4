"""How large the inputs of an engine may be: limits that a user sets, and the profiles they make.

Letters: B sentences, S source length, K beams, N = B*K, P rows of the past, T target length so far.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from runtime.errors import OptionError
from runtime.manifest import ModelSpec, TensorSpec
from runtime.numbers import is_whole, shown

LATENCY, THROUGHPUT = 0, 1
"""Places of the two profiles: for one sentence at a time, and for batches."""

_HIGHEST = {"max_batch": 4096, "max_beam": 1920, "max_source": 65536, "max_target": 65536}
# TensorRT's TopK gives at most 3,840 values, and a step asks for 2K.
_MOST_ELEMENTS = 2**31 - 1
_USUAL_LENGTH = 24
_USUAL_BEAM = 4

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """The largest batch, beam and lengths (tokens, EOS counted) that an engine takes.

    Memory follows them: caches are max_batch * max_beam * max_target rows, and the builder sets as
    much aside for one layer again. Raises OptionError for values out of range.
    """

    max_batch: int = 32
    max_beam: int = 8
    max_source: int = 128
    max_target: int = 128

    def __post_init__(self) -> None:
        for name, highest in _HIGHEST.items():
            value = getattr(self, name)
            if not is_whole(value, 1, highest):
                raise OptionError(
                    f"{name} is {shown(value)}; expected a whole number of at least 1 and at most "
                    f"{highest:,}"
                )

    def within(self, model: ModelSpec) -> EngineLimits:
        """The same, no longer than the model has positions for, no wider than its vocabulary."""
        longest_source = model.max_source or self.max_source
        longest_target = model.max_target or self.max_target
        return EngineLimits(
            max_batch=self.max_batch,
            max_beam=min(self.max_beam, max(1, model.vocab_size // 2)),
            max_source=min(self.max_source, longest_source),
            max_target=min(self.max_target, longest_target),
        )

    def covers(self, other: EngineLimits) -> bool:
        """Whether an engine with these limits takes all that one with the others takes."""
        return all(
            mine >= theirs for mine, theirs in zip(*map(_values, (self, other)), strict=True)
        )

    def __str__(self) -> str:
        return (
            f"batch {self.max_batch}, beam {self.max_beam}, source {self.max_source}, "
            f"target {self.max_target}"
        )

    def to_json(self) -> dict[str, int]:
        return dataclasses.asdict(self)


@dataclass(frozen=True, kw_only=True)
class ShapeRange:
    """What an input may measure. opt: the size that kernels are chosen for."""

    min: Shape
    opt: Shape
    max: Shape


Profile = dict[str, ShapeRange]
"""Input name -> range, for every input of a graph."""


def engine_profiles(inputs: tuple[TensorSpec, ...], limits: EngineLimits) -> tuple[Profile, ...]:
    """The profiles of a graph of the contract: for B = 1, and, where max_batch is more, for any B.

    min, opt and max are consistent: N = P = B*K in each. T (the past) starts at 0 and ends one
    below max_target, since a step adds a token.
    """
    batches = [(1, 1)]
    if limits.max_batch > 1:
        batches.append((max(1, limits.max_batch // 2), limits.max_batch))
    return tuple(
        {tensor.name: _range(tensor, _sizes(limits, *batch)) for tensor in inputs}
        for batch in batches
    )


def check_sizes(limits: EngineLimits, model: ModelSpec) -> None:
    """Raises OptionError for limits under which a tensor has more elements than 31 bits count.

    The builder makes such an engine without a word, but what it sets aside for it wraps around
    (docs/decisions/0007-engines.md): on a GPU it would write over what is not its own.
    """
    rows = limits.max_batch * limits.max_beam
    past, source, heads = limits.max_target, limits.max_source, model.num_heads
    largest = {
        "max_batch x max_beam x max_target x the model's width": (
            rows * past * heads * model.head_dim
        ),
        "max_batch x max_beam x the vocabulary": rows * model.vocab_size,
        "max_batch x max_beam x heads x max_source": rows * heads * source,
        "max_batch x heads x max_source x max_source": limits.max_batch * heads * source**2,
    }
    for factors, elements in largest.items():
        if elements > _MOST_ELEMENTS:
            raise OptionError(
                f"the limits ({limits}) make a tensor of {elements:,} elements ({factors}); "
                f"expected at most {_MOST_ELEMENTS:,}. Lower one of them"
            )


def choose_profile(batch: int, limits: EngineLimits) -> int:
    """The place of the profile that B sentences run in."""
    return LATENCY if batch == 1 or limits.max_batch == 1 else THROUGHPUT


def _sizes(limits: EngineLimits, usual: int, largest: int) -> dict[str, Shape]:
    """Letter -> (min, opt, max)."""
    beam = min(_USUAL_BEAM, limits.max_beam)
    past = limits.max_target - 1
    rows = (1, usual * beam, largest * limits.max_beam)
    return {
        "B": (1, usual, largest),
        "K": (1, beam, limits.max_beam),
        "N": rows,
        "P": rows,
        "S": (1, min(_USUAL_LENGTH, limits.max_source), limits.max_source),
        "T": (0, min(_USUAL_LENGTH, past), past),
    }


def _range(tensor: TensorSpec, sizes: dict[str, Shape]) -> ShapeRange:
    smallest, usual, largest = (
        tuple(dim if isinstance(dim, int) else sizes[dim][place] for dim in tensor.dims)
        for place in range(3)
    )
    return ShapeRange(min=smallest, opt=usual, max=largest)


def _values(limits: EngineLimits) -> tuple[int, ...]:
    return dataclasses.astuple(limits)
