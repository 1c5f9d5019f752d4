"""A checkpoint: what training writes and everything else reads.

    DIR/config.json         schema, leanseq version, ModelConfig, what training says about itself
    DIR/model.safetensors   float32 weights under their state_dict names, tied ones once
    DIR/tokenizer.model     the SentencePiece model
    DIR/samples.json        sentences to calibrate and measure with, where training kept some
    DIR/manifest.json       the SHA-256 of each of these

No pickle is read or written. Equal weights, tokenizer and metadata give equal bytes.
Training keeps what it needs to go on in DIR/training, of which nothing here knows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from model import redo
from model.config import PRESETS, ModelConfig
from model.errors import CheckpointError, ConfigError
from model.samples import Samples
from model.transformer import Transformer
from runtime.errors import TextError
from runtime.tokenizer import Tokenizer
from runtime.version import __version__

SCHEMA = 1
CONFIG, WEIGHTS, TOKENIZER, SAMPLES, MANIFEST = (
    "config.json",
    "model.safetensors",
    "tokenizer.model",
    "samples.json",
    "manifest.json",
)
FILES = (CONFIG, WEIGHTS, TOKENIZER, SAMPLES, MANIFEST)
_HASHED = (CONFIG, WEIGHTS, TOKENIZER)
_TIED = "decoder.embedding.tokens.weight"
"""The encoder's table, where tying is "all"."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A loaded checkpoint. model: in eval mode, float32, on the CPU. sha256: of the manifest, hence
    of everything. metadata: what training says about itself (updates, valid_loss, corpus)."""

    model: Transformer
    config: ModelConfig
    tokenizer_proto: bytes
    metadata: dict[str, Any] = field(default_factory=dict)
    samples: Samples | None = None
    sha256: str


def save_checkpoint(
    path: Path | str,
    *,
    model: Transformer,
    tokenizer_proto: bytes,
    metadata: Mapping[str, Any] | None = None,
    samples: Samples | None = None,
) -> str:
    """Writes a checkpoint, replacing one that is there; returns its sha256.

    Whatever moment the process is killed at, the old or the new one can be opened. Raises
    CheckpointError if the directory cannot be written or is locked.
    """
    path = Path(path)
    config_text = _json_text(
        {
            "format": "leanseq-checkpoint",
            "schema": SCHEMA,
            "leanseq": __version__,
            "model": model.config.to_json(),
            "training": dict(metadata or {}),
        }
    )
    hashes: dict[str, str] = {}
    names = [*_HASHED, *([SAMPLES] if samples is not None else [])]

    def write_manifest(target: Path) -> None:
        for name in names:
            hashes[name] = _sha256((target.parent / name).read_bytes())
        target.write_bytes(_manifest_text(hashes))

    files: dict[str, redo.WriteFile] = {
        CONFIG: lambda target: target.write_bytes(config_text),
        # Not save_file, whose file only its owner may read, whatever the umask.
        WEIGHTS: lambda target: target.write_bytes(save(model_weights(model))),
        TOKENIZER: lambda target: target.write_bytes(tokenizer_proto),
    }
    if samples is not None:
        samples_text = _json_text(samples.to_json())
        files[SAMPLES] = lambda target: target.write_bytes(samples_text)
    redo.write_together(path, {**files, MANIFEST: write_manifest})
    return _sha256(_manifest_text(hashes))


def load_checkpoint(path: Path | str) -> Checkpoint:
    """Opens a checkpoint and checks all of it.

    Raises CheckpointError if it is missing, incomplete, truncated, altered, of another schema, or
    holds tensors that do not fit its config or are not finite.
    """
    path = Path(path)
    redo.finish_pending(path)
    try:
        files = _read_checked(path)
    except CheckpointError:
        if not path.is_dir():
            raise
        redo.wait_for_writer(path)  # another process may be replacing the files right now
        files = _read_checked(path)
    config, metadata = _parse_config(path / CONFIG, files[CONFIG])
    model = _build_model(config, _parse_weights(path / WEIGHTS, files[WEIGHTS], config))
    try:
        size = Tokenizer(files[TOKENIZER]).size
    except TextError as error:
        raise CheckpointError(f"{path / TOKENIZER}: {error}") from error
    if size != config.tgt_vocab_size:
        raise CheckpointError(
            f"{path / TOKENIZER} has {size} pieces, the model {config.tgt_vocab_size}; expected "
            "as many: the files are from two trainings, take both from one"
        )
    return Checkpoint(
        model=model,
        config=config,
        tokenizer_proto=files[TOKENIZER],
        metadata=metadata,
        samples=Samples.from_text(files[SAMPLES]) if SAMPLES in files else None,
        sha256=_sha256(files[MANIFEST]),
    )


def is_checkpoint(path: Path | str) -> bool:
    """True if `path` looks like a checkpoint, complete or not."""
    path = Path(path)
    return (path / CONFIG).is_file() or (path / redo.PENDING / CONFIG).is_file()


def model_weights(model: Transformer) -> dict[str, Tensor]:
    """State_dict name -> float32 CPU tensor; tied weights once, under the encoder's name."""
    return {
        name: tensor.detach().to("cpu", torch.float32).contiguous()
        for name, tensor in _untied_state(model).items()
    }


