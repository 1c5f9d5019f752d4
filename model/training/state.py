"""What a killed training needs to go on exactly where it was, in DIR/training.

    state.json              settings, position, elapsed time, SHA-256 of the next two, and of the
                            updates since the last line of the history what that will tell
    state.safetensors       weights, Adam's moments
    tokenizer.model
    snapshot-N.safetensors  the weights after N updates: of the last saves, for averaging, and of
                            the best validation; in its metadata the SHA-256 of all of them
    history.jsonl           model.training.history

The first three are replaced together (model.redo). Each snapshot is written once, before the state
that names it, and removed after a state that does not.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from model import redo
from model.checkpoint import load_weights, model_weights
from model.errors import CheckpointError, ConfigError
from model.training.best import Best
from model.training.settings import TrainingSettings
from model.training.window import Window
from model.transformer import Transformer
from runtime.errors import TextError
from runtime.numbers import is_finite, is_whole
from runtime.tokenizer import Tokenizer

FOLDER = "training"
SCHEMA = 1
HISTORY = "history.jsonl"
_JSON, _TENSORS, _TOKENIZER = "state.json", "state.safetensors", "tokenizer.model"
_HASHED = (_TENSORS, _TOKENIZER)
_HASH = "sha256"


@dataclass(kw_only=True)
class Position:
    """How far training has come.

    epoch, batch: the epoch under way, and how many of its batches are done. seconds: spent so far.
    snapshots: after how many updates each of the last was taken. best: the best validated weights,
    of which there is a snapshot too. ends_at: after how many updates training ends where that is
    earlier than its settings say. window_*: sums over the current window of the check for a loss
    that stands still; last_window: the mean of the one before.
    """

    updates: int = 0
    epoch: int = 0
    batch: int = 0
    seconds: float = 0.0
    snapshots: list[int] = field(default_factory=list)
    best: Best | None = None
    ends_at: int | None = None
    window_nll: float = 0.0
    window_tokens: int = 0
    last_window: float | None = None

    def __post_init__(self) -> None:
        whole = (
            self.updates, self.epoch, self.batch, self.window_tokens, *self.snapshots,
            self.ends_at or 0,
        )  # fmt: skip
        if not all(is_whole(value, 0) for value in whole):
            raise ValueError("the position counts something that can't be counted")
        numbers = (self.seconds, self.window_nll, self.last_window or 0.0)
        if not all(is_finite(value) for value in numbers):
            raise ValueError("the position holds a number that is none")

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """What dataclasses.asdict gave."""
        best = values.get("best")
        return cls(**{**values, "best": None if best is None else Best.from_json(best)})


@dataclass(frozen=True, kw_only=True)
class SavedState:
    """A state as read: what it belongs to, where it stood, and its tensors."""

    settings: TrainingSettings
    corpus: str
    position: Position
    window: Window
    tokenizer_proto: bytes
    tensors: Mapping[str, Tensor]

    def restore(self, model: Transformer, optimizer: torch.optim.Optimizer) -> None:
        """Puts weights and Adam's moments back."""
        try:
            load_weights(model, _part(self.tensors, "model."))
            state = optimizer.state_dict()
            for index in range(len(state["param_groups"][0]["params"])):
                state["state"][index] = {
                    name: self.tensors[f"adam.{index}.{name}"]
                    for name in ("step", "exp_avg", "exp_avg_sq")
                    if f"adam.{index}.{name}" in self.tensors
                }
            optimizer.load_state_dict(state)
        except (KeyError, RuntimeError) as error:
            raise CheckpointError(
                f"the saved training state does not fit its settings ({error}); start anew with "
                "--force"
            ) from error


def has_state(directory: Path) -> bool:
    folder = directory / FOLDER
    return (folder / _JSON).is_file() or (folder / redo.PENDING / _JSON).is_file()


def save_state(
    directory: Path,
    *,
    settings: TrainingSettings,
    corpus: str,
    position: Position,
    tokenizer_proto: bytes,
    model: Transformer,
    optimizer: torch.optim.Optimizer,
    window: Window,
    snapshot: bool = True,
) -> None:
    """Saves all of it, and the weights once more as a snapshot; drops snapshots too old to count.

    window: what the history has not told yet (model.training.window). snapshot: False where
    a training is interrupted, since what it averages at the end must not depend on that. Raises
    CheckpointError if the directory cannot be written.
    """
    folder = directory / FOLDER
    if snapshot:
        weights = save_snapshot(directory, position.updates, model)
        position.snapshots = [*position.snapshots, position.updates][-settings.average :]
    else:
        weights = model_weights(model)
    tensors = {f"model.{name}": tensor for name, tensor in weights.items()}
    for index, values in optimizer.state_dict()["state"].items():
        tensors |= {f"adam.{index}.{name}": value.cpu() for name, value in values.items()}
    values = {
        "schema": SCHEMA,
        "settings": settings.to_json(),
        "corpus": corpus,
        "position": dataclasses.asdict(position),
        "window": dataclasses.asdict(window),
    }

    def write_json(target: Path) -> None:
        hashes = {name: _sha256(target.with_name(name)) for name in _HASHED}
        text = json.dumps({**values, "sha256": hashes}, indent=2, allow_nan=False)
        target.write_text(text, encoding="utf-8")

    redo.write_together(
        folder,
        {
            _TENSORS: lambda target: save_file(tensors, target),
            _TOKENIZER: lambda target: target.write_bytes(tokenizer_proto),
            _JSON: write_json,
        },
    )
    best = [] if position.best is None else [position.best.updates]
    _remove_snapshots(folder, keep=[*position.snapshots, *best])


