"""Is what was compiled what the graph asked for: every quantized MatMul, by name, in INT8.

TensorRT drops INT8 without a word where it finds no pattern that it knows: a weight scale along the
wrong axis, Q/DQ on the activations alone, some layouts of a fused QKV. The engine then builds, runs
and translates; it only is slower and larger than it should be. So each build is checked against the
builder's own log (runtime.engines.layers). That proves "compiled as INT8". Which kernel runs is
decided on the GPU, from what is there.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from runtime.engines.layers import GEMM, BuilderLog, Layer, strip_profile
from runtime.engines.profiles import Profile
from runtime.errors import ProofError
from runtime.graph_contract import BEAM_INDICES

CLAIM = "compiled as INT8, by the builder's log; the kernels are chosen on the GPU"

_INT8 = "Int8"
_UNFUSED = re.compile(r"Cast\w*Fc")
"""In the name of a layer that turns INT8 back into floats before it multiplies."""
_ELEMENT_BYTES = {"Half": 2, "Float": 4}
_WEIGHTS_MARGIN = 1.05
_WEIGHTS_SLACK = 64 * 1024


@dataclass(frozen=True, kw_only=True)
class NetworkFacts:
    """What the parsed graph holds, in graph order.

    quantized: MatMuls with Q/DQ on activation and weight. half_quantized: with Q/DQ on one of them
    only -> which one lacks it. float_weights: with a float weight. products: of two activations.
    constant_bytes: of all constants, in the types that the graph stores.
    """

    quantized: tuple[str, ...]
    half_quantized: dict[str, str] = field(default_factory=dict)
    float_weights: tuple[str, ...] = ()
    products: tuple[str, ...] = ()
    constant_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Proof:
    """int8: MatMuls found in an INT8 gemm layer, in every profile. float_weights, products: those
    that the graph keeps float. proved is False, with a reason, where the log holds no layers: that
    is tolerated of `tensorrt`, never of tensorrt_rtx."""

    proved: bool
    reason: str
    int8: tuple[str, ...]
    float_weights: tuple[str, ...]
    products: tuple[str, ...]
    weights_bytes: int | None
    weights_bound: int

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def prove(
    log: BuilderLog,
    network: NetworkFacts,
    *,
    expected: int,
    profiles: int,
    graph: str,
    strict: bool = True,
) -> Proof:
    """Checks an engine's log. Raises ProofError, naming the MatMul and where it went instead.

    expected: quantized MatMuls that the manifest promises. graph: its name in messages. strict:
    a log without layers is an error.
    """
    if network.half_quantized:
        name, lacking = next(iter(network.half_quantized.items()))
        raise ProofError(
            f"{graph}: MatMul {name} has no Q/DQ on its {lacking}, so TensorRT computes it in "
            f"float ({len(network.half_quantized)} such MatMuls); quantize both inputs: build the "
            "bundle again"
        )
    if len(network.quantized) != expected:
        raise ProofError(
            f"{graph}: the graph has {len(network.quantized)} quantized MatMuls as TensorRT reads "
            f"it, expected {expected} by the manifest; build the bundle again"
        )
    bound = int(network.constant_bytes * _WEIGHTS_MARGIN) + _WEIGHTS_SLACK
    reason = ""
    if not log.layers:
        reason = "the builder's log lists no layers"
        if strict:
            raise ProofError(
                f"{graph}: {reason}, so nothing shows that its MatMuls are INT8; use a TensorRT "
                "that leanseq is tested with (constraints.txt)"
            )
    elif network.quantized:
        for profile in range(profiles):
            _check_profile(log.of_profile(profile), network.quantized, profile, graph)
    if log.weights_bytes is not None and log.weights_bytes > bound:
        raise ProofError(
            f"{graph}: the engine holds {log.weights_bytes:,} bytes of weights, expected at most "
            f"{bound:,}: weights were stored in a wider type than the graph's; report this"
        )
    return Proof(
        proved=not reason,
        reason=reason,
        int8=() if reason else network.quantized,
        float_weights=network.float_weights,
        products=network.products,
        weights_bytes=log.weights_bytes,
        weights_bound=bound,
    )


def gather_bytes(log: BuilderLog, profiles: Sequence[Profile]) -> tuple[int, ...]:
    """Activation memory that the Gather on the caches takes at most, a number for each profile.

    From the order of the layers: the gathered caches that are alive at a time, at their largest. 0
    where a graph gathers nothing.
    """
    return tuple(
        _gathered_at_once(log.of_profile(place)) * _cache_elements(profile)
        for place, profile in enumerate(profiles)
    )


def _check_profile(
    layers: Sequence[Layer], quantized: Sequence[str], profile: int, graph: str
) -> None:
    held: dict[str, list[Layer]] = {}
    for layer in layers:
        if layer.kind == GEMM:
            for name in layer.holds():
                held.setdefault(name, []).append(layer)
    for name in quantized:
        found = held.get(name, [])
        if len(found) != 1 or not _computes_int8(found[0]):
            raise ProofError(
                f"{graph}: MatMul {name} is quantized but not compiled as INT8 in profile "
                f"{profile}: {_where(name, found, layers)}. Expected one gemm layer with INT8 "
                "activations and a constant INT8 weight; its scales stand along another axis, or "
                "it is fused in a way that TensorRT doesn't know"
            )
    for layer in layers:
        if _UNFUSED.search(layer.name) and _touches_int8(layer):
            raise ProofError(
                f"{graph}: layer {layer.name} of profile {profile} turns INT8 back into floats "
                f"before it multiplies ({', '.join(layer.onnx_names[:3])}); build the bundle again"
            )


def _computes_int8(layer: Layer) -> bool:
    weights = max(layer.constants, key=lambda tensor: math.prod(tensor.dims), default=None)
    return (
        weights is not None
        and weights.dtype == _INT8
        and any(tensor.dtype == _INT8 for tensor in layer.inputs)
    )


def _touches_int8(layer: Layer) -> bool:
    return any(tensor.dtype == _INT8 for tensor in (*layer.inputs, *layer.constants))


def _where(name: str, found: Sequence[Layer], layers: Sequence[Layer]) -> str:
    if len(found) > 1:
        return f"it is in {len(found)} gemm layers"
    if found:
        inputs, constants = (
            ", ".join(dict.fromkeys(tensor.dtype for tensor in tensors)) or "none"
            for tensors in (found[0].inputs, found[0].constants)
        )
        return f"its gemm layer {found[0].name} has inputs {inputs} and constants {constants}"
    elsewhere = [layer for layer in layers if name in layer.onnx_names]
    if not elsewhere:
        return "no layer names it"
    multiplies = next((layer for layer in elsewhere if "Fc" in layer.name), elsewhere[-1])
    return f"it is in {multiplies.name} ({multiplies.kind})"


def _gathered_at_once(layers: Sequence[Layer]) -> int:
    """Bytes of one element of each gathered cache that is alive at the same time, at most."""
    last_use = {tensor.name: place for place, layer in enumerate(layers) for tensor in layer.inputs}
    alive: list[tuple[int, int, int]] = []
    for place, layer in enumerate(layers):
        names = {strip_profile(tensor.name) for tensor in layer.inputs}
        if BEAM_INDICES in names and any(name.startswith("self_") for name in names):
            alive += [
                (place, last_use[out.name], _ELEMENT_BYTES.get(out.dtype, 4))
                for out in layer.outputs
                if out.name in last_use
            ]
    return max(
        (
            sum(size for start, end, size in alive if start <= place <= end)
            for place in range(len(layers))
        ),
        default=0,
    )


def _cache_elements(profile: Profile) -> int:
    sizes = (math.prod(shapes.max) for name, shapes in profile.items() if name.startswith("self_"))
    return max(sizes, default=0)