def load_weights(model: Transformer, weights: Mapping[str, Tensor]) -> None:
    """Puts what model_weights gave back into a model of the same config."""
    strict = {**weights}
    if model.config.tying == "all":
        strict[_TIED] = weights["encoder.embedding.tokens.weight"]
    model.load_state_dict(strict)


def random_model(preset: str, seed: int = 0, *, vocab_size: int | None = None) -> Transformer:
    """A model of random weights, in eval mode; equal seeds give equal weights.

    Raises ConfigError for an unknown preset.
    """
    if preset not in PRESETS:
        raise ConfigError(f"unknown preset {preset!r}; expected one of {', '.join(PRESETS)}")
    shape = PRESETS[preset]
    config = shape.config(shape.vocab_size if vocab_size is None else vocab_size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Transformer(config).eval()


def _read_checked(path: Path) -> dict[str, bytes]:
    """The files that the manifest lists, found to be as it says, and the manifest."""
    if not path.exists():
        raise CheckpointError(
            f"there is no checkpoint at {path}; give the directory that training wrote (--out)"
        )
    if not path.is_dir():
        raise CheckpointError(f"{path} is a file; expected a checkpoint's directory")
    missing = [name for name in (*_HASHED, MANIFEST) if not (path / name).is_file()]
    if missing:
        hint = "give the directory that training wrote (--out)"
        if (path / "training").is_dir():
            hint = "training has not ended there: go on with --resume"
        raise CheckpointError(f"{path} is no checkpoint: it lacks {', '.join(missing)}; {hint}")
    try:
        files = {name: (path / name).read_bytes() for name in (*_HASHED, MANIFEST)}
    except OSError as error:
        raise CheckpointError(
            f"cannot read {error.filename}: {error.strerror}; check its permissions"
        ) from error
    expected = _parse_json(path / MANIFEST, files[MANIFEST]).get("files")
    expected = expected if isinstance(expected, dict) else {}
    if SAMPLES in expected:
        files[SAMPLES] = _read_samples(path)
    for name, content in files.items():
        found = _sha256(content)
        if name != MANIFEST and expected.get(name) != found:
            raise CheckpointError(
                f"{path / name} ({len(files[name])} bytes) is truncated or altered: its SHA-256 "
                f"{found[:12]} is not the one in {MANIFEST}; copy the checkpoint again, or train "
                "anew"
            )
    return files


def _read_samples(path: Path) -> bytes:
    try:
        return (path / SAMPLES).read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"cannot read {path / SAMPLES}, which {MANIFEST} lists: {error.strerror}; copy the "
            "checkpoint again"
        ) from error


def _parse_config(path: Path, content: bytes) -> tuple[ModelConfig, dict[str, Any]]:
    values = _parse_json(path, content)
    if values.get("schema") != SCHEMA:
        raise CheckpointError(
            f"{path} has schema {values.get('schema')!r}, written by leanseq "
            f"{values.get('leanseq')!r}; this is leanseq {__version__}, which reads schema "
            f"{SCHEMA}: use the version that wrote it"
        )
    try:
        config = ModelConfig.from_json(values.get("model", {}))
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}; the file was edited, train anew") from error
    metadata = values.get("training")
    return config, metadata if isinstance(metadata, dict) else {}


def _parse_weights(path: Path, content: bytes, config: ModelConfig) -> dict[str, Tensor]:
    try:
        found = load(content)
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise CheckpointError(f"{path} is no safetensors file: {error}; train anew") from error
    with torch.device("meta"):  # shapes alone, before any memory is taken
        expected = {
            name: tuple(tensor.shape) for name, tensor in _untied_state(Transformer(config)).items()
        }
    advice = f"{CONFIG} and {WEIGHTS} are from two trainings, take both from one"
    for what, names in (
        ("lacks", expected.keys() - found.keys()),
        ("has the unknown", found.keys() - expected.keys()),
    ):
        if names:
            shown = ", ".join(sorted(names)[:5]) + (", ..." if len(names) > 5 else "")
            raise CheckpointError(f"{path} {what} {len(names)} tensors: {shown}; {advice}")
    for name, tensor in found.items():
        if tuple(tensor.shape) != expected[name]:
            raise CheckpointError(
                f"{path}: {name} has shape {list(tensor.shape)}, expected {list(expected[name])}; "
                f"{advice}"
            )
        if not tensor.isfinite().all():
            raise CheckpointError(
                f"{path}: {name} holds values that are not finite; the training diverged, "
                "train again with a lower learning rate"
            )
    return {name: tensor.to(torch.float32) for name, tensor in found.items()}


def _untied_state(model: Transformer) -> dict[str, Tensor]:
    state = dict(model.state_dict())
    if model.config.tying == "all":
        del state[_TIED]
    return state


def _build_model(config: ModelConfig, weights: Mapping[str, Tensor]) -> Transformer:
    with torch.random.fork_rng(devices=[]):  # the weights drawn here are thrown away
        model = Transformer(config)
    load_weights(model, weights)
    return model.eval()


def _parse_json(path: Path, content: bytes) -> dict[str, Any]:
    try:
        values = json.loads(content)
    except ValueError as error:
        raise CheckpointError(f"{path} is truncated or altered: {error}; copy it again") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} holds {type(values).__name__}; expected a JSON object")
    return values


def _manifest_text(hashes: Mapping[str, str]) -> bytes:
    return _json_text({"files": dict(hashes)})


def _json_text(values: Mapping[str, Any]) -> bytes:
    text = json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