def save_snapshot(directory: Path, updates: int, model: Transformer) -> dict[str, Tensor]:
    """The weights, to be read by average_snapshots; returns them (model_weights).

    Raises CheckpointError if the directory cannot be written.
    """
    weights = model_weights(model)
    name, told = f"snapshot-{updates}.safetensors", {_HASH: weights_sha256(weights)}
    redo.write_together(
        directory / FOLDER, {name: lambda target: save_file(weights, target, metadata=told)}
    )
    return weights


def load_state(directory: Path) -> SavedState:
    """Raises CheckpointError if the state is damaged, of another version, or can't be read."""
    folder = directory / FOLDER
    redo.finish_pending(folder)
    advice = "start anew with --force"
    try:
        values = json.loads((folder / _JSON).read_text(encoding="utf-8"))
        if values["schema"] != SCHEMA:
            raise CheckpointError(
                f"{folder / _JSON} has schema {values['schema']!r}, expected {SCHEMA}; resume with "
                f"the version of leanseq that wrote it, or {advice}"
            )
        hashes = values.get("sha256", {})  # states of earlier versions have none
        for name in _HASHED:
            found = _sha256(folder / name)
            if hashes.get(name, found) != found:
                raise ValueError(f"{name} is not what was written")
        tokenizer_proto = (folder / _TOKENIZER).read_bytes()
        Tokenizer(tokenizer_proto)  # complains now if it is damaged
        return SavedState(
            settings=TrainingSettings.from_json(values["settings"]),
            corpus=values["corpus"],
            position=Position.from_json(values["position"]),
            window=Window.from_json(values.get("window", {})),  # earlier versions had none
            tokenizer_proto=tokenizer_proto,
            tensors=load_file(folder / _TENSORS),
        )
    except (PermissionError, IsADirectoryError) as error:
        raise CheckpointError(
            f"{error.filename} cannot be read ({error.strerror}); make it a file that you may "
            "read, and resume"
        ) from error
    except (
        OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError, ConfigError,
        TextError,
    ) as error:  # fmt: skip
        raise CheckpointError(
            f"the training state in {folder} is damaged ({error}); {advice}"
        ) from error


def remove_state(directory: Path) -> None:
    """So that training starts anew."""
    folder = directory / FOLDER
    for name in (_JSON, _TENSORS, _TOKENIZER):
        (folder / name).unlink(missing_ok=True)
        (folder / redo.PENDING / name).unlink(missing_ok=True)
    (folder / HISTORY).unlink(missing_ok=True)
    _remove_snapshots(folder, keep=())


def average_snapshots(directory: Path, updates: Sequence[int]) -> dict[str, Tensor]:
    """The mean of the snapshots taken after so many updates, in float64 on the way.

    Raises CheckpointError if one is missing or damaged.
    """
    total: dict[str, Tensor] = {}
    for count in updates:
        path = directory / FOLDER / f"snapshot-{count}.safetensors"
        try:
            weights = _load_snapshot(path)
        except (OSError, SafetensorError, ValueError) as error:
            raise CheckpointError(
                f"{path} cannot be read ({error}); bring it back and --resume, or train on from "
                "the last save with a larger --max-updates"
            ) from error
        for name, tensor in weights.items():
            total[name] = total.get(name, torch.zeros((), dtype=torch.float64)) + tensor.double()
    return {name: (tensor / len(updates)).float() for name, tensor in total.items()}


def weights_sha256(weights: Mapping[str, Tensor]) -> str:
    """Of the names, shapes and values of what model_weights gave."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def _load_snapshot(path: Path) -> dict[str, Tensor]:
    """Raises ValueError for other weights than were written; those of earlier versions of leanseq
    don't tell."""
    with safe_open(path, framework="pt") as file:
        expected = (file.metadata() or {}).get(_HASH)
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if expected not in (None, weights_sha256(weights)):
        raise ValueError("its weights are not what was written")
    return weights


def _remove_snapshots(folder: Path, keep: Sequence[int]) -> None:
    names = {f"snapshot-{count}.safetensors" for count in keep}
    for path in folder.glob("snapshot-*.safetensors"):
        if path.name not in names:
            path.unlink(missing_ok=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _part(tensors: Mapping[str, Any], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
