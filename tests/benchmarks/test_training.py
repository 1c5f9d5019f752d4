from __future__ import annotations

import numpy as np
import pytest
import torch
from support.tiny_model import random_transformer

from benchmarks.training import PRECISIONS, TorchTransformer, TrainingRun, measure_training, render
from model.training.batching import EncodedCorpus, make_batch, side_of
from runtime.errors import OptionError


def test_both_are_timed_in_both_precisions() -> None:
    record = measure_training(
        TrainingRun(vocab_size=300, batch_tokens=64, updates=1, rounds=1, threads=1)
    )
    assert list(record["precisions"]) == list(PRECISIONS)
    for found in record["precisions"].values():
        assert found["leanseq"] > 0
        assert found["ratio"]["p10"] <= found["ratio"]["median"] <= found["ratio"]["p90"]
    text = render(record)
    assert "2 x 64 padded tokens" in text
    assert "bf16" in text


def test_an_unknown_preset() -> None:
    with pytest.raises(OptionError, match="preset is 'huge'; expected one of tiny"):
        measure_training(TrainingRun(preset="huge"))


def test_the_peer_is_the_same_model() -> None:
    """With leanseq's weights it computes leanseq's logits."""
    ours = random_transformer(dropout=0.0, norm="pre").eval()
    theirs = TorchTransformer(ours.config).eval()
    for stack in ("encoder", "decoder"):
        norm = getattr(theirs.transformer, stack).norm
        norm.load_state_dict(getattr(ours, stack).final_norm.state_dict())
    theirs.tokens.weight = ours.encoder.embedding.tokens.weight
    for layer, other in zip(ours.encoder.layers, theirs.transformer.encoder.layers, strict=True):
        copy_attention(layer.self_attention, other.self_attn)
        copy_rest(layer, other, {"self_residual": "norm1", "ffn_residual": "norm2"})
    for layer, other in zip(ours.decoder.layers, theirs.transformer.decoder.layers, strict=True):
        copy_attention(layer.self_attention, other.self_attn)
        copy_attention(layer.cross_attention, other.multihead_attn)
        norms = {"self_residual": "norm1", "cross_residual": "norm2", "ffn_residual": "norm3"}
        copy_rest(layer, other, norms)
    rng = np.random.default_rng(0)
    lines = [rng.integers(4, 300, length).tolist() for length in (5, 3, 7)]
    corpus = EncodedCorpus(
        source=side_of(lines), target=side_of(lines[::-1]), pair_rows=np.arange(3)
    )
    batch = make_batch(corpus, np.arange(3), ours.config)
    with torch.no_grad():
        want = ours(batch.src_ids, batch.src_mask, batch.tgt_in)
        found = theirs(batch)
    real = batch.tgt_out != 0
    torch.testing.assert_close(found[real], want[real], rtol=1e-4, atol=1e-4)


def copy_attention(ours, theirs) -> None:
    with torch.no_grad():
        for kind in ("weight", "bias"):
            parts = [getattr(getattr(ours, f"{n}_proj"), kind) for n in "qkv"]
            getattr(theirs, f"in_proj_{kind}").copy_(torch.cat(parts))
            getattr(theirs.out_proj, kind).copy_(getattr(ours.out_proj, kind))


def copy_rest(ours, theirs, norms: dict[str, str]) -> None:
    theirs.linear1.load_state_dict(ours.ffn.in_proj.state_dict())
    theirs.linear2.load_state_dict(ours.ffn.out_proj.state_dict())
    for residual, norm in norms.items():
        getattr(theirs, norm).load_state_dict(getattr(ours, residual).norm.state_dict())
