"""The shape of a Transformer, as values: sizes, where the norms stand, what is tied, special ids.

Nothing here imports torch. The fields are wider than the paper needs where models that people
import later (Marian, BART, NLLB, T5) differ by a value only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

from model.errors import ConfigError
from runtime.errors import nearest_hint
from runtime.numbers import is_finite, is_whole, shown

Norm = Literal["pre", "post"]
Positions = Literal["sinusoidal", "learned", "rotary"]
Activation = Literal["relu", "gelu"]
Tying = Literal["all", "decoder", "none"]
CrossScore = Literal["scaled_dot", "dot", "general", "concat", "additive"]

VOCAB_MULTIPLE = 64
MAX_LAYERS = 10_000
"""Of one stack. DeepNet, the deepest known, trained 500 (Wang et al. 2022, arXiv 2203.00555)."""


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """One stack of layers, the encoder's or the decoder's."""

    num_layers: int
    num_heads: int
    ffn_dim: int


@dataclass(frozen=True, kw_only=True)
class SpecialIds:
    """Token ids with a meaning of their own. Targets start with decoder_start_id."""

    pad_id: int = 0
    unk_id: int = 1
    bos_id: int = 2
    eos_id: int = 3
    decoder_start_id: int = 2


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Everything that fixes the weights' shapes and the function they compute.

    src_vocab_size, tgt_vocab_size: pieces that exist. The embedding tables hold as many rows
        rounded up to a multiple of 64; the rest is never predicted.
    head_dim: width of one head; num_heads * head_dim need not be d_model.
    norm: "post" as in the paper (section 3.1), "pre" as its followers, with a norm after the stack.
    tying: "all" shares source embedding, target embedding and output projection (section 3.4),
        "decoder" the latter two, "none" nothing.
    embedding_scale: what embeddings are multiplied with; None is sqrt(d_model) (section 3.4).
    attention_scale: what dot products are multiplied with; None is 1/sqrt(head_dim) (3.2.1).
    cross_score: how the cross-attention compares a target state with a source state: as the paper
        does, or as those before it did (model.scores); then attention_scale is self-attention's.
    dropout: on embeddings and on every sublayer's output (section 5.4); ffn_dropout: after the
        activation; attention_dropout: on the attention weights.
    max_source, max_target: tokens, EOS counted; also the size of the position tables.
    """

    src_vocab_size: int
    tgt_vocab_size: int
    d_model: int
    head_dim: int
    encoder: StackConfig
    decoder: StackConfig
    dropout: float = 0.1
    ffn_dropout: float = 0.0
    attention_dropout: float = 0.0
    activation: Activation = "relu"
    norm: Norm = "post"
    norm_eps: float = 1e-5
    positions: Positions = "sinusoidal"
    position_offset: int = 0
    tying: Tying = "all"
    embedding_scale: float | None = None
    attention_scale: float | None = None
    cross_score: CrossScore = "scaled_dot"
    max_source: int = 256
    max_target: int = 256
    special_ids: SpecialIds = field(default_factory=SpecialIds)

    def __post_init__(self) -> None:
        sizes = {
            "src_vocab_size": self.src_vocab_size,
            "tgt_vocab_size": self.tgt_vocab_size,
            "d_model": self.d_model,
            "head_dim": self.head_dim,
            "max_source": self.max_source,
            "max_target": self.max_target,
        }
        for side, stack in (("encoder", self.encoder), ("decoder", self.decoder)):
            sizes |= {f"{side}.{name}": value for name, value in dataclasses.asdict(stack).items()}
        for name, value in sizes.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(
                    f"{name} is {shown(value)}; expected a whole number of at least 1"
                )
            if value >= 2**31:  # what PyTorch and ONNX hold
                raise ConfigError(f"{name} is {shown(value)}; expected a whole number below 2**31")
            if name.endswith("num_layers") and value > MAX_LAYERS:
                raise ConfigError(
                    f"{name} is {value:,}; expected a whole number of at most {MAX_LAYERS:,}"
                )
        for name in ("dropout", "ffn_dropout", "attention_dropout"):
            value = getattr(self, name)
            if not is_finite(value) or not 0 <= value < 1:
                raise ConfigError(f"{name} is {shown(value)}; expected a number from 0 to below 1")
        self._check_scales_and_ids()
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(
                    f"{name} is {shown(getattr(self, name))}; expected one of {', '.join(allowed)}"
                )
        if self.tying == "all" and self.src_vocab_size != self.tgt_vocab_size:
            raise ConfigError(
                f"tying 'all' needs one vocabulary, found {self.src_vocab_size} source and "
                f"{self.tgt_vocab_size} target pieces; use tying 'decoder'"
            )
        if self.positions == "rotary" and self.head_dim % 2:
            raise ConfigError(f"rotary positions need an even head_dim, found {self.head_dim}")
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ConfigError(f"sinusoidal positions need an even d_model, found {self.d_model}")
        inner = self.decoder.num_heads * self.head_dim
        if self.cross_score in ("dot", "general") and inner != self.d_model:
            raise ConfigError(
                f"cross_score {self.cross_score!r} takes the decoder's states as they are, so its "
                f"heads must share d_model out among them; found {self.decoder.num_heads} heads of "
                f"{self.head_dim} for d_model {self.d_model}: use scaled_dot, concat or additive"
            )

    def _check_scales_and_ids(self) -> None:
        for name in ("norm_eps", "embedding_scale", "attention_scale"):
            value = getattr(self, name)
            if value is None and name != "norm_eps":
                continue
            if not is_finite(value):
                raise ConfigError(f"{name} is {shown(value)}; expected a finite number")
        if not is_whole(self.position_offset, 0, 2**31 - 1):
            raise ConfigError(
                f"position_offset is {shown(self.position_offset)}; expected a whole number of at "
                "least 0 and below 2**31"
            )
        rows = padded_size(self.tgt_vocab_size)
        for name, value in dataclasses.asdict(self.special_ids).items():
            if not is_whole(value, 0, rows - 1):
                raise ConfigError(
                    f"special_ids.{name} is {shown(value)}; expected a whole number from 0 to "
                    f"{rows - 1}, a row of the embedding table"
                )

    @property
    def scale_of_embedding(self) -> float:
        return self.d_model**0.5 if self.embedding_scale is None else self.embedding_scale

    @property
    def scale_of_attention(self) -> float:
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    @property
    def banned_ids(self) -> tuple[int, ...]:
        """Ids that are never predicted: pad, bos, unk, and the padding of the vocabulary."""
        ids = self.special_ids
        padding = range(self.tgt_vocab_size, padded_size(self.tgt_vocab_size))
        return tuple(sorted({ids.pad_id, ids.bos_id, ids.unk_id, *padding}))

    def to_json(self) -> dict[str, Any]:
        """Without fields that came later than schema 1 and say what was true before them, so that
        older versions read what they can run."""
        values = dataclasses.asdict(self)
        return {k: v for k, v in values.items() if k not in _ADDED or v != _ADDED[k]}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Raises ConfigError for unknown or missing keys, naming the nearest known one."""
        values = _mapping(values, "")
        nested = {"encoder": StackConfig, "decoder": StackConfig, "special_ids": SpecialIds}
        for name, kind in nested.items():
            if name in values:
                values[name] = _build(kind, values[name], f"{name}.")
        config: Self = _build(cls, values, "")
        return config


def _build(kind: Any, values: Any, prefix: str) -> Any:
    values = _mapping(values, prefix)
    known = [f.name for f in dataclasses.fields(kind)]
    for key in values:
        if key not in known:
            hint = nearest_hint(str(key), known, prefix)
            raise ConfigError(f"unknown model config key {prefix}{key!r}; {hint}")
    required = [f.name for f in dataclasses.fields(kind) if _is_required(f)]
    missing = [name for name in required if name not in values]
    if missing:
        raise ConfigError(f"model config lacks {', '.join(prefix + name for name in missing)}")
    return kind(**values)


def _mapping(values: Any, prefix: str) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        raise ConfigError(f"model config {prefix}: found {shown(values)}; expected an object")
    return dict(values)


def _is_required(f: dataclasses.Field[Any]) -> bool:
    return f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING


def padded_size(vocab_size: int) -> int:
    """Rows of an embedding table for vocab_size pieces: rounded up to a multiple of 64."""
    return -(-vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE


_CHOICES: dict[str, tuple[str, ...]] = {
    "activation": ("relu", "gelu"),
    "norm": ("pre", "post"),
    "positions": ("sinusoidal", "learned", "rotary"),
    "tying": ("all", "decoder", "none"),
    "cross_score": get_args(CrossScore),
}

_ADDED: dict[str, Any] = {"cross_score": "scaled_dot"}
"""Fields that a config may lack, and what that means."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A named model size, and the vocabulary it is usually trained with."""

    num_encoder_layers: int
    num_decoder_layers: int
    d_model: int
    ffn_dim: int
    num_heads: int
    dropout: float
    vocab_size: int

    def config(self, vocab_size: int, **changes: Any) -> ModelConfig:
        """The ModelConfig for one joint vocabulary; `changes` are fields of ModelConfig."""
        values: dict[str, Any] = {
            "src_vocab_size": vocab_size,
            "tgt_vocab_size": vocab_size,
            "d_model": self.d_model,
            "head_dim": self.d_model // self.num_heads,
            "encoder": StackConfig(
                num_layers=self.num_encoder_layers, num_heads=self.num_heads, ffn_dim=self.ffn_dim
            ),
            "decoder": StackConfig(
                num_layers=self.num_decoder_layers, num_heads=self.num_heads, ffn_dim=self.ffn_dim
            ),
            "dropout": self.dropout,
        }
        return ModelConfig(**(values | changes))


