"""The same weights three times, as a checkpoint, a bundle and CTranslate2 models; and the lines."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sentencepiece

from benchmarks.peers.ctranslate2_model import write_ctranslate2
from benchmarks.peers.subjects import PEER, Materials
from calibration.statistics import DEFAULT_METHOD, DEFAULT_PERCENTILE
from export.bundling import BundleRecipe, make_bundle
from model.checkpoint import Checkpoint, load_checkpoint, random_model, save_checkpoint
from model.config import PRESETS
from model.errors import ConfigError
from runtime.bundle import Bundle
from runtime.errors import BundleError
from runtime.options import SearchOptions
from runtime.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

RANDOM_LINES = 64
RANDOM_SOURCE = 20
"""Tokens of a random line, EOS counted."""
_CALIBRATION_LINES = 4
_CHECKPOINT = "checkpoint"


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What is compared, and on what. references: where translations can be scored."""

    materials: Materials
    bundle: Bundle
    checkpoint: Checkpoint
    lines: list[str]
    references: list[str] | None = None

    @property
    def defaults(self) -> SearchOptions:
        return SearchOptions.from_json(self.bundle.manifest.search_defaults)

    def sources(self) -> list[list[int]]:
        """Token ids of each line, EOS included, cut to what the model reads."""
        tokenizer = Tokenizer(self.bundle.tokenizer_protos()[0])
        limit = self.bundle.manifest.model.max_source
        found = []
        for line in self.lines:
            ids = tokenizer.encode_source(line)
            too_long = limit is not None and len(ids) > limit
            found.append([*ids[: limit - 1], ids[-1]] if too_long and limit else ids)
        return found


def prepare(
    bundle_path: Path,
    checkpoint_path: Path,
    lines: Sequence[str],
    references: Sequence[str] | None,
    directory: Path,
    subjects: Iterable[str],
) -> Prepared:
    """Converts the checkpoint for the CTranslate2 subjects among `subjects`, into `directory`.

    Raises BundleError where the bundle was not built from that checkpoint, and what opening them
    and `write_ctranslate2` raise.
    """
    bundle, checkpoint = Bundle.open(bundle_path), load_checkpoint(checkpoint_path)
    built_from = bundle.manifest.source.get("checkpoint")
    if built_from != checkpoint.sha256:
        raise BundleError(
            f"{bundle_path} was built from checkpoint {str(built_from)[:12]}, and "
            f"{checkpoint_path} is {checkpoint.sha256[:12]}; give the checkpoint that the bundle "
            "was built from, or build the bundle again"
        )
    proto, _ = bundle.tokenizer_protos()
    tokenizer = Tokenizer(proto)
    pieces = tokenizer.pieces(range(tokenizer.size))
    converted = {}
    for name in {*subjects, PEER["fp32"]} & set(PEER.values()):
        converted[name] = directory / name
        logger.info("converting the checkpoint for %s", name)
        write_ctranslate2(
            checkpoint.model,
            converted[name],
            pieces=pieces,
            quantization="float32" if name == PEER["fp32"] else "int8",
        )
    return Prepared(
        materials=Materials(bundle=bundle_path, checkpoint=checkpoint_path, ctranslate2=converted),
        bundle=bundle,
        checkpoint=checkpoint,
        lines=list(lines),
        references=None if references is None else list(references),
    )


def prepare_random(preset: str, directory: Path, subjects: Iterable[str]) -> Prepared:
    """Random weights as a checkpoint, a bundle and, for `subjects`, CTranslate2 models; and lines.

    Raises ConfigError for an unknown preset.
    """
    bundle = random_bundle(preset, directory)
    lines = preset_lines(preset)
    return prepare(bundle.path, directory / _CHECKPOINT, lines, None, directory, subjects)


def random_bundle(preset: str, directory: Path) -> Bundle:
    """What `export build --int8` makes of random weights, in `directory`, beside the checkpoint.

    Its vocabulary is of words, so that a line has as many tokens as it has words, and one for EOS.
    Raises ConfigError for an unknown preset.
    """
    if preset not in PRESETS:
        raise ConfigError(f"unknown preset {preset!r}; expected one of {', '.join(PRESETS)}")
    size = PRESETS[preset].vocab_size
    checkpoint_path = directory / _CHECKPOINT
    save_checkpoint(
        checkpoint_path, model=random_model(preset), tokenizer_proto=word_tokenizer(size)
    )
    recipe = BundleRecipe(
        int8=True,
        calibration_lines=tuple(random_lines(_CALIBRATION_LINES, size)),
        method=DEFAULT_METHOD,
        percentile=DEFAULT_PERCENTILE,
    )
    make_bundle(load_checkpoint(checkpoint_path), recipe, directory / "bundle")
    return Bundle.open(directory / "bundle")


def word_tokenizer(size: int) -> bytes:
    """A SentencePiece model of `size` pieces: the control pieces, and the words w4, w5, ..."""
    words = [f"w{number}" for number in range(4, size)]
    writer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(" ".join(words[i : i + 100]) for i in range(0, len(words), 100)),
        model_writer=writer,
        model_type="word",
        vocab_size=size,
        normalization_rule_name="identity",
        character_coverage=1.0,
        num_threads=1,
        minloglevel=2,
        pad_id=0,
        unk_id=1,
        bos_id=2,
        eos_id=3,
    )
    return writer.getvalue()


def preset_lines(preset: str) -> list[str]:
    """What a `random_bundle` is timed on. Its model may have more ids than there are words."""
    return random_lines(RANDOM_LINES, PRESETS[preset].vocab_size)


def random_lines(count: int, vocab_size: int) -> list[str]:
    """Lines of words of `word_tokenizer`; the same at every call."""
    numbers = np.random.default_rng(0).integers(4, vocab_size, size=(count, RANDOM_SOURCE - 1))
    return [" ".join(f"w{number}" for number in row) for row in numbers.tolist()]
