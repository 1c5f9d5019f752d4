"""A tokenizer trained in a fraction of a second, for tests that need text and no model."""

from __future__ import annotations

import functools
import io

import sentencepiece

from runtime.tokenizer import Tokenizer


def train_proto(**overrides: object) -> bytes:
    """A SentencePiece BPE of about 400 pieces with byte fallback, as leanseq trains them."""
    lines = [f"in {i} days the cat number {i * 7} sat on été {i % 13}" for i in range(500)]
    settings: dict[str, object] = {
        "vocab_size": 400,
        "model_type": "bpe",
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "hard_vocab_limit": False,
        "minloglevel": 2,
        "pad_id": 0,
        "unk_id": 1,
        "bos_id": 2,
        "eos_id": 3,
    }
    writer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=writer, **(settings | overrides)
    )
    return writer.getvalue()


@functools.cache
def tiny_tokenizer() -> Tokenizer:
    return Tokenizer(train_proto())