PRESETS: dict[str, Preset] = {
    # Wu et al. 2021, arXiv 2105.14462: the size for small corpora such as Multi30k.
    "tiny": Preset(
        num_encoder_layers=4, num_decoder_layers=4, d_model=128, ffn_dim=256, num_heads=4,
        dropout=0.1, vocab_size=4000,
    ),
    "small": Preset(
        num_encoder_layers=3, num_decoder_layers=3, d_model=256, ffn_dim=1024, num_heads=4,
        dropout=0.1, vocab_size=8000,
    ),
    # Vaswani et al. 2017, table 3, rows "base" and "big".
    "base": Preset(
        num_encoder_layers=6, num_decoder_layers=6, d_model=512, ffn_dim=2048, num_heads=8,
        dropout=0.1, vocab_size=32000,
    ),
    "big": Preset(
        num_encoder_layers=6, num_decoder_layers=6, d_model=1024, ffn_dim=4096, num_heads=16,
        dropout=0.3, vocab_size=32000,
    ),
}  # fmt: skip
"""Names and sizes. NAME-6-2 is NAME with 6 encoder and 2 decoder layers."""

# Kasai et al. 2021, arXiv 2006.10369: an encoder runs once a sentence, a decoder once a token; they
# found that depth is better spent on the encoder.
PRESETS |= {
    f"{name}-6-2": dataclasses.replace(PRESETS[name], num_encoder_layers=6, num_decoder_layers=2)
    for name in ("tiny", "small", "base")
}
