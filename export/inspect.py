"""What a bundle and its engines are, read from manifest.json and engine.json alone.

No torch, no onnx, no TensorRT and no GPU is needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from export.engines import engine_record
from runtime.bundle import Bundle
from runtime.engines.engine import Engine
from runtime.engines.proof import CLAIM
from runtime.engines.store import all_engines
from runtime.errors import BundleError
from runtime.manifest import GraphSpec

_MB = 1e6


def inspect_bundle(path: str | Path) -> dict[str, Any]:
    """The JSON that `export inspect --json` prints.

    files that are damaged, and engines that are, stand under `problems`. Raises BundleError when
    there is no bundle at the path.
    """
    bundle = Bundle.open(path)
    engines, problems = [], []
    try:
        bundle.verify()
    except BundleError as error:
        problems.append(str(error))
    for found in all_engines(bundle):
        if isinstance(found, Engine):
            engines.append({**engine_record(found), "claim": CLAIM if found.proof.int8 else ""})
        else:
            problems.append(found.why)
    manifest = bundle.manifest
    return {
        "path": str(bundle.path),
        "bundle_id": bundle.bundle_id,
        "schema": manifest.to_json()["schema"],
        "bytes": bundle.size(),
        "model": dataclasses.asdict(manifest.model),
        "source": manifest.source,
        "graphs": [_graph(bundle, graph) for graph in manifest.graphs],
        "engines": engines,
        "problems": problems,
    }


def render(found: Mapping[str, Any]) -> str:
    """The same as a person reads it."""
    model = found["model"]
    text = [
        f"{found['path']}: bundle {found['bundle_id'][:12]}, schema {found['schema']}, "
        f"{found['bytes'] / _MB:.1f} MB",
        f"model: {model['encoder_layers']} + {model['decoder_layers']} layers, "
        f"{model['num_heads']} heads of {model['head_dim']}, vocabulary {model['vocab_size']:,}, "
        f"source up to {model['max_source'] or 'any length'}, target up to "
        f"{model['max_target'] or 'any length'}",
        *_packed(found["source"]),
        "",
        "ONNX graphs",
    ]
    for graph in found["graphs"]:
        text += ["", *_graph_text(graph)]
    text += ["", "TensorRT engines" if found["engines"] else "TensorRT engines: none"]
    for engine in found["engines"]:
        text += ["", *_engine_text(engine)]
    if found["problems"]:
        text += ["", "Problems:", *(f"  {problem}" for problem in found["problems"])]
    return "\n".join(text)


def _packed(source: Mapping[str, Any]) -> list[str]:
    """Where a bundle that was packed came from."""
    origin = source.get("packed_from")
    if not isinstance(origin, dict):
        return []
    return [
        f"packed from bundle {str(origin.get('bundle'))[:12]}: {origin.get('precision')}, "
        f"{', '.join(map(str, origin.get('variants', [])))}"
    ]


def _graph(bundle: Bundle, graph: GraphSpec) -> dict[str, Any]:
    size = sum(bundle.manifest.files[name].size for name in graph.files)
    return {**dataclasses.asdict(graph), "bytes": size}


def _graph_text(graph: Mapping[str, Any]) -> list[str]:
    requires = f", needs {', '.join(graph['requires'])}" if graph["requires"] else ""
    text = [
        f"  {graph['role']} {graph['precision']} ({graph['variant']}): {graph['files'][0]}, "
        f"{graph['bytes'] / _MB:.1f} MB, opset {graph['opset']}{requires}",
        *_tensors("inputs", graph["inputs"]),
        *_tensors("outputs", graph["outputs"]),
    ]
    if graph["int8_matmuls"]:
        unnamed = "" if graph["int8_names"] else ", not named in bundles of schema 1.0"
        text.append(f"    INT8 MatMuls: {graph['int8_matmuls']}{unnamed}")
        text += [f"      {line}" for line in _grouped(graph["int8_names"])]
        text += _float_text(_by_reason(graph["float_matmuls"]))
    else:
        text.append(f"    INT8 MatMuls: none, all is computed in {_width(graph['precision'])}")
    return text


def _engine_text(engine: Mapping[str, Any]) -> list[str]:
    facts, proof, limits = engine["facts"], engine["proof"], engine["limits"]
    library = engine["library"].replace("_", "-")
    text = [
        f"  {engine['role']} {engine['precision']} for {engine['target']} by {library} "
        f"{engine['version']}: plan {engine['plan_size'] / _MB:.1f} MB, built in "
        f"{facts['seconds']:.1f} s",
        f"    {engine['directory']}",
        f"    limits: batch {limits['max_batch']}, beam {limits['max_beam']}, source "
        f"{limits['max_source']}, target {limits['max_target']}",
        f"    weights {_megabytes(facts['weights_bytes'])}",
    ]
    for place, profile in enumerate(engine["profiles"]):
        text += _profile_text(place, profile, facts)
    if not proof["proved"]:
        return [*text, f"    INT8 MatMuls: not proved, {proof['reason']}"]
    if not proof["int8"]:
        return [*text, f"    INT8 MatMuls: none, all is computed in {_width('fp16')}"]
    text.append(f"    INT8 MatMuls: {len(proof['int8'])}, {engine['claim']}")
    text += [f"      {line}" for line in _grouped(proof["int8"])]
    reasons = {"its weight is kept float in the graph": proof["float_weights"]}
    reasons["it multiplies two activations"] = proof["products"]
    return text + _float_text(reasons)


def _profile_text(
    place: int, profile: Mapping[str, Any], facts: Mapping[str, Any]
) -> Iterable[str]:
    activation = dict(enumerate(facts["activation_bytes"])).get(place)
    gathered = dict(enumerate(facts["gather_bytes"])).get(place)
    share = f", {_megabytes(gathered)} of it the cache Gather" if gathered else ""
    yield f"    profile {place}: activations {_megabytes(activation)}{share}"
    for names, shapes in _merged(profile):
        low, usual, high = (_shape(shapes[key]) for key in ("min", "opt", "max"))
        yield f"      {names}: {low} to {high}, best at {usual}"


def _merged(profile: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Inputs that stand one after the other and share a range are told of together."""
    groups: list[tuple[list[str], Mapping[str, Any]]] = []
    for name, shapes in profile.items():
        if groups and groups[-1][1] == shapes:
            groups[-1][0].append(name)
        else:
            groups.append(([name], shapes))
    return [(_span(names), shapes) for names, shapes in groups]


