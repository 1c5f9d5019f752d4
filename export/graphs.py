"""A Transformer as two ONNX graphs: the encoder, and one step of the decoder.

Names, types and sizes of their inputs and outputs stand in `runtime.graph_contract`. The code that
is exported is the model's own (`Encoder`, `Decoder.step`); a copy of it is prepared first, so that
the graphs come out short: weights lie as [in, out], the attention scale is folded into W_q and b_q,
and a decoding step keeps its tokens as N = B*K rows [N,D] (B sentences, K beams): of two dimensions
a MatMul and the Add of its bias are one operation to ONNX Runtime.

Initializers carry their state_dict names, MatMul nodes the name of the module whose weight they
hold (`decoder.layers.0.ffn.in_proj`). What a graph computes does not depend on how large B, K, S, T
were when it was traced: T = 0, B = 1, K = 1 and S = 1 run.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from export.check import graph_spec as graph_spec
from export.clean import save_graph
from export.errors import ExportError
from model.attention import MultiHeadAttention
from model.config import ModelConfig, padded_size
from model.eager import special_token_ids as special_token_ids
from model.layers import DecoderLayer
from model.positions import PositionTable, Rotary
from model.scores import Concat
from model.transformer import Embedding, Transformer, banned_mask
from runtime.graph_contract import BANNED, graph_inputs, graph_outputs
from runtime.manifest import ModelSpec, Role

OPSET = 20


def model_spec(config: ModelConfig) -> ModelSpec:
    """The sizes that a runner of the graphs needs."""
    return ModelSpec(
        encoder_layers=config.encoder.num_layers,
        decoder_layers=config.decoder.num_layers,
        num_heads=config.decoder.num_heads,
        head_dim=config.head_dim,
        vocab_size=padded_size(config.tgt_vocab_size),
        max_source=config.max_source,
        max_target=config.max_target,
    )


def export_encoder(model: Transformer, path: Path) -> None:
    """Writes the encoder: source ids to the cross-attention keys and values of every layer.

    Raises ExportError when the exporter fails. Weights beyond 1.5 GiB go to PATH.data beside it.
    """
    _export("encoder", _EncoderGraph(_prepared(model)), model, path)


def export_decoder_step(model: Transformer, path: Path) -> None:
    """Writes one step of the decoder: a token for every beam to the best 2K continuations.

    Raises ExportError when the exporter fails. Weights beyond 1.5 GiB go to PATH.data beside it.
    """
    _export("decoder_step", _DecoderStepGraph(_prepared(model)), model, path)


class _EncoderGraph(nn.Module):
    """src_ids int32 [B,S], src_mask bool [B,S] -> cross_k.0, cross_v.0, ... [B,H,S,Dh]."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.encoder = model.encoder
        self.decoder = model.decoder
        del self.decoder.embedding  # a tied table goes by the encoder's name here

    def forward(self, src_ids: Tensor, src_mask: Tensor) -> list[Tensor]:
        cross = self.decoder.project_cross(self.encoder(src_ids, src_mask))
        return [tensor for pair in cross for tensor in pair]


