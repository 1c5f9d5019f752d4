"""What a bundle says of itself: sizes, ids, text handling, graphs, and a hash of every file.

`manifest.json` is written once, by the build, and is the same for the same inputs, byte for byte.
What was measured stands beside it in `report.json`.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from runtime.errors import BundleError
from runtime.numbers import is_whole, shown

SCHEMA_MAJOR = 1
SCHEMA_MINOR = 1

Role = Literal["encoder", "decoder_step"]
Precision = Literal["fp32", "fp16", "int8", "int8_fp16"]
Variant = Literal["portable", "cpu_static", "cpu_static_greedy"]

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """An input or output of a graph. dims: a name for a dynamic size, a number for a fixed one."""

    name: str
    dtype: str  # as numpy names it: int32, bool, float32, float16
    dims: tuple[str | int, ...]


@dataclass(frozen=True, kw_only=True)
class GraphSpec:
    """One ONNX graph. files: the model first, then its external data. requires: operator domains
    or library versions beyond plain ONNX. int8_matmuls: how many MatMuls are quantized; int8_names:
    which, and float_matmuls: the others -> why they stayed float (of quantized graphs, since
    schema 1.1)."""

    role: Role
    precision: Precision
    variant: Variant
    files: tuple[str, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    opset: int
    requires: tuple[str, ...] = ()
    int8_matmuls: int = 0
    int8_names: tuple[str, ...] = ()
    float_matmuls: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Sizes that a runner needs. vocab_size is V of the logits, padding included; max_source and
    max_target count EOS and are None where the model has no limit."""

    encoder_layers: int
    decoder_layers: int
    num_heads: int  # of the decoder's caches
    head_dim: int
    vocab_size: int
    max_source: int | None
    max_target: int | None


@dataclass(frozen=True, kw_only=True)
class SpecialTokenIds:
    """Ids with a meaning. banned: never predicted (the graphs hold this already)."""

    pad: int
    unk: int
    bos: int
    eos: int
    decoder_start: int
    banned: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TextSpec:
    """File names of the two tokenizers, which may be one, and the source normalizer's version."""

    source_tokenizer: str
    target_tokenizer: str
    normalizer_version: int


@dataclass(frozen=True, kw_only=True)
class FileSpec:
    """A file of the bundle, by its content."""

    sha256: str
    size: int  # bytes


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The parsed manifest. `raw` is the JSON as it stands, unknown fields included."""

    model: ModelSpec
    special_ids: SpecialTokenIds
    text: TextSpec
    graphs: tuple[GraphSpec, ...]
    files: dict[str, FileSpec]
    search_defaults: dict[str, Any] = field(default_factory=dict)
    source: dict[str, Any] = field(default_factory=dict)  # what it was built from, and with what
    raw: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def bundle_id(self) -> str:
        """SHA-256 of the canonical manifest."""
        return hashlib.sha256(canonical_json(self.to_json()).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        if self.raw:
            return self.raw
        values: dict[str, Any] = {"schema": f"{SCHEMA_MAJOR}.{SCHEMA_MINOR}"}
        for name in ("model", "special_ids", "text"):
            values[name] = dataclasses.asdict(getattr(self, name))
        values["graphs"] = [dataclasses.asdict(graph) for graph in self.graphs]
        values["files"] = {
            name: dataclasses.asdict(file) for name, file in sorted(self.files.items())
        }
        values["search_defaults"] = self.search_defaults
        values["source"] = self.source
        as_json: dict[str, Any] = json.loads(json.dumps(values))  # tuples become lists
        return as_json

    @classmethod
    def from_json(cls, values: Any) -> Manifest:
        """Raises BundleError for another major schema, or when a field is missing or malformed."""
        if not isinstance(values, dict):
            raise BundleError(
                "manifest.json: expected an object; the bundle is damaged, rebuild it"
            )
        _check_schema(values.get("schema"))
        try:
            manifest = cls(
                model=read_spec(ModelSpec, values["model"]),
                special_ids=read_spec(SpecialTokenIds, values["special_ids"]),
                text=read_spec(TextSpec, values["text"]),
                graphs=tuple(_graph(graph) for graph in values["graphs"]),
                files={name: read_spec(FileSpec, file) for name, file in values["files"].items()},
                search_defaults=dict(values.get("search_defaults", {})),
                source=dict(values.get("source", {})),
                raw=values,
            )
            if 0 in vars(manifest.model).values():
                raise ValueError(f"a size is 0 in {manifest.model}")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BundleError(
                f"manifest.json: a field is missing or malformed ({error!r}); the bundle is "
                "damaged, rebuild it"
            ) from error
        manifest._check_names()
        return manifest

    def _check_names(self) -> None:
        for name in self.files:
            path = PurePosixPath(name)
            if not name or path.is_absolute() or ".." in path.parts or "\\" in name:
                raise BundleError(
                    f"manifest.json names {name!r}, which lies outside the bundle; don't use it"
                )
        used = [self.text.source_tokenizer, self.text.target_tokenizer]
        used += [name for graph in self.graphs for name in graph.files]
        for name in used:
            if name not in self.files:
                raise BundleError(
                    f"manifest.json uses {name!r} but lists no hash for it; rebuild the bundle"
                )


def canonical_json(values: Any) -> str:
    """One text for one value: sorted keys, no spaces, UTF-8."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _check_schema(schema: Any) -> None:
    major = str(schema).split(".")[0]
    if major != str(SCHEMA_MAJOR):
        raise BundleError(
            f"manifest.json has schema {schema!r}; this leanseq reads {SCHEMA_MAJOR}.x: rebuild "
            "the bundle with this version, or install the version that wrote it"
        )


def read_spec(kind: type[_T], values: Mapping[str, Any]) -> _T:
    """Takes the fields that this version knows; lists become tuples. TypeError for other types."""
    hints = _hints(kind)  # type: ignore[arg-type]
    taken = {n: tuple(v) if isinstance(v, list) else v for n, v in values.items() if n in hints}
    for name, value in taken.items():
        if not _fits(value, hints[name]):
            raise TypeError(f"{name} is {shown(value)}")
    return kind(**taken)


@functools.cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a field's type. No number is negative, or too large for libraries; a
    Literal may be any text, since later versions know more of them."""
    choices = get_args(hint)
    if get_origin(hint) is Literal:
        return isinstance(value, str)
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_fits(item, choices[0]) for item in value)
    if get_origin(hint) is dict:
        return isinstance(value, dict) and all(_fits(v, choices[1]) for v in value.values())
    if choices:
        return any(_fits(value, choice) for choice in choices)
    return type(value) is hint and (hint is not int or is_whole(value, 0))


def _graph(values: Mapping[str, Any]) -> GraphSpec:
    return dataclasses.replace(
        read_spec(GraphSpec, {**values, "inputs": (), "outputs": ()}),
        inputs=tuple(read_spec(TensorSpec, tensor) for tensor in values["inputs"]),
        outputs=tuple(read_spec(TensorSpec, tensor) for tensor in values["outputs"]),
    )
