"""Whether a model sees only what it may: tokens are changed, and what must not change is compared.

A missing mask raises no error and lowers the training loss, so it is looked for before training:
some passes over a few short lines, without dropout.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import ModelConfig
from model.errors import TrainingError
from model.training.batching import Batch, EncodedCorpus, make_batch
from model.training.loss import token_loss
from model.transformer import Transformer

PROBE_ROWS, PROBE_LENGTH = 4, 24
_SAME = 1e-3
"""A change smaller than this share of the numbers themselves is rounding: batched products may add
up in another order."""


def probe_batch(corpus: EncodedCorpus, config: ModelConfig) -> Batch:
    """Up to PROBE_ROWS lines, the shortest to those of about PROBE_LENGTH tokens, with at least one
    column of padding on the source side where the model has room for it."""
    longest = np.maximum(corpus.source.lengths, corpus.target.lengths)
    order = np.argsort(longest, kind="stable")
    short = order[: max(PROBE_ROWS, int((longest <= PROBE_LENGTH).sum()))]
    rows = short[np.linspace(0, len(short) - 1, min(PROBE_ROWS, len(short))).astype(np.int64)]
    batch = make_batch(corpus, np.unique(rows), config)
    if batch.src_ids.size(1) >= config.max_source:
        return batch
    return dataclasses.replace(
        batch,
        src_ids=F.pad(batch.src_ids, (0, 1), value=config.special_ids.pad_id),
        src_mask=F.pad(batch.src_mask, (0, 1), value=False),
    )


def check_masks(model: Transformer, batch: Batch) -> None:
    """Raises TrainingError where a target position depends on later ones, anything on padding, a
    row on other rows, or nothing on the source. Says nothing of a model that gives numbers that are
    not finite, which its first update will. Leaves the model's mode as it was; draws no random
    number. batch: on the model's device."""
    with _evaluating(model), torch.no_grad():
        before = _outputs(model, batch)
        if not bool(before.hidden.isfinite().all()):
            return
        _check_rows(model, batch, before)
        _check_causal(model, batch, before)
        _check_padding(model, batch, before)
        source = torch.where(
            batch.src_mask, _other(batch.src_ids, model.config.src_vocab_size), batch.src_ids
        )
        after = _outputs(model, dataclasses.replace(batch, src_ids=source))
        if torch.equal(before.hidden, after.hidden):  # no rounding: a weak use is one
            raise TrainingError(
                "the decoder does not depend on the source: with all source tokens changed it "
                "gives the same. It would become a language model of the target side. Look at the "
                "cross-attention: whether its output is added, and its keys are the encoder's"
            )
        _check_loss(model, batch)


def _check_causal(model: Transformer, batch: Batch, before: _Outputs) -> None:
    changed = batch.tgt_in.size(1) // 2  # tokens from here on are changed
    if not changed:
        return
    later = torch.arange(batch.tgt_in.size(1), device=batch.tgt_in.device) >= changed
    tgt_in = torch.where(later, _other(batch.tgt_in, model.config.tgt_vocab_size), batch.tgt_in)
    after = _outputs(model, dataclasses.replace(batch, tgt_in=tgt_in))
    earlier = ~later.expand(tgt_in.shape)
    where = _first_change(before, after, source=None, target=earlier)
    if where:
        raise TrainingError(
            f"the decoder sees tokens that it is to predict: other target tokens from position "
            f"{changed} on change what {where} gives at earlier ones. The causal mask is missing "
            "there, and the loss would fall to almost nothing at once without the model having "
            "learnt to translate. Let position t see positions up to t only"
        )


def _check_padding(model: Transformer, batch: Batch, before: _Outputs) -> None:
    real = batch.tgt_out != model.config.special_ids.pad_id
    src_ids = torch.where(
        batch.src_mask, batch.src_ids, _other(batch.src_ids, model.config.src_vocab_size)
    )
    after = _outputs(model, dataclasses.replace(batch, src_ids=src_ids))
    where = _first_change(before, after, source=batch.src_mask, target=real)
    if where:
        raise TrainingError(
            f"padding of the source changes what {where} gives for real tokens. The source mask "
            "is missing there: a sentence would be translated in another way beside longer ones. "
            "Give src_mask to every attention over the source"
        )


