"""A record as `measure_peers` makes it, by hand."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.subjects import SUBJECTS

NAMES = ("ctranslate2-float32", "ctranslate2-int8", "leanseq-fp32", "leanseq-int8")


def ratio(median: float) -> dict[str, Any]:
    spread = {"median": median, "p10": median - 0.2, "p90": median + 0.2}
    return {**spread, "pairs": 100, "cpu": spread}


def measured(median: float) -> dict[str, Any]:
    return {
        "ms": {"p50": 2.0, "p95": 3.0, "p99": 30.0},
        "tokens_per_second": 12345.0,
        "tokens": 480,
        "rounds": 5,
        "items": 20,
        "peer_ratio": ratio(median),
    }


def workload(label: str, ratios: dict[str, float]) -> dict[str, Any]:
    tuned = {"text": "int8, inter_threads 1, intra_threads 1", "tried": [], "setting": {}}
    return {
        "label": label,
        "beam_size": 4,
        "tuned": {"ctranslate2-int8": tuned},
        "subjects": {name: measured(ratios.get(name, 1.0)) for name in NAMES},
    }


def block(count: int, all_cores: bool, workloads: dict[str, dict[str, float]]) -> dict[str, Any]:
    return {
        "label": "all cores" if all_cores else f"{count} thread",
        "count": count,
        "all_cores": all_cores,
        "picked": {"leanseq-int8": {"precision": "int8", "threads": 1}},
        "workloads": {name: workload(name, ratios) for name, ratios in workloads.items()},
    }


def subject(name: str, bleu: float | None, disk: int, rss: int) -> dict[str, Any]:
    quality = None
    if bleu is not None:
        quality = {"bleu": bleu, "chrf": 60.0, "bleu_signature": "s", "chrf_signature": "s"}
    return {
        "label": SUBJECTS[name].label,
        "group": SUBJECTS[name].group,
        "footprint": {
            "load_seconds": 0.1,
            "rss_loaded": rss // 2,
            "rss_used": rss,
            "rss_peak": rss + 10_000_000,
            "rss_total": rss + 50_000_000,
            "disk_bytes": disk,
            "description": {},
        },
        "quality": quality,
    }


def record(shape: str, blocks: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    bleu = 40.0 if shape == "trained" else None
    stack = {"num_layers": 3, "num_heads": 4, "ffn_dim": 1024}
    found: dict[str, Any] = {
        "date": "2026-01-01T00:00:00+00:00",
        "machine": {"cpu": "A CPU", "cores": 2, "system": "Linux x86_64", "versions": {"a": "1"}},
        "what": {
            "shape": shape,
            "bundle": "0" * 64,
            "checkpoint": "1" * 64,
            "model": {"d_model": 256, "encoder": stack, "decoder": stack, "tgt_vocab_size": 8000},
            "lines": 64,
            "source": "test.en",
            "steps": None if shape == "trained" else 24,
            "rounds": 5,
            "slow_rounds": 1,
        },
        "equality": [{"summary": "beam 4: 64 of 64 equal, 0 ties, 0 different"}],
        "threads": blocks,
        "subjects": {name: subject(name, bleu, 10_000_000, 30_000_000) for name in NAMES},
        "bars": [],
    }
    return found | changes


def curve(sizes: list[int], terms: dict[str, float], share: float) -> dict[str, Any]:
    return {
        "sizes": sizes, "ms": [float(n) for n in sizes], "terms": terms, "fastest_share": share,
    }  # fmt: skip


def cost(share: float) -> dict[str, Any]:
    return {
        "lengths": {
            name: curve([8, 128], {"0": 1.0, "1": 99.0, "2": 0.0, "3": 0.0}, share)
            for name in NAMES
        },
        "beams": {name: curve([1, 16], {"0": 1.0, "1": 9.0, "2": 0.0}, 0.0) for name in NAMES},
        "beam_for_lengths": 4,
        "steps_for_beams": 24,
    }
