"""Each fault is planted in a module of a small model; the message has to name that module."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace

import pytest
import torch
from support.tiny_batches import random_batch
from support.tiny_model import random_transformer

from model.diagnosis.not_finite import FailedUpdate, explain, find_in_batches
from model.diagnosis.trace import Fault, bad_weights, find_fault
from model.training.gradients import GradientWorkers
from model.transformer import Transformer

ROWS = 6


@pytest.fixture
def net() -> Transformer:
    return random_transformer(dropout=0.1).train()


@pytest.fixture
def redo(net: Transformer):
    """(batch, bf16) -> loss, as training computes it: r_drop, which repeats the batch, as well."""
    batches = [random_batch(net.config, range(start, start + ROWS)) for start in (0, 6)]

    with contextlib.closing(GradientWorkers(1)) as workers:
        yield lambda index, bf16=False, r_drop=0.0: workers.compute(
            net, [batches[index]], [7], smoothing=0.1, bf16=bf16, r_drop=r_drop
        )


def failed(redo, **changes) -> FailedUpdate:
    values = FailedUpdate(
        update=41,
        epoch=2,
        nll=math.nan,
        norm=math.nan,
        largest_norm=3.5,
        rate=0.001,
        clip_norm=1.0,
        bf16=False,
        rows=[ROWS, ROWS],
        name_rows=lambda batch, rows: f"lines {[10 * batch + row for row in rows]}",
        redo=redo,
    )
    return replace(values, **changes)


def told(net: Transformer, update: FailedUpdate) -> str:
    return explain(net, update, find_in_batches(net, update))


def overflow(rows: list[int] | None = None, value: float = math.inf):
    """A forward hook that puts a value into what a module gives, in some rows or all."""

    def hook(_: object, __: object, output: torch.Tensor) -> torch.Tensor:
        output = output.clone()
        output[slice(None) if rows is None else rows] = value
        return output

    return hook


class _NanBackwards(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * math.nan


def nan_backwards(_: object, __: object, output: torch.Tensor) -> torch.Tensor:
    return _NanBackwards.apply(output)


MODULES = [
    "encoder.embedding.tokens",
    "encoder.layers.0.self_residual.norm",
    "encoder.layers.1.ffn.in_proj",
    "decoder.layers.0.cross_attention.v_proj",
    "decoder.layers.1.self_attention.q_proj",
    "decoder.layers.1.ffn",
    "decoder",
]


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_an_overflow_is_traced_to_its_module(net, redo, name: str, value: float) -> None:
    net.get_submodule(name).register_forward_hook(overflow(value=value))
    fault = find_fault(net, lambda: redo(0), ROWS)
    assert (fault.module, fault.place) == (name, "output")
    assert fault.found == ("nan" if math.isnan(value) else "inf")
    assert fault.rows == tuple(range(ROWS))
    assert fault.largest == 0 if "tokens" in name else fault.largest > 0


@pytest.mark.parametrize("r_drop", [0.0, 1.0])
def test_the_rows_that_overflow_are_told(net, redo, r_drop: float) -> None:
    net.decoder.layers[0].ffn.out_proj.register_forward_hook(overflow(rows=[1, 4]))
    assert find_fault(net, lambda: redo(0, r_drop=r_drop), ROWS).rows == (1, 4)


@pytest.mark.parametrize("name", [name for name in MODULES if "tokens" not in name])
@pytest.mark.parametrize("r_drop", [0.0, 1.0])
def test_a_nan_on_the_way_back_alone(net, redo, name: str, r_drop: float) -> None:
    net.get_submodule(name).register_forward_hook(nan_backwards)
    fault = find_fault(net, lambda: redo(0, r_drop=r_drop), ROWS)
    whole = name in ("decoder", "decoder.layers.1.ffn")  # behind the last of its parts
    place = "gradient between" if whole else "gradient"
    assert (fault.module, fault.place, fault.found) == (name, place, "nan")


def test_a_nan_between_the_parts_of_attention(net, redo, monkeypatch) -> None:
    attention = net.encoder.layers[1].self_attention
    attend = attention.attend
    monkeypatch.setattr(
        attention, "attend", lambda q, k, v, mask: attend(q * 1e38 * 1e38, k, v, mask)
    )
    fault = find_fault(net, lambda: redo(0), ROWS)
    assert (fault.module, fault.place) == ("encoder.layers.1.self_attention", "between")
    monkeypatch.setattr(
        attention, "attend", lambda q, k, v, mask: attend(_NanBackwards.apply(q), k, v, mask)
    )
    fault = find_fault(net, lambda: redo(0), ROWS)
    assert (fault.module, fault.place) == ("encoder.layers.1.self_attention", "gradient between")
    assert "between its parts (scores, softmax, sum of values)" in told(net, failed(redo))


def test_a_gradient_of_weights_alone(net, redo) -> None:
    weight = net.decoder.layers[0].ffn.in_proj.weight
    handle = weight.register_hook(lambda gradient: gradient + math.inf)
    fault = find_fault(net, lambda: redo(0), ROWS)
    assert (fault.module, fault.place) == ("decoder.layers.0.ffn.in_proj.weight", "weight")
    handle.remove()
    weight.register_hook(lambda gradient: torch.full_like(gradient, 1e30))
    fault = find_fault(net, lambda: redo(0), ROWS)
    assert (fault.module, fault.place) == ("decoder.layers.0.ffn.in_proj.weight", "norm")
    assert fault.largest == pytest.approx(1e30)
    assert "the norm of all gradients, each finite; the largest is in decoder" in told(
        net, failed(redo)
    )


def test_a_loss_that_overflows_behind_the_decoder(redo, net, monkeypatch) -> None:
    monkeypatch.setattr(
        Transformer,
        "output_weight",
        property(lambda self: self.decoder.embedding.tokens.weight * 1e38),
    )
    assert find_fault(net, lambda: redo(0), ROWS).place == "loss"
    assert "behind the decoder" in told(net, failed(redo))


def test_what_is_finite_has_no_fault_and_hooks_are_gone(net, redo) -> None:
    assert find_fault(net, lambda: redo(0), ROWS) is None
    assert not any(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
        for module in net.modules()
    )


def test_the_message_for_an_inf_weight(net, redo) -> None:
    with torch.no_grad():
        net.decoder.layers[1].ffn.in_proj.weight[3, 5] = math.inf
    assert bad_weights(net) == [("decoder.layers.1.ffn.in_proj.weight", 1)]
    message = told(net, failed(redo))
    assert message.startswith(
        "loss nan, gradient norm nan: not finite at update 41 (epoch 2, fp32, learning rate 0.001, "
        "largest gradient norm before 3.5)\n"
    )
    assert "in what decoder.layers.1.ffn.in_proj gives; the largest number that went in" in message
    assert "6 of 6 of the batch; lines [0, 1, 2, 3, 4, 5]" in message
    assert "decoder.layers.1.ffn.in_proj.weight holds 1 not finite\n" in message
    assert "The weights were not finite before this update" in message
    assert message.endswith("The state of the last save is kept")


def test_the_message_for_weights_that_grew(net, redo) -> None:
    with torch.no_grad():
        net.encoder.layers[0].ffn.in_proj.weight.fill_(3e38)
    message = told(net, failed(redo, clip_norm=0.0))
    assert "the largest 3e+38 in encoder.layers.0.ffn.in_proj.weight" in message
    assert "Probably the learning rate (0.001 now) is too high: halve it" in message
    assert "gradients are not clipped: set --clip-norm 1" in message
    assert "It has driven weights far beyond where training begins" in message


def test_the_message_for_a_few_lines_of_the_second_batch(net, redo) -> None:
    calls = []

    def second_only(module, inputs, output):
        calls.append(0)
        return overflow(rows=[2])(module, inputs, output) if len(calls) > 1 else output

    net.encoder.layers[0].ffn.out_proj.register_forward_hook(second_only)
    message = told(net, failed(redo))
    assert "rows: 1 of 6 of the batch; lines [12]" in message
    assert "Probably those lines: the others of the batch are finite. Look at their text" in message


def test_the_message_for_a_derivative(net, redo) -> None:
    net.encoder.layers[1].ffn.in_proj.register_forward_hook(nan_backwards)
    message = told(net, failed(redo))
    assert "nan in the gradient that encoder.layers.1.ffn.in_proj passes back" in message
    assert "Probably a derivative without a finite value: of a root or a norm at 0" in message


def test_the_message_for_an_overflow_of_code(net, redo) -> None:
    net.encoder.layers[1].ffn.in_proj.register_forward_hook(overflow())
    message = told(net, failed(redo, largest_norm=0.0))
    assert "largest gradient norm before" not in message
    assert "if the code of encoder.layers.1.ffn.in_proj is changed, a scale" in message


@pytest.mark.parametrize("only", ["bf16", "both"])
def test_bf16_is_blamed_where_fp32_is_finite(net, redo, only: str) -> None:
    def hook(module, inputs, output):
        return (
            overflow()(module, inputs, output)
            if only == "both" or output.dtype == torch.bfloat16
            else output
        )

    net.encoder.layers[1].ffn.in_proj.register_forward_hook(hook)
    message = told(net, failed(redo, bf16=True))
    assert "(epoch 2, bf16," in message
    blamed = "Probably bf16 is too coarse here: the same batch is finite in fp32" in message
    assert blamed == (only == "bf16")


def test_what_does_not_happen_again_is_the_machine(net, redo) -> None:
    message = told(net, failed(redo))
    assert "Probably the machine: the same update, done again, is finite" in message


def test_ids_have_no_magnitude(net, redo) -> None:
    net.encoder.embedding.tokens.register_forward_hook(overflow())
    assert "  first: inf in what encoder.embedding.tokens gives\n" in told(net, failed(redo))


def test_a_fault_without_rows_says_so(net, redo) -> None:
    fault = Fault(module="x", place="weight", found="inf", largest=1.0, rows=None)
    message = explain(net, failed(redo), (0, fault))
    assert "any of 6 of the batch; lines [0, 1, 2, 3, 4, 5]" in message
    assert "inf in the gradient of x, while what passes by is finite" in message
