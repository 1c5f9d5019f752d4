"""How good a model is while it trains: the loss of unseen pairs, and some of them translated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from model.batching import EncodedCorpus, make_batch
from model.eager import EagerBackend, special_token_ids
from model.loss import token_loss
from model.transformer import Transformer
from runtime.options import SearchOptions
from runtime.search import search
from runtime.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class SampleTranslation:
    source: str
    reference: str
    translation: str


@torch.no_grad()
def validation_loss(model: Transformer, corpus: EncodedCorpus, batch_tokens: int) -> float:
    """Negative log-likelihood of a target token, in nats, without smoothing or dropout.

    Leaves the model in eval mode.
    """
    model.eval()
    device = model.output_weight.device
    nll, tokens = 0.0, 0
    for rows in corpus.batches(batch_tokens, seed=None):
        batch = make_batch(corpus, rows, model.config).to(device)
        nll += float(token_loss(model, batch, smoothing=0.0, bf16=False)[1])
        tokens += batch.num_tokens
    return nll / tokens


def translate_samples(
    model: Transformer, tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]
) -> list[SampleTranslation]:
    """Greedy translations of (source, reference) pairs, cut to the model's limits."""
    config = model.config
    eos_id = config.special_ids.eos_id
    pieces = [tokenizer.encode_source(source)[:-1] for source, _ in pairs]
    sources = [[*ids[: config.max_source - 1], eos_id] for ids in pieces]
    found = search(
        EagerBackend(model), sources, SearchOptions(beam_size=1), special_token_ids(config)
    )
    return [
        SampleTranslation(
            source=source, reference=reference, translation=tokenizer.decode(best[0].token_ids)
        )
        for (source, reference), best in zip(pairs, found, strict=True)
    ]
