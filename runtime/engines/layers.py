"""The lines in which TensorRT's builder tells what it made: read from its log, one layer a line.

With a VERBOSE logger and ProfilingVerbosity.DETAILED the builder ends with a block `Layers:`, the
layers of every profile in the order they run. The names in it are those of the ONNX nodes; those of
the second profile bear ` [profile 1]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

GEMM = "gemm"
"""The type of a layer that a matrix-multiply kernel of its own will run."""

_PROFILE = re.compile(r" \[profile \d+\]")
_PROFILE_OF_NAME = re.compile(r"_myl(\d+)_\d+$|\[profile (\d+)\]")
_SUFFIX = re.compile(r"(_U\d+)?_myl\d+_\d+$")
_TENSOR = re.compile(r"\{ Name: (.*?), Dimensions: \[(.*?)\], .*?Datatype: (\w+),")
_LINE = re.compile(
    r"Name: (?P<name>.*?), LayerType: (?P<kind>\w*), Inputs: \[(?P<inputs>.*?)\], "
    r"Constants: \[(?P<constants>.*?)\], Outputs: \[(?P<outputs>.*?)\], TacticName: .*"
)
_METADATA = re.compile(r"\[ONNX Layer: (.*?)\](?:\x1f|(?=\[ONNX Layer: )|$)")
_ACTIVATION = re.compile(r"Total Activation Memory: (\d+) bytes")
_WEIGHTS = re.compile(r"Total Weights Memory: (\d+) bytes")


@dataclass(frozen=True, kw_only=True)
class LayerTensor:
    """dims: as printed; -1 is dynamic. dtype: as TensorRT prints it: Int8, Half, Float, ..."""

    name: str
    dims: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer of an engine. onnx_names: the ONNX nodes that it holds, as its metadata tells."""

    name: str
    kind: str
    profile: int
    inputs: tuple[LayerTensor, ...]
    constants: tuple[LayerTensor, ...]
    outputs: tuple[LayerTensor, ...]
    onnx_names: tuple[str, ...]

    def holds(self) -> frozenset[str]:
        """The ONNX nodes in it, by its metadata and by its name: `q+k+v_myl0_2` holds three."""
        bare = _SUFFIX.sub("", _PROFILE.sub("", self.name))
        return frozenset((*self.onnx_names, *bare.split("+")))


@dataclass(frozen=True, kw_only=True)
class BuilderLog:
    """What a builder's log says. activation_bytes: a number for each profile."""

    layers: tuple[Layer, ...]
    activation_bytes: tuple[int, ...]
    weights_bytes: int | None

    def of_profile(self, profile: int) -> tuple[Layer, ...]:
        return tuple(layer for layer in self.layers if layer.profile == profile)


def read_log(lines: Iterable[str]) -> BuilderLog:
    """Reads the lines of a builder's log; lines of other kinds are skipped."""
    layers: list[Layer] = []
    activation: list[int] = []
    weights = None
    for line in lines:
        if line.startswith("Name: ") and ", LayerType: " in line:
            layer = _layer(line, layers[-1].profile if layers else 0)
            if layer is not None:
                layers.append(layer)
        elif (found := _ACTIVATION.search(line)) is not None:
            activation.append(int(found[1]))
        elif (found := _WEIGHTS.search(line)) is not None:
            weights = int(found[1])
    return BuilderLog(
        layers=tuple(layers), activation_bytes=tuple(activation), weights_bytes=weights
    )


def strip_profile(name: str) -> str:
    """A tensor's or node's name as the ONNX file has it."""
    return _PROFILE.sub("", name)


def _layer(line: str, last_profile: int) -> Layer | None:
    found = _LINE.match(line)
    if found is None:  # signals and waits between streams
        return None
    of_name = _PROFILE_OF_NAME.search(found["name"])
    profile = int(of_name[1] or of_name[2]) if of_name is not None else last_profile
    return Layer(
        name=found["name"],
        kind=found["kind"],
        profile=profile,
        inputs=_tensors(found["inputs"]),
        constants=_tensors(found["constants"]),
        outputs=_tensors(found["outputs"]),
        onnx_names=tuple(_METADATA.findall(line.partition(", Metadata: ")[2].rstrip())),
    )


def _tensors(text: str) -> tuple[LayerTensor, ...]:
    return tuple(
        LayerTensor(name=name, dims=tuple(int(dim) for dim in dims.split(",") if dim), dtype=dtype)
        for name, dims, dtype in _TENSOR.findall(text)
    )
