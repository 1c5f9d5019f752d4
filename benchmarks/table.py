"""The text that a record of `benchmarks.measure` is shown as: one table, and its signatures."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.measure import int8_is_no_faster
from model.evaluation.bootstrap import PairedDifference

Row = tuple[str, ...]
_WIDTH = 108


def render(record: Mapping[str, Any]) -> str:
    """The table of all subjects, what each number means, and what is worth saying about them.

    At most 110 columns, as long as the names of the subjects stay under 24 characters.
    """
    beam = record["options"]["beam_size"]
    header: list[Row] = [
        ("", "ms a line", "", "faster than", "tokens/s", "", "", "exact", "same as", "", "parity"),
        ("", "p50", "p95", "the first", f"x{record['batch_size']}",
         "BLEU", "chrF", "match", "the first", "MB", ""),
    ]  # fmt: skip
    lines = record["test_set"]["lines"]
    rows = [_row(index, subject, lines) for index, subject in enumerate(record["subjects"])]
    text = [*align(header, rows), ""]
    for line in (*_signatures(record, beam), *_parity_notes(record)):
        text += textwrap.wrap(line, _WIDTH, subsequent_indent="    ", break_on_hyphens=False)
    text += _loss_notes(record)
    note = int8_note(record)
    if note:
        text += ["", note]
    return "\n".join(text)


def render_families(record: Mapping[str, Any]) -> str:
    """Exact match of every subject in every family of lines; empty where none were given."""
    subjects = record["subjects"]
    families = subjects[0]["quality"]["exact_match_by_family"]
    if not families:
        return ""
    header: list[Row] = [("exact match", *(subject["name"] for subject in subjects))]
    rows = [
        (
            family,
            *(_percent(s["quality"]["exact_match_by_family"][family]) for s in subjects),
        )
        for family in families
    ]
    return "\n".join(align(header, rows))


def int8_note(record: Mapping[str, Any]) -> str:
    """Why INT8 is not faster than FP32, where it is not; empty where it is, or wasn't measured."""
    if not int8_is_no_faster(record):
        return ""
    found = record["int8_speedup"]
    ratio = found["speedup"]["median"]
    text = (
        f"note: INT8 gains less than 5% here: {found['int8']} takes {1 / ratio:.2f} times as long "
        f"a line as {found['fp32']}."
    )
    profile = record.get("matmul_profile")
    if not profile:
        return text
    return f"{text}\n{_explain(profile)}"


def _explain(profile: Mapping[str, Any]) -> str:
    """What the profile of the decoder step says: what there was to gain, and what it cost."""
    fp32, int8 = profile["fp32"], profile["int8"]
    kept = _percent((fp32["step_us"] - fp32["matmul_us"]) / fp32["step_us"])
    lines = (
        f"Profile of one decoder step, width {profile['d_model']}, one line, beam 4: the MatMuls "
        "that INT8 replaces",
        f"take {fp32['matmul_us']:.0f} of {fp32['step_us']:.0f} us in FP32; INT8 does them in "
        f"{int8['matmul_us']:.0f} us, and",
        f"quantizing their inputs takes {int8['quantize_us']:.0f} us. The other {kept}% of the "
        "step stay as they are.",
        "INT8 pays where MatMuls are most of the step:",
        "python -m benchmarks compare --preset base --random",
    )
    return "\n".join("      " + line for line in lines)


def _row(index: int, subject: Mapping[str, Any], lines: int) -> Row:
    quality = subject["quality"]
    return (
        subject["name"],
        f"{subject['latency_ms']['p50']:.1f}",
        f"{subject['latency_ms']['p95']:.1f}",
        _faster(index, subject["speedup"]),
        f"{subject['tokens_per_second']:,.0f}",
        f"{quality['bleu']:.2f}",
        f"{quality['chrf']:.2f}",
        f"{_percent(quality['exact_match'])}%",
        f"{subject['same_as_first']}/{lines}" if index else "",
        f"{subject['size_bytes'] / 1e6:.2f}",
        _parity(subject["parity"]),
    )


def _parity(parity: Mapping[str, Any] | None) -> str:
    if parity is None:
        return "-"
    if "passed" not in parity:
        return "measured"
    return "passed" if parity["passed"] else "FAILED"


