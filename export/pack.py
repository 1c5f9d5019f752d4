"""A bundle with only what one configuration loads: one precision, the variants that it would use.

Nothing is computed: files are copied and checked against their hashes. No torch, no onnx.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from runtime.bundle import Bundle, finish_manifest, write_bundle
from runtime.errors import OptionError
from runtime.manifest import GraphSpec, Manifest, Precision, Role

logger = logging.getLogger(__name__)

PACKED_FROM = "packed_from"
"""Of the manifest's `source`: the bundle that it was packed from, and what of it was kept."""


def pack(bundle: Path, only: str, out: Path, *, variants: Sequence[str] = ()) -> dict[str, Any]:
    """Writes to `out` a bundle of that precision alone; all or nothing. Returns what it is.

    variants: those to keep; without any, of each graph the one that a CPU loads. Engines are not
    taken along: they are built where they run. Of report.json what was measured in this precision
    stays, and the eager model beside it.
    Raises OptionError for a precision or variant that there is not, or an `out` that is the bundle
    itself or lies inside it; BundleError when a file is not as it was built, or `out` holds
    something other than a bundle.
    """
    source = Bundle.open(bundle)
    _check_out(source, out)
    graphs = _chosen(source, only, variants)
    manifest = _manifest(source, graphs)
    names = [name for graph in graphs for name in graph.files]
    names += [source.manifest.text.source_tokenizer, source.manifest.text.target_tokenizer]
    with write_bundle(out) as directory:
        for name in dict.fromkeys(names):
            _copy(source, name, directory)
        finished = finish_manifest(directory, manifest)
        report = _report(source, graphs)
        if report is not None:
            new = Bundle(directory, finished)
            new.write_report({**report, "bundle_bytes": new.size()})
    packed = Bundle.open(out)
    packed.verify()
    logger.info("bundle: %s written, id %s", out, packed.bundle_id[:12])
    return {
        "path": str(out),
        "bundle_id": packed.bundle_id,
        "bytes": packed.size(),
        "graphs": [graph.files[0] for graph in graphs],
        "packed_from": {"bundle_id": source.bundle_id, "bytes": source.size()},
        "report": report is not None,
    }


def render(record: dict[str, Any]) -> str:
    """The same for a person."""
    origin = record["packed_from"]
    return (
        f"{record['path']}: bundle {record['bundle_id'][:12]}, {record['bytes'] / 1e6:.1f} MB, "
        f"packed from bundle {origin['bundle_id'][:12]}, {origin['bytes'] / 1e6:.1f} MB: "
        f"{', '.join(record['graphs'])}"
    )


def _check_out(source: Bundle, out: Path) -> None:
    here, there = source.path.resolve(), out.resolve()
    if here == there:
        raise OptionError(f"--out is the bundle itself, {source.path}; write to another directory")
    if there.is_relative_to(here):
        raise OptionError(
            f"--out {out} lies inside the bundle {source.path}; write to a directory outside it"
        )


def _chosen(source: Bundle, only: str, variants: Sequence[str]) -> list[GraphSpec]:
    """The graphs to keep, in the manifest's order."""
    precision = _precision(source, only)
    roles: tuple[Role, ...] = get_args(Role)
    if not variants:
        wanted = [source.cpu_graph(role, precision) for role in roles]
        if all(graph.variant == "cpu_static" for graph in wanted):  # that for beam 1 goes with it
            wanted += [g for g in source.graphs_of(precision) if g.variant == "cpu_static_greedy"]
    else:
        have = {graph.variant for graph in source.graphs_of(precision)}
        for variant in variants:
            if variant not in have:
                raise OptionError(
                    f"--variant is {variant!r}; of the {precision} graphs this bundle has: "
                    f"{', '.join(sorted(have))}. Choose one of these, or none for the one that a "
                    "CPU loads"
                )
        wanted = [source.graph(role, precision, v) for role in roles for v in variants]
    return [graph for graph in source.manifest.graphs if graph in wanted]


def _precision(source: Bundle, only: str) -> Precision:
    known: tuple[Precision, ...] = get_args(Precision)
    have = source.precisions()
    for precision in known:
        if precision == only and precision in have:
            return precision
    if only not in known:
        raise OptionError(f"--only is {only!r}; expected one of {', '.join(known)}")
    raise OptionError(
        f"--only is {only}; {source.path} has: {', '.join(have) or 'nothing'}. Choose one of "
        "these, or build the bundle again with the precision (`python -m export build --int8` adds "
        "INT8)"
    )


def _manifest(source: Bundle, graphs: Sequence[GraphSpec]) -> Manifest:
    """The source's, with these graphs alone; fields that this version does not know stay."""
    values = source.manifest.to_json()
    kept = {graph.files for graph in graphs}
    origin = {
        "bundle": source.bundle_id,
        "precision": graphs[0].precision,
        "variants": sorted({graph.variant for graph in graphs}),
    }
    files = {name for graph in graphs for name in graph.files}
    files |= {source.manifest.text.source_tokenizer, source.manifest.text.target_tokenizer}
    return Manifest.from_json(
        {
            **values,
            "graphs": [graph for graph in values["graphs"] if tuple(graph["files"]) in kept],
            "files": {name: file for name, file in values["files"].items() if name in files},
            "source": {**values.get("source", {}), PACKED_FROM: origin},
        }
    )


def _copy(source: Bundle, name: str, directory: Path) -> None:
    """Checked before and after: what is written is what was built."""
    target = directory / name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source.file(name), target)
    Bundle(directory, source.manifest).file(name)


def _report(source: Bundle, graphs: Sequence[GraphSpec]) -> dict[str, Any] | None:
    """What report.json says of the graphs that were kept; None where it says nothing of them.

    It was measured on the graph that a CPU loads; where that was left out, it isn't true of the
    others.
    """
    report = source.read_report()
    precision = graphs[0].precision
    if report is None or source.cpu_graph("decoder_step", precision) not in graphs:
        return None
    subjects = [
        subject
        for subject in report.get("subjects", [])
        if subject.get("backend") == "eager" or subject.get("precision") == precision
    ]
    if all(subject.get("backend") == "eager" for subject in subjects):
        return None
    # Of two precisions beside each other only one is left.
    kept = {name: value for name, value in report.items() if name != "matmul_profile"}
    kept["int8_speedup"] = None
    if precision != "int8":
        kept["int8_loss"] = None
    return {**kept, "subjects": subjects, PACKED_FROM: source.bundle_id}