def _check_rows(model: Transformer, batch: Batch, before: _Outputs) -> None:
    if batch.src_ids.size(0) < 2:
        return
    others = torch.arange(batch.src_ids.size(0), device=batch.src_ids.device)[:, None] > 0
    after = _outputs(
        model,
        dataclasses.replace(
            batch,
            src_ids=torch.where(
                others & batch.src_mask,
                _other(batch.src_ids, model.config.src_vocab_size),
                batch.src_ids,
            ),
            tgt_in=torch.where(
                others, _other(batch.tgt_in, model.config.tgt_vocab_size), batch.tgt_in
            ),
        ),
    )
    where = _first_change(
        before,
        after,
        source=~others & batch.src_mask,
        target=(~others).expand(batch.tgt_in.shape),
    )
    if where:
        raise TrainingError(
            f"a sentence depends on those beside it: other tokens in the other rows of a batch "
            f"change what {where} gives in the first row. Probably batch and time are mixed up in "
            "a reshape or transpose there"
        )


def _check_loss(model: Transformer, batch: Batch) -> None:
    if batch.tgt_in.size(1) >= model.config.max_target:
        return
    pad_id = model.config.special_ids.pad_id
    padded = dataclasses.replace(
        batch,
        tgt_in=F.pad(batch.tgt_in, (0, 1), value=pad_id),
        tgt_out=F.pad(batch.tgt_out, (0, 1), value=pad_id),
    )
    found, expected = (
        float(token_loss(model, given, smoothing=0.0, bf16=False)[1]) for given in (padded, batch)
    )
    if not math.isclose(found, expected, rel_tol=_SAME):
        raise TrainingError(
            f"padding of the target counts in the loss: one column more of it turns {expected:.4g} "
            f"into {found:.4g} nats. The model would learn to predict padding, and losses of "
            "batches could not be compared. Leave out positions where tgt_out is pad_id"
        )


@dataclass(frozen=True, kw_only=True)
class _Outputs:
    """What each module gave on its first call, in the order in which these ended."""

    source: dict[str, Tensor]  # [B,S,...]: the encoder, and keys and values made of its output
    target: dict[str, Tensor]  # [B,T,...]
    hidden: Tensor  # [B,T,D]: the decoder's


def _outputs(model: Transformer, batch: Batch) -> _Outputs:
    sides: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})
    current = sides[0]

    def record(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, __: object, output: object) -> None:
            if isinstance(output, Tensor) and output.dim() == 3:
                current.setdefault(name, output)

        return hook

    handles = [module.register_forward_hook(record(name)) for name, module in model.named_modules()]
    try:
        cross = model.encode(batch.src_ids, batch.src_mask)
        current = sides[1]
        hidden = model.decoder(batch.tgt_in, cross, batch.src_mask)
    finally:
        for handle in handles:
            handle.remove()
    return _Outputs(source=sides[0], target=sides[1], hidden=hidden)


def _first_change(
    before: _Outputs, after: _Outputs, *, source: Tensor | None, target: Tensor
) -> str:
    """The first module to give something else where it must not: source bool [B,S], None for
    everywhere; target bool [B,T]. Attention is named, not its projection. Empty if there is none.
    """
    for same, old, new in (
        (source, before.source, after.source),
        (target, before.target, after.target),
    ):
        for name, output in old.items():
            changed = _changed(output, new[name])
            if bool((changed if same is None else changed & same).any()):
                parent = name.rpartition(".")[0]
                return parent if parent.endswith("attention") else name
    return ""


def _changed(before: Tensor, after: Tensor) -> Tensor:
    """[B,T,...] twice -> bool [B,T]: by more than rounding."""
    size = before.abs().amax().clamp(min=1e-6)
    return (before - after).abs().flatten(2).amax(2) > _SAME * size


def _other(ids: Tensor, vocab_size: int) -> Tensor:
    """Another token for each."""
    return (ids + 1) % vocab_size


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
