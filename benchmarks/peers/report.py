"""The record as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.peers.subjects import SUBJECTS
from benchmarks.table import align

_VERDICTS = {True: "holds", False: "DOES NOT HOLD", None: "not measured"}


def render(record: Mapping[str, Any]) -> str:
    """Everything that was measured, and at the end which bars hold."""
    parts = [_head(record)]
    for block in record["threads"]:
        for workload in block["workloads"].values():
            parts.append(_workload(block, workload))
    parts.append(_subjects(record))
    if record.get("cost"):
        parts.append(_cost(record["cost"]))
    parts.append(_notes(record))
    parts.append(_bars(record))
    return "\n\n".join(parts)


def _head(record: Mapping[str, Any]) -> str:
    what = record["what"]
    model = what["model"]
    kind = "trained weights" if what["shape"] == "trained" else f"preset {what['shape']}, random"
    ends = "real ends" if what["steps"] is None else f"{what['steps']} forced steps"
    proof = "; ".join(found["summary"] for found in record["equality"])
    return "\n".join(
        [
            f"leanseq beside its peers: {kind}, d {model['d_model']}, "
            f"{model['encoder']['num_layers']}+{model['decoder']['num_layers']} layers, "
            f"V {model['tgt_vocab_size']:,}; {what['lines']:,} lines of {what['source']}, {ends}",
            f"CTranslate2 float32 and leanseq FP32 give the same tokens: {proof}",
        ]
    )


def _workload(block: Mapping[str, Any], workload: Mapping[str, Any]) -> str:
    header = [
        ("", "ms a line", "", "", "tokens/s", "CTranslate2 time / its time", "CPU", "pairs"),
        ("", "p50", "p95", "p99", "", "median (10%-90%)", "time", ""),
    ]
    rows = []
    for name, found in workload["subjects"].items():
        ms, ratio = found["ms"], found["peer_ratio"]
        rows.append(
            (
                SUBJECTS[name].label,
                *(_milliseconds(ms[key]) for key in ("p50", "p95", "p99")),
                f"{found['tokens_per_second']:,.0f}",
                "-" if ratio is None else _spread(ratio),
                "-" if ratio is None else f"{ratio['cpu']['median']:.2f}",
                "-" if ratio is None else str(ratio["pairs"]),
            )
        )
    title = f"{workload['label']}, {block['label']}"
    lines = [title, *align(header, rows)]
    for name, tuned in workload["tuned"].items():
        tried = max(1, len({one["text"] for one in tuned["tried"]}))
        lines.append(f"{SUBJECTS[name].label}: {tuned['text']} (the quickest of {tried} tried)")
    return "\n".join(lines)


def _subjects(record: Mapping[str, Any]) -> str:
    header = [
        ("", "BLEU", "chrF", "memory MB", "", "", "load", "disk"),
        ("", "", "", "loaded", "used", "peak", "s", "MB"),
    ]
    rows = []
    for found in record["subjects"].values():
        footprint, quality = found["footprint"], found["quality"]
        rows.append(
            (
                found["label"],
                "-" if quality is None else f"{quality['bleu']:.2f}",
                "-" if quality is None else f"{quality['chrf']:.2f}",
                *(f"{footprint[key] / 1e6:.1f}" for key in ("rss_loaded", "rss_used", "rss_peak")),
                f"{footprint['load_seconds']:.2f}",
                f"{footprint['disk_bytes'] / 1e6:.2f}",
            )
        )
    return "\n".join(align(header, rows))


def _cost(cost: Mapping[str, Any]) -> str:
    blocks = []
    for over, title in (
        ("lengths", f"ms against target tokens, one line, beam {cost['beam_for_lengths']}"),
        ("beams", f"ms against beams, one line, {cost['steps_for_beams']} steps"),
    ):
        curves = cost[over]
        sizes = next(iter(curves.values()))["sizes"]
        header = [("", *map(str, sizes), "terms at the largest: power of the size")]
        rows = [
            (SUBJECTS[name].label, *(_milliseconds(ms) for ms in curve["ms"]), _terms(curve))
            for name, curve in curves.items()
        ]
        blocks.append("\n".join([title, *align(header, rows)]))
    return "\n\n".join(blocks)


def _terms(curve: Mapping[str, Any]) -> str:
    total = max(sum(curve["terms"].values()), 1e-12)
    return ", ".join(
        f"{power}: {ms:.1f} ms ({ms / total:.0%})" for power, ms in curve["terms"].items()
    )


def _notes(record: Mapping[str, Any]) -> str:
    what, machine = record["what"], record["machine"]
    lines = [
        "CTranslate2 time / its time: above 1, it is faster than the CTranslate2 of its precision; "
        "pairs of",
        f"    neighbouring runs of one item. {what['rounds']} rounds, of slow subjects "
        f"{what['slow_rounds']}; all in turn. CPU time: the same, of the time",
        "    that its threads computed, which a busy machine disturbs less",
        "memory: resident, alone in a fresh process with 1 thread, above the same process before "
        "loading:",
        "    once loaded, once it has translated 8 lines singly and 32 at once, and at its peak",
    ]
    for block in record["threads"]:
        for name, picked in block["picked"].items():
            if name.startswith("leanseq"):
                told = ", ".join(f"{key} {value}" for key, value in picked.items())
                lines.append(f"{SUBJECTS[name].label}, {block['label']}: {told}")
    for found in record["subjects"].values():
        if found["quality"]:
            lines.append(f"BLEU {found['quality']['bleu_signature']}")
            break
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return "\n".join(
        [
            *lines,
            f"bundle {what['bundle'][:12]}, checkpoint {what['checkpoint'][:12]}, measured "
            f"{record['date']}",
            f"on {machine['cpu']}, {machine['cores']} cores, {machine['system']}, {versions}",
        ]
    )


def _bars(record: Mapping[str, Any]) -> str:
    if not record["bars"]:
        return "no bars are set for this preset"
    lines = []
    for bar in record["bars"]:
        found = "" if bar["found"] is None else f": found {bar['found']}"
        lines.append(f"{_VERDICTS[bar['holds']]:13}  {bar['bar']}{found}")
    held = sum(bar["holds"] is True for bar in record["bars"])
    failed = sum(bar["holds"] is False for bar in record["bars"])
    rest = len(record["bars"]) - held - failed
    lines.append(f"bars: {held} hold, {failed} do not, {rest} not measured")
    if record["what"]["rounds"] < 5:
        lines.append("fewer than 5 rounds: these verdicts say little")
    return "\n".join(lines)


def _spread(ratio: Mapping[str, Any]) -> str:
    return f"{ratio['median']:.2f} ({ratio['p10']:.2f}-{ratio['p90']:.2f})"


def _milliseconds(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"
