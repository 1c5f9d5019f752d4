"""The converter: what CTranslate2 computes with our weights is what PyTorch does."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("ctranslate2")

import ctranslate2
from support.tiny_model import random_transformer, tiny_config

from benchmarks.peers.ctranslate2_model import (
    suppressed,
    token_name,
    unsupported,
    vocabulary_sizes,
    write_ctranslate2,
)
from model.config import StackConfig
from model.errors import ConfigError
from model.transformer import Transformer

SOURCES = [[5, 9, 30, 42, 7, 3], [77, 13, 3]]
TARGETS = [[8, 60, 61, 44, 3], [7, 99, 3]]
TOLERANCE = {"float32": 1e-5, "int8": 0.2}

SHAPES: list[dict[str, Any]] = [
    {},
    {"norm": "pre"},
    {"tying": "none"},
    {"tying": "decoder", "src_vocab_size": 130},
    {"activation": "gelu"},
    {"positions": "learned", "position_offset": 2},
    {"embedding_scale": 1.0},
    {"embedding_scale": 3.5, "attention_scale": 0.7},
    {"src_vocab_size": 130, "tgt_vocab_size": 100, "tying": "none"},
    {"norm_eps": 1e-2},
    {
        "encoder": StackConfig(num_layers=3, num_heads=4, ffn_dim=64),
        "decoder": StackConfig(num_layers=1, num_heads=4, ffn_dim=96),
    },
]


def log_probs_of_eager(model: Transformer) -> list[float]:
    """Of each target token, over the pieces that exist."""
    size = vocabulary_sizes(model.config)[1]
    found: list[float] = []
    for source, target in zip(SOURCES, TARGETS, strict=True):
        given = torch.tensor([[model.config.special_ids.decoder_start_id, *target[:-1]]])
        mask = torch.ones(1, len(source), dtype=torch.bool)
        with torch.inference_mode():
            logits = model(torch.tensor([source]), mask, given)[0, :, :size]
        found += logits.log_softmax(-1)[torch.arange(len(target)), target].tolist()
    return found


def log_probs_of_ctranslate2(model: Transformer, path: Path, quantization: Any) -> list[float]:
    write_ctranslate2(model, path, quantization=quantization)
    translator = ctranslate2.Translator(str(path), compute_type=quantization, intra_threads=1)
    scored = translator.score_batch(
        [[token_name(i, model.config) for i in source] for source in SOURCES],
        [[token_name(i, model.config) for i in target[:-1]] for target in TARGETS],  # it adds EOS
    )
    return [value for one in scored for value in one.log_probs]


@pytest.mark.parametrize("quantization", ["float32", "int8"])
@pytest.mark.parametrize("shape", SHAPES, ids=repr)
def test_ctranslate2_matches_eager_log_probs(
    shape: dict[str, Any], quantization: Any, tmp_path: Path
) -> None:
    model = random_transformer(seed=1, **shape)
    before = copy.deepcopy(model.state_dict())
    found = log_probs_of_ctranslate2(model, tmp_path / "model", quantization)
    assert found == pytest.approx(log_probs_of_eager(model), abs=TOLERANCE[quantization])
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])  # the conversion left them as they were


def sizes(tmp_path: Path, name: str, **changes: Any) -> tuple[int, int]:
    """Bytes of the weights in float32 and in int8."""
    model = random_transformer(**changes)
    found = []
    for quantization in ("float32", "int8"):
        path = tmp_path / f"{name}-{quantization}"
        write_ctranslate2(model, path, quantization=quantization)  # type: ignore[arg-type]
        found.append((path / "model.bin").stat().st_size)
    return found[0], found[1]


def test_tied_tables_are_written_once(tmp_path: Path) -> None:
    config = tiny_config()
    table = config.tgt_vocab_size * config.d_model
    tied, untied = sizes(tmp_path, "all"), sizes(tmp_path, "none", tying="none")
    scale = 4 / config.d_model  # bytes: one float a row
    for before, after, width in zip(tied, untied, (4, 1 + scale), strict=True):
        assert after - before == pytest.approx(2 * table * width, rel=0.01)


def test_pieces_name_the_vocabulary(tmp_path: Path) -> None:
    model = random_transformer(src_vocab_size=24, tgt_vocab_size=24)
    pieces = ["<pad>", "<unk>", "<s>", "</s>", *(f"▁w{i}" for i in range(4, 20))]
    write_ctranslate2(model, tmp_path / "model", pieces=pieces)
    translator = ctranslate2.Translator(str(tmp_path / "model"), intra_threads=1)
    (result,) = translator.translate_batch(
        [["▁w7", "▁w9", "</s>"]],
        beam_size=2,
        disable_unk=True,
        min_decoding_length=5,
        max_decoding_length=5,
        suppress_sequences=suppressed(model.config, pieces),
    )
    assert len(result.hypotheses[0]) == 5
    assert set(result.hypotheses[0]) <= {*pieces[4:], "t20", "t21", "t22", "t23"}


def test_only_pieces_are_suppressed() -> None:
    assert suppressed(tiny_config(src_vocab_size=24, tgt_vocab_size=24)) == [["<pad>"], ["<s>"]]


def test_what_ctranslate2_lacks_is_told_at_once(tmp_path: Path) -> None:
    model = random_transformer(positions="rotary", cross_score="concat", head_dim=4)
    with pytest.raises(
        ConfigError,
        match=r"rotary positions; cross_score 'concat'; 4 heads of 4 in the encoder, which are not "
        r"d_model 32 together; 4 heads of 4 in the decoder.*\. Compare a model with sinusoidal",
    ):
        write_ctranslate2(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    assert unsupported(tiny_config()) == []
