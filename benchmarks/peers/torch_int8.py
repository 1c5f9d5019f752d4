"""PyTorch's own INT8 on a CPU: `quantize_dynamic`, over every projection, that to the vocabulary
included. Weights get one scale a matrix, inputs one a call."""

from __future__ import annotations

import copy
import warnings
from typing import Any, cast

import torch
from torch import nn

from model.transformer import Transformer


def quantize_linears(model: Transformer) -> Transformer:
    """A copy of the model whose Linears are INT8; embeddings, norms and attention stay float."""
    copied = copy.deepcopy(model)
    vocabulary = nn.Linear(model.config.d_model, model.output_weight.size(0), bias=False)
    vocabulary.weight = nn.Parameter(model.output_weight.detach().clone())
    quantized = cast(Transformer, _quantize(copied))
    # It is no Linear where tables are tied. Set beside the class's method, which it hides.
    object.__setattr__(quantized, "project_output", _quantize(nn.Sequential(vocabulary)))
    return quantized


def _quantize(module: nn.Module) -> Any:
    with warnings.catch_warnings():  # "torch.ao.quantization is deprecated": it is what people have
        warnings.simplefilter("ignore")
        from torch.ao.quantization import quantize_dynamic

        return quantize_dynamic(  # type: ignore[no-untyped-call]
            module, {nn.Linear}, dtype=torch.qint8
        )
