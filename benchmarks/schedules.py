"""How threads, workers and batches share out the cores best: a bundle on one file, in turns.

`runtime.schedule` chooses by what this showed; docs/decisions/0018-threads-and-workers.md.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.compare import search_options
from benchmarks.machine import describe_machine, now
from benchmarks.table import align
from benchmarks.timing import interleave, paired_ratio, percentiles_ms
from model.corpora.files import read_lines
from runtime.backend import Backend
from runtime.batching import DEFAULT_BATCH_TOKENS
from runtime.bundle import Bundle
from runtime.cores import physical_cores
from runtime.errors import BackendError, OptionError
from runtime.manifest import SpecialTokenIds
from runtime.options import SearchOptions
from runtime.registry import open_backend
from runtime.schedule import Schedule
from runtime.scheduled import ScheduledBackends, schedule_for
from runtime.tokenizer import Tokenizer
from runtime.translator import Translator

logger = logging.getLogger(__name__)

BATCH_TOKENS = (256, DEFAULT_BATCH_TOKENS, 1024, 2048)
RANDOM_STEPS = 24
"""Target tokens of every line of a random model, which ends none by itself."""


@dataclass(frozen=True, kw_only=True)
class SchedulesRun:
    """bundle and src; or a preset, with random weights and lines. precision: the CPU's favourite if
    not given. limit: first lines only. alone: how many of them are also translated alone."""

    bundle: Path | None = None
    src: Path | None = None
    preset: str | None = None
    precision: str | None = None
    beam_size: int | None = None
    limit: int | None = None
    alone: int = 20
    rounds: int = 5


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One way to share out the cores."""

    workers: int
    threads: int
    batch_tokens: int = DEFAULT_BATCH_TOKENS

    @property
    def label(self) -> str:
        return f"{self.workers} x {self.threads}, {self.batch_tokens} tokens"


def measure_schedules(run: SchedulesRun) -> dict[str, Any]:
    """Times every shape on all lines, and every number of threads on lines alone.

    Raises OptionError unless there are a bundle and lines, or a preset, BackendError if a shape
    changes a translation, and what opening them raises.
    """
    with _materials(run) as (bundle, lines, steps), ExitStack() as stack:
        options = search_options(
            SearchOptions.from_json(bundle.manifest.search_defaults), run.beam_size
        )
        if steps is not None:
            options = SearchOptions.from_json(
                {**options.to_json(), "min_length": steps, "max_length": steps}
            )
        cores = physical_cores()
        backends: dict[int, Backend] = {}
        for threads in _thread_counts(cores):
            backends[threads] = open_backend(
                bundle, "onnxruntime", precision=run.precision, threads=threads
            )
            stack.callback(backends[threads].close)
        tokenizer = Tokenizer(bundle.tokenizer_protos()[0])

        def runner(shape: Shape) -> Callable[[Sequence[str]], list[str]]:
            return _runner(
                backends[shape.threads], tokenizer, bundle.manifest.special_ids, shape, options
            )

        shapes = file_shapes(cores)
        logger.info("timing %d lines in %d ways, %d rounds", len(lines), len(shapes), run.rounds)
        many, found = interleave(
            [runner(shape) for shape in shapes], [lines], rounds=run.rounds, warmup=1
        )
        if any(results != found[0] for results in found):
            raise BackendError("a number of workers or threads changed a translation; report this")
        counts = list(backends)
        alone_lines = [[line] for line in lines[: run.alone]]
        alone, _ = interleave(
            [runner(Shape(workers=1, threads=threads)) for threads in counts],
            alone_lines, rounds=run.rounds,
        )  # fmt: skip
        capabilities = backends[1].capabilities
        return {
            "date": now(),
            "machine": describe_machine(),
            "physical_cores": cores,
            "bundle": bundle.bundle_id,
            "preset": run.preset,
            "precision": capabilities.precision,
            "variant": capabilities.detail.get("variant", "portable"),
            "options": options.to_json(),
            "lines": len(lines),
            "rounds": run.rounds,
            "chosen": schedule_for(bundle, run.precision).to_json(),
            "chosen_text": schedule_for(bundle, run.precision).render(),
            "many": [
                {
                    **asdict(shape),
                    "label": shape.label,
                    "seconds": sorted(many[i, :, 0].tolist()),
                    "speedup": paired_ratio(many[0], many[i]).to_json(),
                }
                for i, shape in enumerate(shapes)
            ],
            "alone": [
                {
                    "threads": threads,
                    "lines": len(alone_lines),
                    "latency_ms": percentiles_ms(alone[i]),
                    "speedup": paired_ratio(alone[0], alone[i]).to_json(),
                }
                for i, threads in enumerate(counts)
            ],
        }


