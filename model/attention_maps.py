"""What a Transformer attends to, for one sentence and one translation of it, by teacher forcing.

Step t of the decoder reads the start token and the first t tokens, and writes token t. Its row of
the cross-attention says which source tokens it looked at while it did so.

Letters: S source tokens (EOS counted), T decoder steps, L layers of a stack, H heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from model.attention import MultiHeadAttention
from model.errors import ModelError
from model.transformer import Transformer, banned_mask
from runtime.backend import FloatArray
from runtime.errors import OptionError

Kind = Literal["cross", "encoder", "decoder"]
"""Decoder to source; source to source; decoder to what it has read."""


@dataclass(frozen=True, kw_only=True)
class AttentionMaps:
    """Softmax weights, float32, of every layer and head: each row sums to 1.

    src_ids: [S], EOS last. input_ids: [T], what each step reads, the start token first. output_ids:
    [T], what each step writes. probabilities: float32 [T], of output_ids, as the search sees them:
    ids that are never predicted have no share. cross: [L,H,T,S]; encoder: [L,H,S,S]; decoder:
    [L,H,T,T], rows and columns by step, a column standing for what that step reads.
    """

    src_ids: tuple[int, ...]
    input_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    probabilities: FloatArray
    cross: FloatArray
    encoder: FloatArray
    decoder: FloatArray


@torch.inference_mode()
def attention_maps(
    model: Transformer, src_ids: Sequence[int], output_ids: Sequence[int]
) -> AttentionMaps:
    """One pass over one pair. src_ids: EOS last; output_ids: without the start token, EOS last
    where the sentence has ended.

    Raises OptionError for more tokens than the model has positions for, or none; ModelError for a
    model on a GPU, whose attention keeps no weights.
    """
    config = model.config
    check_length("source", len(src_ids), config.max_source)
    check_length("target", len(output_ids), config.max_target)
    input_ids = (config.special_ids.decoder_start_id, *output_ids[:-1])
    encoder, decoder = model.encoder.layers, model.decoder.layers
    with (
        recording([layer.self_attention for layer in encoder]) as of_encoder,  # type: ignore[misc]
        recording([layer.self_attention for layer in decoder]) as of_decoder,  # type: ignore[misc]
        recording([layer.cross_attention for layer in decoder]) as of_cross,  # type: ignore[misc]
    ):
        log_probs = _forced_log_probs(model, src_ids, input_ids)  # [T,V]
    steps = torch.arange(len(output_ids))
    return AttentionMaps(
        src_ids=tuple(src_ids),
        input_ids=input_ids,
        output_ids=tuple(output_ids),
        probabilities=log_probs[steps, torch.tensor(output_ids)].exp().numpy(),
        cross=torch.cat(of_cross).numpy(),
        encoder=torch.cat(of_encoder).numpy(),
        decoder=torch.cat(of_decoder).numpy(),
    )


@torch.inference_mode()
def cross_weights(
    model: Transformer, src_ids: Sequence[int], input_ids: Sequence[int], layer: int
) -> FloatArray:
    """float32 [T,S]: the cross-attention of one layer (from 0), averaged over its heads, of steps
    that read input_ids [T], the start token first. Raises as attention_maps does."""
    check_length("source", len(src_ids), model.config.max_source)
    check_length("target", len(input_ids), model.config.max_target)
    with recording([model.decoder.layers[layer].cross_attention]) as found:  # type: ignore[list-item]
        _forced_hidden(model, src_ids, input_ids)
    return found[0][0].mean(dim=0).numpy()


@contextmanager
def recording(modules: Sequence[MultiHeadAttention]) -> Iterator[list[Tensor]]:
    """Within it, each call of these modules adds its softmax weights [R,H,Tq,Tk] to the list.

    The weights are what the module's dropout is given, so they come from any score function, and
    nothing in the model knows of it: neither training nor an exported graph pays.
    """
    weights: list[Tensor] = []

    def keep(_: nn.Module, arguments: tuple[Tensor]) -> None:
        weights.append(arguments[0])

    with ExitStack() as stack:
        for module in modules:
            stack.callback(module.dropout.register_forward_pre_hook(keep).remove)
        yield weights


def _forced_log_probs(
    model: Transformer, src_ids: Sequence[int], input_ids: Sequence[int]
) -> Tensor:
    """[T,V] float32, of what each step writes; banned ids are at -inf."""
    logits = model.project_output(_forced_hidden(model, src_ids, input_ids)[0])
    return logits.masked_fill(banned_mask(model.config), float("-inf")).log_softmax(dim=-1)


def _forced_hidden(model: Transformer, src_ids: Sequence[int], input_ids: Sequence[int]) -> Tensor:
    """[1,T,D]: teacher forcing on one pair, without dropout."""
    device = next(model.parameters()).device
    if device.type != "cpu":
        raise ModelError(
            f"the model is on {device}, whose fused attention keeps no weights; move it to the "
            "CPU: model.to('cpu')"
        )
    was_training = model.training
    model.eval()
    try:
        source = torch.tensor([list(src_ids)])  # [1,S]
        mask = torch.ones_like(source, dtype=torch.bool)
        cross = model.encode(source, mask)
        return model.decoder(torch.tensor([list(input_ids)]), cross, mask)  # type: ignore[no-any-return]
    finally:
        model.train(was_training)


def check_length(side: str, found: int, limit: int) -> None:
    """side: source or target. found: its tokens, EOS counted. limit: of the model. Raises
    OptionError."""
    if not 1 <= found <= limit:
        raise OptionError(
            f"the {side} has {found} tokens, its end counted; this model reads 1 to {limit}: give "
            "a text that fits"
        )