def render_random(record: Mapping[str, Any]) -> str:
    """The table of `benchmarks.random_weights`: latency only."""
    run, machine = record["run"], record["machine"]
    header: list[Row] = [
        ("", "ms a sentence", "", "faster than", ""),
        ("", "p50", "p95", "the first", "MB"),
    ]
    rows = [
        (
            subject["name"],
            f"{subject['latency_ms']['p50']:.1f}",
            f"{subject['latency_ms']['p95']:.1f}",
            _faster(index, subject["speedup"]),
            f"{subject['size_bytes'] / 1e6:.1f}",
        )
        for index, subject in enumerate(record["subjects"])
    ]
    lines = (
        *(_against(found) for found in record["int8_speedups"]),
        f"preset {run['preset']} with random weights: {run['sentences']} sources of "
        f"{run['source_length']} ids, {run['steps']} forced steps, alone, beam {run['beam_size']}, "
        f"{_count(run['threads'], 'thread')}, each on all in turn, "
        f"{_count(run['rounds'], 'round')}",
        *_machine(record["date"], machine),
    )
    text = [*align(header, rows), ""]
    for line in lines:
        text += textwrap.wrap(line, _WIDTH, subsequent_indent="    ", break_on_hyphens=False)
    return "\n".join(text)


def _against(found: Mapping[str, Any]) -> str:
    ratio = found["speedup"]
    return (
        f"{found['int8']}: {ratio['median']:.2f} times as fast as {found['fp32']} "
        f"({ratio['p10']:.2f}-{ratio['p90']:.2f})"
    )


def _faster(index: int, speedup: Mapping[str, float]) -> str:
    if index == 0:
        return "1"
    return f"{speedup['median']:.1f} ({speedup['p10']:.1f}-{speedup['p90']:.1f})"


def _machine(date: str, machine: Mapping[str, Any]) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return [
        f"measured {date} on {machine['cpu']}, {_count(machine['cores'], 'core')}, "
        f"{machine['system']}",
        f"python {machine['python']}, {versions}",
    ]


def _signatures(record: Mapping[str, Any], beam: int) -> list[str]:
    machine, quality = record["machine"], record["subjects"][0]["quality"]
    threads = record["threads"]
    test_set = record["test_set"]
    named = f" of {test_set['name']}" if test_set["name"] else ""
    return [
        f"ms a line: {record['latency_lines']} lines alone, beam {beam}, "
        f"{_count(threads, 'thread')}, each on all in turn, {_count(record['rounds'], 'round')}",
        f"faster than the first: median (10% to 90%) of the ratios of neighbouring runs; "
        f"tokens/s: batches of {record['batch_size']}",
        f"quality on {test_set['lines']:,} lines{named}; BLEU {quality['bleu_signature']}",
        f"chrF {quality['chrf_signature']}",
        *(f"{subject['name']}: {subject['source']}" for subject in record["subjects"]),
        *_bundle_size(record),
        *_machine(record["date"], machine),
    ]


def _bundle_size(record: Mapping[str, Any]) -> list[str]:
    size = record.get("bundle_bytes")
    return (
        [] if size is None else [f"the whole bundle, FP16 graphs for GPUs too: {size / 1e6:.1f} MB"]
    )


def _parity_notes(record: Mapping[str, Any]) -> list[str]:
    return [
        f"parity of {subject['name']}: {subject['parity']['summary']}"
        for subject in record["subjects"]
        if subject["parity"] and subject["parity"].get("summary")
    ]


def _loss_notes(record: Mapping[str, Any]) -> list[str]:
    loss = record.get("int8_loss")
    if not loss:
        return []
    verdict = "within" if loss["within_budget"] else "OVER"
    notes = [
        f"{loss['int8']} against {loss['against']}: BLEU {0 - loss['bleu']:+.2f}, exact match "
        f"{0 - loss['exact_match_points']:+.1f} points: {verdict} the budget "
        f"(-{loss['bleu_budget']:g}, -{loss['exact_match_budget']:g})"
    ]
    if "paired_bleu" in loss:  # older reports have none
        found = PairedDifference(**loss["paired_bleu"])
        notes.append(f"    BLEU by paired bootstrap, {found.resamples:,} resamples: {found.text}")
    return notes


def _count(number: int | None, noun: str) -> str:
    if number is None:
        return f"unknown {noun}s"
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def align(header: Sequence[Row], rows: Sequence[Row]) -> list[str]:
    """First column to the left, the others to the right, a rule below the header."""
    widths = [max(len(row[column]) for row in (*header, *rows)) for column in range(len(rows[0]))]

    def line(row: Row) -> str:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        return "  ".join(cells).rstrip()

    rule = "-" * max(len(line(row)) for row in (*header, *rows))
    return [*(line(row) for row in header), rule, *(line(row) for row in rows)]
