"""The settings of one training run: values, checked when made, with a JSON round trip."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

from model.config import PRESETS, CrossScore, ModelConfig, Norm, Positions
from model.errors import ConfigError
from runtime.errors import nearest_hint
from runtime.numbers import is_finite, shown

Precision = Literal["auto", "fp32", "bf16"]

_RESUMABLE = ("max_updates", "max_minutes", "validate_every", "patience")
"""What may differ when training goes on."""
_TRAIN_ON = (
    "learning_rate", "warmup", "cooldown", "label_smoothing", "r_drop", "r_drop_from", "clip_norm",
    "average", "save_every",
)  # fmt: skip
"""What may differ as well once it has ended: the schedule and the loss of a second stage."""


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How a model is trained.

    preset: the model's sizes (model.config.PRESETS). vocab_size, dropout, encoder_layers,
        decoder_layers: None takes the preset's.
    norm, positions, cross_score, ffn_dropout, attention_dropout, max_source, max_target: see
        ModelConfig.
    max_updates: optimizer steps. max_minutes: wall-clock minutes of training, validation included,
        counted across resumes; the learning rate comes down in time for whichever ends first.
    learning_rate: the largest, reached after `warmup` updates; None takes `peak_learning_rate`.
    cooldown: the share at the end over which it falls to zero (model.training.schedule).
    label_smoothing, r_drop: see model.training.loss; r_drop is the weight of drawing together what
        two dropout masks predict, 0 does without and takes half the time; r_drop_from: the share of
        the training after which it begins. bpe_dropout: see model.training.subword_dropout; 0 does
        without.
    batch_tokens: padded tokens on the longer side of a batch;
        accumulation: batches an update, computed side by side on as many cores.
    clip_norm: largest norm of the gradient; 0 does not clip.
    average: the weights of this many saves, the last ones, are averaged at the end, which is one of
        the candidates (model.training.selection); save_every: updates between saves, from which
        training resumes.
    validate_every: updates between validations, each with samples; valid_lines: at most so many
        validation pairs are translated for their BLEU.
    patience: validations without a better BLEU after which the cool-down begins early, and the
        training ends with it; None waits for max_updates.
    precision: of matrix products; "auto" is bf16 where the processor has instructions for it.
    seed: of weights, batches and dropout.
    """

    preset: str = "tiny"
    vocab_size: int | None = None
    encoder_layers: int | None = None
    decoder_layers: int | None = None
    norm: Norm = "pre"
    positions: Positions = "sinusoidal"
    cross_score: CrossScore = "scaled_dot"
    dropout: float | None = None
    ffn_dropout: float = 0.0
    attention_dropout: float = 0.0
    max_source: int = 256
    max_target: int = 256
    max_updates: int = 20_000
    max_minutes: float | None = None
    learning_rate: float | None = None
    warmup: int = 1000
    cooldown: float = 0.33
    label_smoothing: float = 0.1
    r_drop: float = 0.0
    r_drop_from: float = 0.0
    bpe_dropout: float = 0.0
    batch_tokens: int = 2048
    accumulation: int = 2
    clip_norm: float = 1.0
    average: int = 5
    save_every: int = 200
    validate_every: int = 500
    valid_lines: int = 1000
    patience: int | None = None
    precision: Precision = "auto"
    seed: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.preset, str) or self.preset not in PRESETS:
            raise ConfigError(
                f"preset is {shown(self.preset)}; expected one of {', '.join(PRESETS)}"
            )
        if self.precision not in get_args(Precision):
            raise ConfigError(f"precision is {shown(self.precision)}; expected auto, fp32 or bf16")
        for name in (
            "max_updates",
            "warmup",
            "batch_tokens",
            "accumulation",
            "average",
            "save_every",
            "validate_every",
            "valid_lines",
        ):
            self._require_whole(name, low=1)
        for name, bits in (("vocab_size", 31), ("patience", 63)):
            if getattr(self, name) is not None:
                self._require_whole(name, low=1, bits=bits)
        self._require_whole("seed", low=0)
        for name in ("learning_rate", "max_minutes"):
            if getattr(self, name) is not None:
                self._require(name, lambda value: value > 0, "a number above 0")
        for name in ("clip_norm", "r_drop"):
            self._require(name, lambda value: value >= 0, "a number of at least 0")
        for name in ("label_smoothing", "bpe_dropout"):
            self._require(name, lambda value: 0 <= value < 1, "a number below 1 of at least 0")
        for name in ("cooldown", "r_drop_from"):
            self._require(name, lambda value: 0 <= value <= 1, "a number up to 1 of at least 0")
        if self.patience is not None and self.cooldown == 1:
            raise ConfigError(
                f"patience is {self.patience} and cooldown is 1; expected a cooldown below 1, "
                "since patience decides when it begins"
            )
        self.model_config(self.pieces)  # checks the rest

    def _require_whole(self, name: str, *, low: int, bits: int = 63) -> None:
        """bits: below 2**bits, what libraries hold."""
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            raise ConfigError(
                f"{name} is {shown(value)}; expected a whole number of at least {low}"
            )
        if value >= 2**bits:
            raise ConfigError(f"{name} is {shown(value)}; expected a whole number below 2**{bits}")

    def _require(self, name: str, ok: Callable[[float], bool], what: str) -> None:
        value = getattr(self, name)
        if not is_finite(value) or not ok(value):
            raise ConfigError(f"{name} is {shown(value)}; expected {what}")

    @property
    def pieces(self) -> int:
        """The size of the vocabulary that is trained."""
        return PRESETS[self.preset].vocab_size if self.vocab_size is None else self.vocab_size

    @property
    def peak_learning_rate(self) -> float:
        """learning_rate, or what suits the width: for post-norm about what the rule of Vaswani et
        al. 2017, section 5.3, comes to (7e-4 for base), twice as much for pre-norm."""
        if self.learning_rate is not None:
            return self.learning_rate
        factor = 3e-3 if self.norm == "pre" else 1.5e-3
        return factor * math.sqrt(128 / PRESETS[self.preset].d_model)

    def model_config(self, vocab_size: int) -> ModelConfig:
        """The model that these settings train, for a tokenizer of vocab_size pieces."""
        changes: dict[str, Any] = {
            name: getattr(self, name)
            for name in (
                "norm",
                "positions",
                "cross_score",
                "ffn_dropout",
                "attention_dropout",
                "max_source",
                "max_target",
            )
        }
        if self.dropout is not None:
            changes["dropout"] = self.dropout
        layers = {
            f"num_{side}_layers": getattr(self, f"{side}_layers")
            for side in ("encoder", "decoder")
            if getattr(self, f"{side}_layers") is not None
        }
        return dataclasses.replace(PRESETS[self.preset], **layers).config(vocab_size, **changes)

    def differences(self, other: TrainingSettings, *, ended: bool = False) -> list[str]:
        """What forbids going on from a state of `other`: "name: theirs, now ours". ended: that
        training has made all its updates."""
        allowed = _RESUMABLE + (_TRAIN_ON if ended else ())
        return [text for name, text in self.changes(other).items() if name not in allowed]

    def changes(self, other: TrainingSettings) -> dict[str, str]:
        """All that differs from `other`, by name: "name: theirs, now ours"."""
        return {
            f.name: f"{f.name}: {getattr(other, f.name)!r}, now {getattr(self, f.name)!r}"
            for f in dataclasses.fields(self)
            if getattr(self, f.name) != getattr(other, f.name)
        }

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Raises ConfigError for an unknown key, naming the nearest known one."""
        known = [f.name for f in dataclasses.fields(cls)]
        for key in values:
            if key not in known:
                raise ConfigError(f"unknown training setting {key!r}; {nearest_hint(key, known)}")
        return cls(**values)


def check_stages(stages: Sequence[TrainingSettings]) -> None:
    """Raises ConfigError where several stages are not all bounded by updates, or one can't go on
    from the one before: for no more updates, or settings that may not change."""
    if len(stages) == 1:
        return
    for number, stage in enumerate(stages, start=1):
        for name in ("max_minutes", "patience"):
            if getattr(stage, name) is not None:
                raise ConfigError(
                    f"stage {number}: {name} is {shown(getattr(stage, name))}; expected none, "
                    "since updates say when each of several stages ends"
                )
    for number, (before, stage) in enumerate(itertools.pairwise(stages), start=2):
        wrong = stage.differences(before, ended=True)
        if stage.max_updates <= before.max_updates:
            wrong.insert(
                0,
                f"max_updates is {stage.max_updates}; expected more than the {before.max_updates} "
                "before, since updates are counted from the very beginning",
            )
        if wrong:
            raise ConfigError(f"stage {number} can't follow the one before: {'; '.join(wrong)}")


def demo_settings() -> TrainingSettings:
    """For the embedded corpus, in under five minutes on two cores
    (docs/decisions/0004-training.md says how they were chosen)."""
    return TrainingSettings(
        preset="tiny",
        vocab_size=1000,
        norm="pre",
        dropout=0.05,
        learning_rate=3e-3,
        warmup=200,
        cooldown=0.6,
        batch_tokens=512,
        accumulation=2,
        max_updates=2400,
        max_minutes=4.5,
        save_every=100,
        average=3,
    )
