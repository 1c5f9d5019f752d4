"""Measures translators side by side: latency, throughput, quality. Knows no model and no file.

The first subject is the reference: the others' ratios and agreement are against it. What comes out
is plain JSON, for report.json and for `benchmarks.table`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.machine import describe_machine, now
from benchmarks.profile import profile_bundle
from benchmarks.timing import Times, interleave, paired_ratio, percentiles_ms
from model.evaluation.metrics import check_aligned, evaluate, make_metrics
from model.evaluation.significance import compare
from runtime.bundle import Bundle
from runtime.errors import OptionError
from runtime.options import SearchOptions
from runtime.translator import Translation, Translator

logger = logging.getLogger(__name__)

SCHEMA = 1
BLEU_BUDGET, EXACT_MATCH_BUDGET = 0.3, 0.5
"""The BLEU, and the percentage points of exact match, that INT8 may lose."""

_ANY_TOKENS = 10**9  # what is given at once is searched as one batch


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One thing to measure.

    name: what the table calls it, unlike all others. size_bytes: what it takes on disk. source:
    what it was made from, such as "bundle 3f2a91c0", for the signature. parity: what
    export.parity found for it, passed through to the table.
    """

    name: str
    translator: Translator
    size_bytes: int
    source: str
    parity: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is measured.

    latency_lines: how many lines, spread evenly over all, are timed one at a time. rounds: how
    often each. batch_size: lines given at once where throughput is timed; every line is, once.
    """

    latency_lines: int = 100
    rounds: int = 2
    warmup: int = 5
    batch_size: int = 32

    def __post_init__(self) -> None:
        for name, low in (("latency_lines", 1), ("rounds", 1), ("warmup", 0), ("batch_size", 1)):
            if getattr(self, name) < low:
                raise OptionError(f"{name} is {getattr(self, name)}; expected at least {low}")


@dataclass(frozen=True, kw_only=True)
class TestSet:
    """Lines [n], a reference for each, perhaps the family of each, and their target language."""

    lines: Sequence[str]
    references: Sequence[str]
    families: Sequence[str] | None = None
    target_language: str | None = None
    name: str = ""

    __test__ = False  # pytest: not a test class

    def __post_init__(self) -> None:
        check_aligned(self.lines, self.references, self.families)


@dataclass(frozen=True, kw_only=True)
class _Timed:
    latency: Times  # [subjects, rounds, latency_lines] seconds
    batches: Times  # [subjects, 1, batches] seconds
    translations: list[list[Translation]] = field(default_factory=list)  # [subjects][lines]


def measure(
    subjects: Sequence[Subject],
    test_set: TestSet,
    *,
    options: SearchOptions | None = None,
    effort: Effort | None = None,
    bundle: Bundle | None = None,
) -> dict[str, Any]:
    """Times and scores every subject on the same lines, each line on each subject in turn.

    The caller gives all subjects the same number of threads; the record says what they have.
    bundle: profiled where its INT8 turns out no faster than its FP32, so that the table can say
    why. Raises OptionError for no subjects, two of one name, or threads that differ, and
    MissingExtraError without sacrebleu.
    """
    options, effort = options or SearchOptions(), effort or Effort()
    threads = _common_threads(subjects)
    make_metrics(test_set.target_language or "")  # complains before minutes of timing
    timed = _time(subjects, test_set, options, effort)
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "date": now(),
        "machine": describe_machine(),
        "threads": threads,
        "options": options.to_json(),
        "test_set": {"name": test_set.name, "lines": len(test_set.lines)},
        "latency_lines": timed.latency.shape[2],
        "rounds": effort.rounds,
        "batch_size": effort.batch_size,
        "subjects": [],
    }
    for index, subject in enumerate(subjects):
        record["subjects"].append(_describe(index, subject, timed, test_set, options))
    record["int8_speedup"] = _int8_speedup(subjects, timed)
    record["int8_loss"] = _int8_loss(record["subjects"], timed, test_set)
    if bundle is not None and int8_is_no_faster(record):
        record["matmul_profile"] = profile_bundle(bundle)
    return record


def int8_is_no_faster(record: Mapping[str, Any]) -> bool:
    """True where INT8 and FP32 were both measured and INT8 gains less than 5%."""
    found = record.get("int8_speedup")
    return found is not None and found["speedup"]["median"] < 1.05


def _common_threads(subjects: Sequence[Subject]) -> int | None:
    """The number of threads that all subjects have; None where none of them tells."""
    if not subjects:
        raise OptionError("there is nothing to measure; give at least one translator")
    names = [subject.name for subject in subjects]
    if len(set(names)) < len(names):
        raise OptionError(f"two translators have one name: {', '.join(names)}; rename one")
    found = {
        subject.name: subject.translator.capabilities.detail.get("threads") for subject in subjects
    }
    told = {name: threads for name, threads in found.items() if threads is not None}
    if len(set(told.values())) > 1:
        listed = ", ".join(f"{name} {threads}" for name, threads in told.items())
        raise OptionError(f"the numbers of threads differ ({listed}); give all the same")
    return next(iter(told.values()), None)


def _time(
    subjects: Sequence[Subject], test_set: TestSet, options: SearchOptions, effort: Effort
) -> _Timed:
    runs = [_runner(subject, options) for subject in subjects]
    lines = list(test_set.lines)
    batches = [
        lines[start : start + effort.batch_size]
        for start in range(0, len(lines), effort.batch_size)
    ]
    singles = [[line] for line in _spread(lines, effort.latency_lines)]
    logger.info(
        "timing %d translators: %d lines one at a time, %d round(s)",
        len(subjects), len(singles), effort.rounds,
    )  # fmt: skip
    latency, _ = interleave(runs, singles, rounds=effort.rounds, warmup=effort.warmup)
    logger.info("timing %d lines in batches of %d", len(lines), effort.batch_size)
    seconds, results = interleave(runs, batches, warmup=1)
    translations = [[one for batch in batches_of for one in batch] for batches_of in results]
    return _Timed(latency=latency, batches=seconds, translations=translations)


def _runner(subject: Subject, options: SearchOptions) -> Callable[[list[str]], list[Translation]]:
    def run(lines: list[str]) -> list[Translation]:
        return subject.translator.translate(lines, options, batch_tokens=_ANY_TOKENS)

    return run


def _spread(lines: Sequence[str], count: int) -> list[str]:
    """At most `count` lines, evenly spaced, so that a sorted file gives short and long ones."""
    if len(lines) <= count:
        return list(lines)
    return [lines[index * len(lines) // count] for index in range(count)]


def _describe(
    index: int, subject: Subject, timed: _Timed, test_set: TestSet, options: SearchOptions
) -> dict[str, Any]:
    """What the record says of one subject."""
    capabilities = subject.translator.capabilities
    texts = [translation.text for translation in timed.translations[index]]
    first = [translation.text for translation in timed.translations[0]]
    tokens = sum(count_tokens(translation) for translation in timed.translations[index])
    quality = evaluate(
        texts,
        test_set.references,
        families=test_set.families,
        target_language=test_set.target_language or "",
    )
    return {
        "name": subject.name,
        "source": subject.source,
        "backend": capabilities.name,
        "device": capabilities.device,
        "precision": capabilities.precision,
        "threads": capabilities.detail.get("threads"),
        "beam_size": options.beam_size,
        "size_bytes": subject.size_bytes,
        "latency_ms": percentiles_ms(timed.latency[index]),
        "speedup": paired_ratio(timed.latency[0], timed.latency[index]).to_json(),
        "tokens_per_second": tokens / float(timed.batches[index].sum()),
        "same_as_first": sum(a == b for a, b in zip(texts, first, strict=True)),
        "quality": {
            "bleu": quality.bleu.score,
            "bleu_signature": quality.bleu.signature,
            "chrf": quality.chrf.score,
            "chrf_signature": quality.chrf.signature,
            "exact_match": quality.exact_match,
            "exact_match_by_family": quality.by_family,
        },
        "parity": None if subject.parity is None else dict(subject.parity),
    }


def count_tokens(translation: Translation) -> int:
    """Target tokens that the best hypothesis took, EOS counted where it came to one."""
    best = translation.hypotheses[0]
    return len(best.token_ids) + int(best.finished)


def _int8_loss(
    described: Sequence[Mapping[str, Any]], timed: _Timed, test_set: TestSet
) -> dict[str, Any] | None:
    """How much quality INT8 gives up against the first subject, and whether it may.

    paired_bleu: INT8's BLEU less the other's, so below 0 where INT8 loses, by paired bootstrap.
    """
    for index, found in enumerate(described[1:], start=1):
        if found["precision"] == "int8":
            before, after = described[0]["quality"], found["quality"]
            bleu = before["bleu"] - after["bleu"]
            points = 100 * (before["exact_match"] - after["exact_match"])
            return {
                "int8": found["name"],
                "against": described[0]["name"],
                "bleu": bleu,
                "exact_match_points": points,
                "paired_bleu": _paired_bleu(timed, index, test_set),
                "bleu_budget": BLEU_BUDGET,
                "exact_match_budget": EXACT_MATCH_BUDGET,
                "within_budget": bleu <= BLEU_BUDGET and points <= EXACT_MATCH_BUDGET,
            }
    return None


def _paired_bleu(timed: _Timed, index: int, test_set: TestSet) -> dict[str, Any]:
    """How its BLEU differs from the first subject's (model.evaluation.bootstrap)."""
    texts, first = (
        [translation.text for translation in timed.translations[which]] for which in (index, 0)
    )
    found = compare(
        texts,
        first,
        test_set.references,
        target_language=test_set.target_language or "",
        names=("BLEU",),
    )
    return asdict(found["BLEU"])


def _int8_speedup(subjects: Sequence[Subject], timed: _Timed) -> dict[str, Any] | None:
    """How much faster INT8 is than FP32 of the same backend, one line at a time."""
    found = [subject.translator.capabilities for subject in subjects]
    where = {(one.name, one.device, one.precision): index for index, one in enumerate(found)}
    for (backend, device, precision), index in where.items():
        if precision == "int8" and (backend, device, "fp32") in where:
            base = where[backend, device, "fp32"]
            ratio = paired_ratio(timed.latency[base], timed.latency[index])
            return {
                "int8": subjects[index].name,
                "fp32": subjects[base].name,
                "speedup": ratio.to_json(),
            }
    return None