def file_shapes(cores: int) -> list[Shape]:
    """What is tried on many lines; the first is one worker of one thread."""
    shapes = [
        Shape(workers=1, threads=1),
        Shape(workers=1, threads=cores),
        Shape(workers=cores, threads=1),
        Shape(workers=cores, threads=cores),
    ]
    shapes += [Shape(workers=cores, threads=1, batch_tokens=tokens) for tokens in BATCH_TOKENS]
    return list(dict.fromkeys(shapes))


def render(record: dict[str, Any]) -> str:
    """The same as tables."""
    beam = record["options"]["beam_size"]
    many: list[tuple[str, ...]] = [
        (
            found["label"],
            f"{found['seconds'][len(found['seconds']) // 2]:.2f}",
            _spread(found["speedup"]),
        )
        for found in record["many"]
    ]
    alone: list[tuple[str, ...]] = [
        (
            str(found["threads"]),
            f"{found['latency_ms']['p50']:.1f}",
            _spread(found["speedup"]),
        )
        for found in record["alone"]
    ]
    machine = record["machine"]
    return "\n".join(
        [
            *align([("workers x threads", "seconds", "faster than the first")], many),
            "",
            *align([("threads, a line alone", "ms, p50", "faster than the first")], alone),
            "",
            f"{record['lines']:,} lines, beam {beam}, {record['precision']} ({record['variant']}), "
            f"{record['rounds']} rounds, all in turn; faster: median (10% to 90%) of paired ratios",
            f"measured {record['date']} on {machine['cpu']}, {record['physical_cores']} cores, "
            f"onnxruntime {machine['versions'].get('onnxruntime', '?')}",
            f"translate picks: {record['chosen_text']}",
        ]
    )


@contextmanager
def _materials(run: SchedulesRun) -> Iterator[tuple[Bundle, list[str], int | None]]:
    """The bundle, the lines, and how many steps each takes where the model ends none."""
    if run.preset is not None and (run.bundle or run.src) is None:
        from benchmarks.peers.materials import preset_lines, random_bundle

        with tempfile.TemporaryDirectory(prefix="leanseq-") as name:
            bundle = random_bundle(run.preset, Path(name))
            yield bundle, preset_lines(run.preset)[: run.limit], RANDOM_STEPS
        return
    if run.bundle is None or run.src is None or run.preset is not None:
        raise OptionError("give --bundle and --src, or --preset alone")
    lines = read_lines(run.src)[: run.limit]
    yield Bundle.open(run.bundle), lines, None


def _thread_counts(cores: int) -> list[int]:
    """1, 2, 4, ... and all cores."""
    return sorted({2**power for power in range(cores.bit_length())} | {cores})


def _runner(
    backend: Backend,
    tokenizer: Tokenizer,
    special_ids: SpecialTokenIds,
    shape: Shape,
    options: SearchOptions,
) -> Callable[[Sequence[str]], list[str]]:
    backends = ScheduledBackends(backend, Schedule(workers=shape.workers))
    translator = Translator(backends, tokenizer, special_ids)

    def translate(lines: Sequence[str]) -> list[str]:
        found = translator.translate(lines, options, batch_tokens=shape.batch_tokens)
        return [translation.text for translation in found]

    return translate


def _spread(speedup: dict[str, float]) -> str:
    return f"{speedup['median']:.2f} ({speedup['p10']:.2f}-{speedup['p90']:.2f})"