def _tensors(title: str, tensors: Sequence[Mapping[str, Any]]) -> list[str]:
    groups: list[tuple[list[str], tuple[Any, ...]]] = []
    for tensor in tensors:
        kind = (tensor["dtype"], tuple(tensor["dims"]))
        if groups and groups[-1][1] == kind:
            groups[-1][0].append(tensor["name"])
        else:
            groups.append(([tensor["name"]], kind))
    cells = [f"{_span(names)} {dtype} {_shape(dims)}" for names, (dtype, dims) in groups]
    return [f"    {title}: {cells[0]}", *(f"      {cell}" for cell in cells[1:])] if cells else []


def _span(names: Sequence[str]) -> str:
    return f"{names[0]} ... {names[-1]}" if len(names) > 2 else ", ".join(names)


def _grouped(names: Sequence[str]) -> list[str]:
    """A line a layer: `decoder.layers.0: self_attention.q_proj, ...`."""
    layers: dict[str, list[str]] = {}
    for name in names:
        parts = name.split(".")
        cut = 3 if len(parts) > 3 and parts[1] == "layers" else 0
        layers.setdefault(".".join(parts[:cut]), []).append(".".join(parts[cut:]))
    return [f"{layer}: {', '.join(n)}" if layer else ", ".join(n) for layer, n in layers.items()]


def _by_reason(float_matmuls: Mapping[str, str]) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    for name, reason in float_matmuls.items():
        reasons.setdefault(reason, []).append(name)
    return reasons


def _float_text(reasons: Mapping[str, Sequence[str]]) -> list[str]:
    text = []
    for reason, names in reasons.items():
        if names:
            text.append(f"    kept float, since {reason}: {len(names)}")
            text += [f"      {line}" for line in _grouped(names)]
    return text


def _width(precision: str) -> str:
    return "float16 (sums and softmax in float32)" if "fp16" in precision else "float32"


def _shape(dims: Sequence[Any]) -> str:
    return "x".join(map(str, dims))


def _megabytes(size: int | None) -> str:
    return "? MB" if size is None else f"{size / _MB:.1f} MB"
