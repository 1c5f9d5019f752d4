"""Small models for tests: random ones of any shape, and one trained in under a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from support.tiny_tokenizer import tiny_tokenizer

from model.checkpoint import save_checkpoint
from model.config import ModelConfig, StackConfig
from model.transformer import Transformer


def tiny_config(**changes: Any) -> ModelConfig:
    """2+2 layers, d 32, the vocabulary of tiny_tokenizer."""
    size = tiny_tokenizer().size
    values: dict[str, Any] = {
        "src_vocab_size": size,
        "tgt_vocab_size": size,
        "d_model": 32,
        "head_dim": 8,
        "encoder": StackConfig(num_layers=2, num_heads=4, ffn_dim=64),
        "decoder": StackConfig(num_layers=2, num_heads=4, ffn_dim=64),
        "max_source": 64,
        "max_target": 64,
    }
    return ModelConfig(**(values | changes))


def random_transformer(seed: int = 0, **changes: Any) -> Transformer:
    """tiny_config with random weights, biases and norms too, so that none is left unnoticed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Transformer(tiny_config(**changes)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def write_random_checkpoint(path: Path, seed: int = 0, **changes: Any) -> Path:
    save_checkpoint(
        path,
        model=random_transformer(seed, **changes),
        tokenizer_proto=tiny_tokenizer().model_proto,
        metadata={"updates": 0},
    )
    return path