class _DecoderStepGraph(nn.Module):
    """The inputs of the contract, caches as one list [k.0, v.0, k.1, ...] -> its outputs."""

    is_eos: Tensor
    banned_bias: Tensor
    divisor: Tensor

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        config = model.config
        self.decoder = model.decoder
        self.tied = config.tying != "none"
        if not self.tied:
            self.output = model.output
        self.rotary = config.positions == "rotary"
        banned = banned_mask(config)  # [V]
        self.vocab_size = banned.numel()
        eos_id = config.special_ids.eos_id
        self.register_buffer("is_eos", torch.arange(self.vocab_size) == eos_id)
        self.register_buffer("banned_bias", torch.where(banned, BANNED, 0.0))
        self.register_buffer("divisor", torch.tensor(self.vocab_size, dtype=torch.int32))
        self.decoder.embedding = _StepEmbedding(self.decoder.embedding)
        for layer in self.decoder.layers:
            layer.self_attention = _StepSelfAttention(layer.self_attention)  # type: ignore[arg-type]
            layer.cross_attention = _StepCrossAttention(layer.cross_attention)  # type: ignore[arg-type]
            attend = types.MethodType(_attend_to_source, layer)
            layer.attend_to_source = attend  # type: ignore[assignment]

    def forward(
        self,
        token_ids: Tensor,
        position: Tensor,
        beam_indices: Tensor,
        src_mask: Tensor,
        sum_log_probs: Tensor,
        eos_bias: Tensor,
        past: list[Tensor],
        cross: list[Tensor],
    ) -> list[Tensor]:
        present: list[Tensor] = []

        def extender(layer: int) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
            def extend(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
                for old, new in ((past[2 * layer], k), (past[2 * layer + 1], v)):
                    moved = old.index_select(0, beam_indices)  # [N,H,T,Dh]
                    present.append(torch.cat((moved, new), dim=2))  # [N,H,T+1,Dh]
                return present[-2], present[-1]

            return extend

        for layer in self.decoder.layers:
            layer.cross_attention.beams = token_ids.shape  # type: ignore[union-attr]
        if self.rotary:  # one position a row; tables broadcast over the beams by themselves
            position = position.expand(token_ids.shape).reshape(-1, 1)  # [N,1]
        hidden = self.decoder.step(
            token_ids,
            position,
            list(zip(cross[0::2], cross[1::2], strict=True)),
            src_mask,
            [extender(layer) for layer in range(len(self.decoder.layers))],
        )  # [N,D]
        bias = torch.where(self.is_eos, eos_bias, self.banned_bias)  # [B,V]
        logits = self._project_output(hidden).reshape(*token_ids.shape, -1)  # [B,K,V]
        logits = logits + bias.unsqueeze(1)
        log_probs = logits.log_softmax(dim=-1)
        totals = (log_probs + sum_log_probs.unsqueeze(-1)).flatten(1)  # [B,K*V]
        scores, flat_ids = totals.topk(2 * token_ids.size(1))  # [B,2K]
        flat_ids = flat_ids.to(torch.int32)
        token = torch.fmod(flat_ids, self.vocab_size)
        # PyTorch's integer division is exported as one of floats, or with a repair of its sign.
        parent = torch.onnx.ops.symbolic(
            "Div", (flat_ids, self.divisor), dtype=torch.int32, shape=flat_ids.shape, version=OPSET
        )
        return [scores, token, parent, *present, log_probs]

    def _project_output(self, hidden: Tensor) -> Tensor:
        """[N,D] -> [N,V]. Where the embedding is tied, the graph holds its table once."""
        if self.tied:
            return torch.matmul(hidden, self.decoder.embedding.tokens.weight.t())
        return self.output(hidden)  # type: ignore[no-any-return]


class _StepEmbedding(Embedding):
    """The vectors of a step's tokens as one row each."""

    def __init__(self, embedding: Embedding) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(embedding.__dict__)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """ids [B,K], positions [B,1] -> [N,D]."""
        return super().forward(ids, positions).flatten(0, 1)


class _StepSelfAttention(MultiHeadAttention):
    """Self-attention of a step: x [N,D], one token a row."""

    def __init__(self, attention: MultiHeadAttention) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(attention.__dict__)

    def split_heads(self, x: Tensor) -> Tensor:
        """[N,H*Dh] -> [N,H,1,Dh]."""
        return x.reshape(-1, self.num_heads, 1, self.head_dim)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """q [N,H,1,Dh]; k, v [N,H,T+1,Dh] -> [N,D]."""
        context = self._attend_written_out(q, k, v, mask)  # [N,H,1,Dh]
        return self.out_proj(context.reshape(-1, self.num_heads * self.head_dim))  # type: ignore[no-any-return]


class _StepCrossAttention(MultiHeadAttention):
    """Cross-attention of a step: x [N,D] is K queries of each of B sentences."""

    beams: torch.Size  # B, K

    def __init__(self, attention: MultiHeadAttention) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(attention.__dict__)

    def split_heads(self, x: Tensor) -> Tensor:
        """[N,H*Dh] -> [B,H,K,Dh]."""
        return x.reshape(*self.beams, self.num_heads, self.head_dim).transpose(1, 2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """q [B,H,K,Dh]; k, v [B,H,S,Dh] -> [N,D]."""
        context = self._attend_written_out(q, k, v, mask).transpose(1, 2)  # [B,K,H,Dh]
        return self.out_proj(context.reshape(-1, self.num_heads * self.head_dim))  # type: ignore[no-any-return]


def _attend_to_source(
    layer: DecoderLayer, x: Tensor, cross_k: Tensor, cross_v: Tensor, src_mask: Tensor
) -> Tensor:
    """DecoderLayer.attend_to_source for x [N,D] -> [N,D]."""
    q = layer.cross_attention.project_query(x)
    return layer.cross_attention.attend(q, cross_k, cross_v, src_mask)


class _MatMul(nn.Module):
    """nn.Linear with its weight as [in, out]: one MatMul and one Add, no Transpose."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(linear.weight.detach().t().contiguous())
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        product = torch.matmul(x, self.weight)
        return product if self.bias is None else product + self.bias


class _Lookup(nn.Module):
    """PositionTable as one Gather, its offset cut off the table."""

    table: Tensor

    def __init__(self, positions: PositionTable) -> None:
        super().__init__()
        self.register_buffer("table", positions.table.detach()[positions.offset :].clone())

    def forward(self, positions: Tensor) -> Tensor:
        return F.embedding(positions, self.table)


class _RotaryLookup(Rotary):
    """Rotary whose tables are looked up by one Gather each."""

    def __init__(self, rotary: Rotary) -> None:
        nn.Module.__init__(self)
        self.register_buffer("cos_table", rotary.cos_table)
        self.register_buffer("sin_table", rotary.sin_table)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        cos = F.embedding(positions, self.cos_table).unsqueeze(-3)
        sin = F.embedding(positions, self.sin_table).unsqueeze(-3)
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-second, first), dim=-1) * sin


def _prepared(model: Transformer) -> Transformer:
    """A float32 copy on the CPU, in evaluation mode, whose modules export to few nodes."""
    model = copy.deepcopy(model).to(device="cpu", dtype=torch.float32).eval()
    with torch.no_grad():
        for module in list(model.modules()):
            if not isinstance(module, MultiHeadAttention):
                continue
            if isinstance(module.score, Concat):
                module.score = module.score.as_additive()
            if module.score is None:
                module.q_proj.weight.mul_(module.scale)
                module.q_proj.bias.mul_(module.scale)
                module.scale = 1.0
    replacements: dict[type[nn.Module], Callable[[Any], nn.Module]] = {
        nn.Linear: _MatMul,
        PositionTable: _Lookup,
        Rotary: _RotaryLookup,
    }
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) in replacements:
                setattr(parent, name, replacements[type(child)](child))
    return model.requires_grad_(False)


def _export(role: Role, graph: nn.Module, model: Transformer, path: Path) -> None:
    spec = model_spec(model.config)
    inputs, outputs = graph_inputs(role, spec, "fp32"), graph_outputs(role, spec, "fp32")
    arguments, shapes = _example(role, spec)
    try:
        with _quiet(), torch.no_grad():
            # N = B*K, which named sizes can't say: it is left to the run.
            program = torch.export.export(
                graph,
                arguments,
                dynamic_shapes=shapes,
                prefer_deferred_runtime_asserts_over_guards=True,
            )
            exported = torch.onnx.export(
                program, dynamo=True, opset_version=OPSET, optimize=False, verbose=False
            )
    except Exception as error:
        text = (str(error).strip().splitlines() or ["no message"])[0]
        raise ExportError(
            f"PyTorch {torch.__version__} could not export the {role} graph: "
            f"{type(error).__name__}: {text}; check the installed torch and onnxscript against "
            "constraints.txt"
        ) from error
    assert exported is not None
    save_graph(exported.model, path, name=role, inputs=inputs, outputs=outputs)


def _example(role: Role, spec: ModelSpec) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Arguments to trace with, and their dynamic sizes.

    All sizes differ and are at least 2, and every argument is a tensor of its own: the tracer
    takes what is equal for the same, and 1 for a constant.
    """
    sizes = {"B": 2, "K": 3, "S": 5, "T": 7, "P": 11, "N": 6}
    dims = {name: torch.export.Dim(name, min=4 if name == "N" else 2, max=2**24) for name in sizes}
    tensors, shapes = [], []
    for tensor in graph_inputs(role, spec, "fp32"):
        dtype = getattr(torch, tensor.dtype)
        size = [sizes[dim] if isinstance(dim, str) else dim for dim in tensor.dims]
        tensors.append(torch.ones(size, dtype=dtype))
        shapes.append(
            {axis: dims[dim] for axis, dim in enumerate(tensor.dims) if isinstance(dim, str)}
        )
    if role == "encoder":
        return tuple(tensors), tuple(shapes)
    caches = 6 + 2 * spec.decoder_layers
    return (
        (*tensors[:6], tensors[6:caches], tensors[caches:]),
        (*shapes[:6], shapes[6:caches], shapes[caches:]),
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the exporter's notes (torchvision is missing, and the like) from the user."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
