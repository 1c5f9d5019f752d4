"""What a subject takes up: memory, alone in a fresh process; time to load; disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.settings import Setting
from benchmarks.peers.subjects import Materials, Subject, Threads
from benchmarks.peers.worker import Worker
from runtime.bundle import Bundle
from runtime.options import SearchOptions


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes of resident memory above those of the same process with the same libraries and nothing
    loaded: once loaded, once it has translated, and the most it ever had. rss_total: all that the
    process takes once it has translated.
    disk_bytes: the files that it reads, tokenizers included."""

    load_seconds: float
    rss_loaded: int
    rss_used: int
    rss_peak: int
    rss_total: int
    disk_bytes: int
    description: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measure_footprint(
    subject: Subject,
    materials: Materials,
    threads: Threads,
    setting: Setting | None,
    batches: Sequence[Sequence[str]],
    options: SearchOptions,
) -> Footprint:
    """Loads the subject in a process of its own and translates the batches with it."""
    with Worker(subject.name, materials, threads) as worker:
        loaded = worker.open(setting)
        for lines in batches:
            worker.translate(lines, options, setting)
        used, peak = worker.rss(), worker.peak_rss()
    return Footprint(
        load_seconds=loaded.seconds,
        rss_loaded=loaded.rss_after - loaded.rss_before,
        rss_used=used - loaded.rss_before,
        rss_peak=peak - loaded.rss_before,
        rss_total=used,
        disk_bytes=disk_bytes(subject, materials, loaded.description),
        description=loaded.description,
    )


def disk_bytes(subject: Subject, materials: Materials, description: dict[str, Any]) -> int:
    """Of the files that the subject reads when it is loaded. description: what it said of itself,
    such as which variant of the graphs it took."""
    bundle = Bundle.open(materials.bundle)
    text = bundle.manifest.text
    names = {text.source_tokenizer, text.target_tokenizer}
    tokenizers = sum(bundle.manifest.files[name].size for name in names)
    if subject.name in materials.ctranslate2:
        return tokenizers + _size(materials.ctranslate2[subject.name].iterdir())
    if subject.name in ("eager", "torch-int8"):
        return tokenizers + _size([materials.checkpoint / "model.safetensors"])
    loaded = str(description.get("variant", "portable"))
    graphs = bundle.graphs_of(subject.group)
    # A variant may come in several graphs of one role, named after it: one of them for one beam.
    chosen = [graph for graph in graphs if graph.variant.startswith(loaded)] or graphs
    files = {name for graph in chosen for name in graph.files}
    return tokenizers + sum(bundle.manifest.files[name].size for name in files)


def _size(paths: Any) -> int:
    return sum(path.stat().st_size for path in map(Path, paths))
