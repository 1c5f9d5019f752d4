"""Where a pass first gives numbers that are not finite: the module, and the rows of the batch.

Knows nothing of training: it hooks a model's modules while somebody else runs a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

Place = Literal["output", "between", "loss", "gradient", "gradient between", "weight", "norm"]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """The first numbers that were not finite.

    module: its dotted path; place "weight" and "norm": a parameter's path; place "loss": empty.
    place, by what it says of that module:
        output: it was given finite numbers and gave others;
        between: between its parts, which all gave finite numbers so far (in attention: scores,
            their softmax, the sums of values);
        loss: every module gave finite numbers, the output projection and the loss did not;
        gradient, gradient between: the same two on the way back;
        weight: the gradient of this parameter alone; norm: every gradient is finite, their norm is
            not, and this parameter's is the largest.
    found: "nan" or "inf". largest: the largest finite magnitude of what went in, or of the gradient
    for "norm". rows: those of the batch that hold them; None where that can't be told.
    """

    module: str
    place: Place
    found: str
    largest: float
    rows: tuple[int, ...] | None


def find_fault(model: nn.Module, redo: Callable[[], float], num_rows: int) -> Fault | None:
    """redo: forward and backward on one batch of num_rows rows, which sets `.grad` of each
    parameter and returns the loss; called up to twice. None: all it gave was finite."""
    trace = _Trace(model, num_rows)
    with trace.forward():
        loss = redo()
    if trace.fault is not None:
        return trace.fault
    if loss - loss != 0:  # nan or inf
        return Fault(module="", place="loss", found=_name(loss), largest=trace.largest, rows=None)
    fault = _fault_of_gradients(model)
    if fault is None or fault.place == "norm":
        return fault
    with trace.backward():
        redo()
    return trace.fault or fault


class _Trace:
    """Watches passes of one model; `fault` is the first it saw."""

    def __init__(self, model: nn.Module, num_rows: int) -> None:
        self.model, self.num_rows = model, num_rows
        self.fault: Fault | None = None
        self.largest = 0.0  # of the last finite output
        self._differentiable: set[str] = set()

    @contextmanager
    def forward(self) -> Iterator[None]:
        handles = []
        for name, module in self.model.named_modules():
            handles += [
                module.register_forward_pre_hook(self._entered(name)),
                module.register_forward_hook(self._left(name)),
            ]
        yield from _until_done(handles)

    @contextmanager
    def backward(self) -> Iterator[None]:
        """After `forward`, which found out what takes part in the way back."""
        handles, self.largest = [], 0.0
        for name, module in self.model.named_modules():
            if name in self._differentiable:
                handles += [
                    module.register_full_backward_pre_hook(self._gradient_came(name)),
                    module.register_full_backward_hook(self._gradient_left(name)),
                ]
        yield from _until_done(handles)

    def _entered(self, name: str) -> Callable[..., None]:
        def hook(_: nn.Module, inputs: Any) -> None:
            if any(isinstance(given, Tensor) and given.requires_grad for given in inputs):
                self._differentiable.add(name)
            self._look(self._outside(name), "between", list(_tensors(inputs)), self.largest)

        return hook

    def _left(self, name: str) -> Callable[..., None]:
        def hook(_: nn.Module, inputs: Any, output: Any) -> None:
            tensors = list(_tensors(output))
            self._look(name, "output", tensors, _largest(_tensors(inputs)))
            self.largest = _largest(tensors)

        return hook

    def _gradient_came(self, name: str) -> Callable[..., None]:
        def hook(_: nn.Module, gradients: Any) -> None:
            tensors = list(_tensors(gradients))
            self._look(self._outside(name), "gradient between", tensors, self.largest)

        return hook

    def _gradient_left(self, name: str) -> Callable[..., None]:
        def hook(_: nn.Module, given: Any, came: Any) -> None:
            tensors = list(_tensors(given))
            self._look(name, "gradient", tensors, _largest(_tensors(came)))
            self.largest = _largest(tensors)

        return hook

    def _outside(self, name: str) -> str:
        """The module whose code runs between its parts: the nearest above that is no mere list."""
        while "." in name:
            name = name.rpartition(".")[0]
            if not isinstance(self.model.get_submodule(name), nn.ModuleList):
                return name
        return ""

    def _look(self, module: str, place: Place, tensors: Sequence[Tensor], largest: float) -> None:
        bad = [tensor for tensor in tensors if not _is_finite(tensor)]
        if self.fault is None and bad:
            found = "nan" if any(bool(tensor.isnan().any()) for tensor in bad) else "inf"
            self.fault = Fault(
                module=module, place=place, found=found, largest=largest, rows=self._rows(bad)
            )

    def _rows(self, bad: Sequence[Tensor]) -> tuple[int, ...] | None:
        """Tensors are [B,...], or [c*B,...] where the batch was repeated c times."""
        rows: set[int] = set()
        for tensor in bad:
            if tensor.dim() < 2 or tensor.size(0) % self.num_rows:
                return None
            found = (~tensor.isfinite()).flatten(1).any(dim=1).nonzero().flatten().tolist()
            rows |= {row % self.num_rows for row in found}
        return tuple(sorted(rows))


def bad_weights(model: nn.Module) -> list[tuple[str, int]]:
    """The parameters that hold numbers that are not finite, and how many."""
    return [
        (name, int((~parameter.detach().isfinite()).sum()))
        for name, parameter in model.named_parameters()
        if not _is_finite(parameter.detach())
    ]


def largest_weight(model: nn.Module) -> tuple[str, float]:
    """The parameter with the largest magnitude, and that."""
    found = [(name, _largest([p.detach()])) for name, p in model.named_parameters()]
    return max(found, key=lambda pair: pair[1])


def _fault_of_gradients(model: nn.Module) -> Fault | None:
    gradients = [(name, p.grad) for name, p in model.named_parameters() if p.grad is not None]
    for name, gradient in gradients:
        if not _is_finite(gradient):
            found = "nan" if bool(gradient.isnan().any()) else "inf"
            largest = _largest([gradient])
            return Fault(module=name, place="weight", found=found, largest=largest, rows=None)
    norm = torch.nn.utils.get_total_norm([gradient for _, gradient in gradients])
    if gradients and not _is_finite(norm):
        name, largest = max(
            ((name, _largest([gradient])) for name, gradient in gradients),
            key=lambda pair: pair[1],
        )
        return Fault(module=name, place="norm", found="inf", largest=largest, rows=None)
    return None


def _until_done(handles: Sequence[Any]) -> Iterator[None]:
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _tensors(values: Any) -> Iterator[Tensor]:
    """The tensors of floating point among `values`, however nested."""
    if isinstance(values, Tensor):
        if values.is_floating_point():
            yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _tensors(value)


def _is_finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())


def _largest(tensors: Any) -> float:
    """The largest finite magnitude; 0 where there is none."""
    largest = 0.0
    for tensor in tensors:
        finite = tensor.detach()[tensor.detach().isfinite()]
        if finite.numel():
            largest = max(largest, float(finite.abs().max()))
    return largest


def _name(value: float) -> str:
    return "nan" if value != value else "inf"
