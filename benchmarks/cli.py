"""`python -m benchmarks`: what is faster, and what is better."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click

from benchmarks.subjects import DEFAULT_BACKENDS
from benchmarks.table import render, render_families, render_random
from runtime.console import group
from runtime.errors import OptionError
from runtime.registry import BACKENDS

cli = group(
    "benchmarks",
    "Measure latency and quality.",
    lazy={
        "peers": (
            "benchmarks.peers.cli:peers_command",
            "Times leanseq beside PyTorch, a plain ONNX Runtime loop and CTranslate2.",
        )
    },
)

_FILE = click.Path(path_type=Path)


def _workload(value: str) -> tuple[int, int]:
    """Of "32x4" (32, 4): lines at once, beams."""
    found = re.fullmatch(r"([1-9][0-9]{0,3})x([1-9][0-9]{0,3})", value)
    if found is None:
        raise click.BadParameter(
            f"{value!r} is no workload; expected lines x beams, such as 32x4, below 10,000 of each"
        )
    return int(found[1]), int(found[2])


@cli.command("compare")
@click.option("--bundle", type=_FILE, help="Directory of the bundle.")
@click.option("--checkpoint", type=_FILE, help="Measure its eager model as well.")
@click.option(
    "--backend",
    "backends",
    type=click.Choice(list(BACKENDS)),
    multiple=True,
    help="Measure it in all of its precisions; may be repeated.  [default: onnxruntime]",
)
@click.option("--src", type=_FILE, help="Source lines, UTF-8, plain or gzip.")
@click.option("--ref", type=_FILE, help="Their reference translations.")
@click.option("--families", type=_FILE, help="The name of a group for each line.")
@click.option("--limit", type=click.IntRange(1), help="Only so many lines.")
@click.option("--target-language", help="zh, ja or ko: how BLEU splits words; Chinese is told by its characters if not given.")  # noqa: E501  # fmt: skip
@click.option("--preset", help="With --random: the model size to build and time.")
@click.option("--random", "random_weights", is_flag=True, help="Random weights, latency only.")
@click.option("--beam-size", type=click.IntRange(1), help="The bundle's default if not given.")
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="Of each.")
@click.option("--rounds", type=click.IntRange(1), default=2, show_default=True, help="Timed runs.")
@click.option("--json", "as_json", is_flag=True, help="JSON on one line instead of a table.")
def compare_command(as_json: bool, **options: Any) -> None:
    """Times and scores the precisions of a bundle side by side.

    Every line goes to each in turn, so that a busy machine disturbs all alike. Needs --bundle,
    --src and --ref; or --preset and --random, which train nothing and read nothing.
    """
    record, text = _measure(**options)
    click.echo(json.dumps(record, ensure_ascii=False) if as_json else text)


@cli.command("engines")
@click.option(
    "--preset", "presets", multiple=True, help="Model sizes.  [default: tiny, small, base]"
)
@click.option("--target", "targets", multiple=True, metavar="SM", help="Such as sm89; may be repeated.  [default: sm75, sm80, sm86, sm89, sm120]")  # noqa: E501  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="JSON on one line instead of a table.")
def engines_command(presets: tuple[str, ...], targets: tuple[str, ...], as_json: bool) -> None:
    """Builds TensorRT engines of random weights ahead of time and shows what they hold: INT8
    MatMuls, weights, activation memory. Needs tensorrt-rtx, and no GPU; runs nothing.
    """
    from benchmarks.engines import PRESETS, TARGETS, EngineRun, measure_engines
    from benchmarks.engines import render as render_engines

    run = EngineRun(presets=presets or PRESETS, targets=targets or TARGETS)
    record = measure_engines(run)
    click.echo(json.dumps(record) if as_json else render_engines(record))


@cli.command("schedules")
@click.option("--bundle", type=_FILE, help="Directory of the bundle.")
@click.option("--src", type=_FILE, help="Source lines, UTF-8, plain or gzip.")
@click.option("--preset", help="Instead of both: a model size, with random weights and lines.")
@click.option("--precision", help="int8 or fp32; the first that there is if not given.")
@click.option("--beam-size", type=click.IntRange(1), help="The bundle's default if not given.")
@click.option("--limit", type=click.IntRange(1), help="Only so many lines.")
@click.option("--alone", type=click.IntRange(1), default=20, show_default=True, help="How many lines are also timed alone.")  # noqa: E501  # fmt: skip
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Timed runs.")
@click.option("--json", "as_json", is_flag=True, help="JSON on one line instead of tables.")
def schedules_command(as_json: bool, **options: Any) -> None:
    """Times numbers of workers and threads, and sizes of batches, on one file; and threads on lines
    alone. What `translate` picks stands below it. On a CPU, with ONNX Runtime.
    """
    from benchmarks.schedules import SchedulesRun, measure_schedules
    from benchmarks.schedules import render as render_schedules

    record = measure_schedules(SchedulesRun(**options))
    click.echo(json.dumps(record) if as_json else render_schedules(record))


@cli.command("roofline")
@click.option("--bundle", type=_FILE, help="Directory of the bundle.")
@click.option("--preset", help="Instead: a model size, with random weights.")
@click.option("--precision", type=click.Choice(["int8", "fp32"]), help="The first that there is if not given.")  # noqa: E501  # fmt: skip
@click.option("--workloads", type=_workload, multiple=True, metavar="BxK", help="Lines at once x beams; may be repeated.  [default: 1x1, 1x4, 32x4]")  # noqa: E501  # fmt: skip
@click.option("--source", type=click.IntRange(1), default=20, show_default=True, help="Source tokens of a line, EOS counted.")  # noqa: E501  # fmt: skip
@click.option("--steps", type=click.IntRange(1), default=24, show_default=True, help="Target tokens of a line.")  # noqa: E501  # fmt: skip
@click.option("--rounds", type=click.IntRange(1), default=15, show_default=True, help="Timed runs.")
@click.option("--json", "as_json", is_flag=True, help="JSON on one line instead of tables.")
def roofline_command(as_json: bool, **options: Any) -> None:
    """Sets what a step takes on this CPU beside what it can't take less than, and says which
    operators the rest goes to. One thread, the graphs that `translate` picks on a CPU.
    """
    from benchmarks.roofline import RooflineRun, measure_roofline
    from benchmarks.roofline import render as render_roofline

    workloads = options.pop("workloads")
    if workloads:
        options["workloads"] = workloads
    record = measure_roofline(RooflineRun(**options))
    click.echo(json.dumps(record) if as_json else render_roofline(record))


@cli.command("training")
@click.option("--preset", default="tiny", show_default=True, help="Sizes of the model.")
@click.option("--vocab-size", type=click.IntRange(300), help="The preset's if not given.")
@click.option("--batch-tokens", type=click.IntRange(64), default=2048, show_default=True, help="Padded tokens on the longer side of a batch.")  # noqa: E501  # fmt: skip
@click.option("--updates", type=click.IntRange(1), default=4, show_default=True, help="Different ones, of two batches each.")  # noqa: E501  # fmt: skip
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Timed runs.")
@click.option("--threads", type=click.IntRange(1), help="Of each; all cores if not given.")
@click.option("--json", "as_json", is_flag=True, help="JSON on one line instead of a table.")
def training_command(as_json: bool, **options: Any) -> None:
    """Times training beside torch.nn.Transformer: the same sizes, batches and dtype, in turns."""
    from benchmarks.training import TrainingRun, measure_training
    from benchmarks.training import render as render_training

    record = measure_training(TrainingRun(**options))
    click.echo(json.dumps(record) if as_json else render_training(record))


def _measure(random_weights: bool, preset: str | None, **options: Any) -> tuple[Any, str]:
    """The record, and the text it is shown as."""
    if random_weights:
        from benchmarks.random_weights import RandomRun, compare_random

        files = ("bundle", "checkpoint", "src", "ref", "families", "limit", "target_language")
        given_files = [name for name in files if options[name] is not None]
        _refuse([*given_files, *(["backend"] if options["backends"] else [])], "--random")
        options = {name: options[name] for name in ("beam_size", "threads", "rounds")}
        given = {name: value for name, value in options.items() if value is not None}
        record = compare_random(RandomRun(preset=preset or "base", **given))
        return record, render_random(record)
    from benchmarks.compare import Comparison, compare

    _refuse(["preset"] if preset is not None else [], "files; add --random")
    missing = [f"--{name}" for name in ("bundle", "src", "ref") if options[name] is None]
    if missing:
        raise OptionError(
            f"{', '.join(missing)} not given; compare needs --bundle, --src and --ref, or --preset "
            "with --random"
        )
    options["backends"] = options["backends"] or DEFAULT_BACKENDS
    record = compare(Comparison(**options))
    families = render_families(record)
    return record, render(record) + (f"\n\n{families}" if families else "")


def _refuse(names: list[str], other: str) -> None:
    if names:
        shown = ", ".join("--" + name.replace("_", "-") for name in names)
        raise OptionError(f"{shown} can't be used with {other}; leave it out")
