"""Small models for tests: random ones of any shape, and one trained in under a minute."""

from __future__ import annotations

import dataclasses
import getpass
import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from support.tiny_tokenizer import tiny_tokenizer

from model.checkpoint import load_checkpoint, save_checkpoint
from model.config import ModelConfig, StackConfig
from model.corpora.phrases import PhraseCorpus, make
from model.errors import CheckpointError
from model.training.batching import corpus_sha256
from model.training.settings import TrainingSettings
from model.training.train import train
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


_FAMILIES = (
    "compact-numbers",
    "full-dates",
    "percentages",
    "relative-times",
    "territories",
    "times",
    "units",
)
TRAINED_SETTINGS = TrainingSettings(
    preset="tiny",
    vocab_size=700,
    norm="pre",
    dropout=0.0,
    learning_rate=3e-3,
    warmup=100,
    cooldown=0.6,
    batch_tokens=256,
    accumulation=2,
    max_updates=600,
    max_minutes=0.9,
    average=2,
    save_every=100,
    validate_every=300,
)


def trained_corpus() -> PhraseCorpus:
    """What trained_checkpoint is trained on: some families of phrases, quick to learn.

    Its test split holds 203 phrases.
    """
    corpus = make("de", 9000, valid=200, calibration=400, test=435)
    splits = {
        split: [phrase for phrase in phrases if phrase.family in _FAMILIES]
        for split, phrases in corpus.splits.items()
    }
    return dataclasses.replace(corpus, splits=splits)


def write_trained_checkpoint() -> Path:
    """Trains preset tiny for less than a minute, once a machine: later calls find it in a cache.

    Returns the checkpoint's directory, which tests must not change.
    """
    corpus = trained_corpus()
    pairs = corpus.pairs("train"), corpus.pairs("valid")
    key = json.dumps([TRAINED_SETTINGS.to_json(), corpus_sha256([*pairs[0], *pairs[1]])])
    cache = Path(tempfile.gettempdir()) / f"leanseq-tests-{getpass.getuser()}"
    cache.mkdir(exist_ok=True)
    path = cache / hashlib.sha256(key.encode()).hexdigest()[:16]
    with FileLock(f"{path}.lock"):
        try:
            load_checkpoint(path)
        except CheckpointError:
            train(*pairs, TRAINED_SETTINGS, path, overwrite=True, quiet=True)
    return path
