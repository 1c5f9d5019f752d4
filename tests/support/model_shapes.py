"""Models of many shapes, as changes to the tiny one, for parity with the eager model."""

from __future__ import annotations

from typing import Any

from model.config import StackConfig

ONE_LAYER = StackConfig(num_layers=1, num_heads=4, ffn_dim=40)
SHAPES: dict[str, dict[str, Any]] = {
    "pre-norm, learned, decoder tied, gelu": {
        "norm": "pre",
        "positions": "learned",
        "position_offset": 2,
        "tying": "decoder",
        "activation": "gelu",
        "encoder": ONE_LAYER,
        "decoder": ONE_LAYER,
        "src_vocab_size": 150,
        "tgt_vocab_size": 90,
    },
    "post-norm, rotary, untied, unequal stacks": {
        "positions": "rotary",
        "tying": "none",
        "head_dim": 6,
        "encoder": StackConfig(num_layers=2, num_heads=2, ffn_dim=24),
        "decoder": StackConfig(num_layers=1, num_heads=3, ffn_dim=20),
        "src_vocab_size": 70,
        "tgt_vocab_size": 130,
    },
    "pre-norm, rotary, own scales": {
        "norm": "pre",
        "positions": "rotary",
        "attention_scale": 1.0,
        "embedding_scale": 1.0,
        "norm_eps": 1e-6,
        "encoder": ONE_LAYER,
        "decoder": ONE_LAYER,
    },
    "deep encoder, shallow decoder": {
        "norm": "pre",
        "encoder": StackConfig(num_layers=6, num_heads=4, ffn_dim=40),
        "decoder": StackConfig(num_layers=2, num_heads=4, ffn_dim=40),
    },
}
