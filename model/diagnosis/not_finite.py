"""Why an update's loss or gradient is not finite: the update is done again, module by module.

Its step has not been made, so the weights are those that it began with; same batches, same dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import nn

from model.diagnosis.trace import Fault, bad_weights, find_fault, largest_weight

_GROWN = 100.0
"""Weights start below 1, and trained ones seldom pass 10."""


@dataclass(frozen=True, kw_only=True)
class FailedUpdate:
    """An update without its step.

    update: its number. epoch: from 1. nll: nats a token. norm: of the gradient, before clipping;
    largest_norm: of those before it, 0 where there are none. rate: the learning rate now. rows: of
    each batch that this process computed, how many it has. name_rows: (batch, its rows) to the
    text that names them. redo: (batch, bf16) to its loss; sets `.grad`.
    """

    update: int
    epoch: int
    nll: float
    norm: float
    largest_norm: float
    rate: float
    clip_norm: float
    bf16: bool
    rows: Sequence[int]
    name_rows: Callable[[int, Sequence[int]], str]
    redo: Callable[[int, bool], float]


def find_in_batches(model: nn.Module, failed: FailedUpdate) -> tuple[int, Fault] | None:
    """The first of this process's batches in which something is not finite, and what. None where
    all is finite."""
    for batch, num_rows in enumerate(failed.rows):
        fault = find_fault(model, partial(failed.redo, batch, failed.bf16), num_rows)
        if fault is not None:
            return batch, fault
    return None


def explain(model: nn.Module, failed: FailedUpdate, found: tuple[int, Fault] | None) -> str:
    """What was found where, the likely cause and what to do; lines of text."""
    precision = "bf16" if failed.bf16 else "fp32"
    before = f", largest gradient norm before {failed.largest_norm:.3g}"
    told = [
        f"loss {failed.nll:g}, gradient norm {failed.norm:g}: not finite at update "
        f"{failed.update} (epoch {failed.epoch}, {precision}, learning rate {failed.rate:.3g}"
        f"{before if failed.largest_norm else ''})"
    ]
    if found is not None:
        batch, fault = found
        told.append(f"  first: {_describe(fault)}")
        rows = range(failed.rows[batch]) if fault.rows is None else fault.rows
        share = f"{len(rows)} of {failed.rows[batch]}" if fault.rows else f"any of {len(rows)}"
        told.append(f"  rows: {share} of the batch; {failed.name_rows(batch, rows)}")
    told.append(f"  weights: {_describe_weights(model)}")
    told.append(f"Probably {_cause(model, failed, found)}. The state of the last save is kept")
    return "\n".join(told)


def _describe(fault: Fault) -> str:
    module, what = fault.module or "the model", fault.found
    attention = " (scores, softmax, sum of values)" if module.endswith("attention") else ""
    given = f"; the largest number that went in is {fault.largest:.3g}" if fault.largest else ""
    return {
        "output": f"{what} in what {module} gives{given}",
        "between": f"{what} inside {module}, between its parts{attention}{given}",
        "loss": f"{what} in the output projection or the loss, behind the decoder{given}",
        "gradient": f"{what} in the gradient that {module} passes back{given}",
        "gradient between": f"{what} in the gradient inside {module}, between its parts"
        f"{attention}{given}",
        "weight": f"{what} in the gradient of {module}, while what passes by is finite",
        "norm": f"the norm of all gradients, each finite; the largest is in {module}, "
        f"{fault.largest:.3g}",
    }[fault.place]


def _describe_weights(model: nn.Module) -> str:
    bad = bad_weights(model)
    if not bad:
        name, size = largest_weight(model)
        return f"all finite, the largest {size:.3g} in {name}"
    name, count = bad[0]
    more = f", and {len(bad) - 1} more tensors" if len(bad) > 1 else ""
    return f"{name} holds {count} not finite{more}"


def _cause(model: nn.Module, failed: FailedUpdate, found: tuple[int, Fault] | None) -> str:
    rate = f"the learning rate ({failed.rate:.2g} now) is too high: halve it or lengthen --warmup"
    if failed.clip_norm == 0:
        rate += "; gradients are not clipped: set --clip-norm 1"
    if bad_weights(model):
        return (
            f"{rate}. The weights were not finite before this update, and no step is made with "
            "such a gradient: if the rate is a usual one, memory or the saved state is damaged"
        )
    if found is None:
        return (
            "the machine: the same update, done again, is finite. Go on with --resume; if it "
            "happens again, look for faulty memory, or an operation that depends on more than its "
            "inputs"
        )
    batch, fault = found
    if failed.bf16 and not find_fault(
        model, partial(failed.redo, batch, False), failed.rows[batch]
    ):
        return (
            "bf16 is too coarse here: the same batch is finite in fp32. Try --precision fp32, or a "
            "smaller learning rate"
        )
    if largest_weight(model)[1] > _GROWN:
        return f"{rate}. It has driven weights far beyond where training begins"
    if fault.rows and 2 * len(fault.rows) <= failed.rows[batch]:
        return (
            f"those lines: the others of the batch are finite. Look at their text (garbled, "
            f"overlong, one word over and over?) and drop them if it is no translation. Or {rate}"
        )
    if fault.place in ("gradient", "gradient between"):
        return (
            f"a derivative without a finite value: of a root or a norm at 0, a logarithm or a "
            f"division by 0, in {fault.module or 'the model'}. If its code is changed, look there; "
            f"else {rate}"
        )
    return (
        f"{rate}; or, if the code of {fault.module or 'the loss'} is changed, a scale, a mask of "
        "-inf, or a division there"
    )
