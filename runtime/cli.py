"""The commands of runtime, and `leanseq`, which gathers those of every package."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import click

from runtime import doctor as doctor_module
from runtime.batching import DEFAULT_BATCH_TOKENS
from runtime.bundle import Bundle
from runtime.console import group, run
from runtime.options import SearchOptions
from runtime.registry import BACKEND_NAMES
from runtime.stream import choose_format, holds_many_lines, open_streams, translate_stream
from runtime.translator import Translator

runtime_cli = group("runtime", "Translate with a bundle.")
cli = group(
    "leanseq",
    "Encoder-decoder Transformers, from PyTorch to small, fast, checked artefacts.",
    lazy={
        "model": ("model.cli:cli", "Train, translate with and evaluate the eager model."),
        "export": ("export.cli:cli", "Build a bundle from a checkpoint."),
        "calibration": ("calibration.cli:cli", "Find the ranges for INT8."),
        "benchmarks": ("benchmarks.cli:cli", "Measure latency and quality."),
    },
)

_SEARCH_OPTIONS = [
    click.option("--beam-size", type=int, help="Live hypotheses a line; 1 is greedy."),
    click.option("--num-hypotheses", type=int, help="N-best: `line ||| text ||| score`."),
    click.option("--length-penalty", type=float, help="Exponent of the length normalisation."),
    click.option(
        "--length-penalty-kind",
        type=click.Choice(["power", "gnmt"]),
        help="length**A, or ((5 + length) / 6)**A.",
    ),
    click.option("--patience", type=float, help="Stop after beam_size * patience hypotheses."),
    click.option("--min-length", type=int, help="Tokens before the end is allowed."),
    click.option("--max-length", type=int, help="Most tokens, the end counted."),
    click.option("--sampling", is_flag=True, default=None, help="Draw instead of searching."),
    click.option("--top-k", type=int, help="Draw from the K likeliest tokens (0: all)."),
    click.option("--top-p", type=float, help="Draw from the likeliest that have this mass."),
    click.option("--temperature", type=float, help="Flattens (above 1) or sharpens (below)."),
    click.option("--seed", type=int, help="Of the draws."),
]


def search_options(command: Any) -> Any:
    """Decorator: the flags of SearchOptions; each is None where the user gave none."""
    for option in reversed(_SEARCH_OPTIONS):
        command = option(command)
    return command


def with_flags(defaults: SearchOptions, flags: dict[str, Any]) -> SearchOptions:
    """The defaults, changed by the flags that were given. Raises OptionError."""
    given = {name: value for name, value in flags.items() if value is not None}
    return dataclasses.replace(defaults, **given)


@runtime_cli.command("translate")
@click.option("--bundle", required=True, type=click.Path(), help="Directory of the bundle.")
@click.option(
    "--input",
    "source",
    default="-",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="UTF-8 text, a sentence a line; - is stdin.",
)
@click.option(
    "--output",
    "target",
    default="-",
    type=click.Path(dir_okay=False, allow_dash=True),
    help="- is stdout.",
)
@click.option(
    "--backend",
    type=click.Choice(BACKEND_NAMES),
    default="auto",
    show_default=True,
    help="What runs it.",
)
@click.option("--precision", help="fp32, int8, ...; the backend's favourite if not given.")
@click.option("--threads", type=int, help="CPU threads of each search; given alone, of everything.")
@click.option("--workers", type=int, help="Batches searched at once; all cores if not given.")
@click.option(
    "--build/--no-build",
    default=True,
    show_default=True,
    help="Build TensorRT engines where none fits this GPU; else ONNX Runtime runs it.",
)
@click.option(
    "--batch-tokens",
    type=int,
    default=DEFAULT_BATCH_TOKENS,
    show_default=True,
    help="Padded source tokens of a batch, at most.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@search_options
def translate(
    bundle: str, source: str, target: str, backend: str, precision: str | None,
    threads: int | None, workers: int | None, build: bool, batch_tokens: int, as_json: bool,
    **flags: Any,
) -> None:  # fmt: skip
    """Translates lines: one line in, one line out, in order."""
    many_lines = holds_many_lines(source, sys.stdin)
    with Translator.open(
        bundle, backend=backend, precision=precision, threads=threads, workers=workers,
        many_lines=many_lines, build=build,
    ) as translator:  # fmt: skip
        options = with_flags(translator.defaults, flags)
        line_format = choose_format(as_json=as_json, options=options)
        translator.check(options, batch_tokens)
        with open_streams(source, target, sys.stdin, sys.stdout) as (reader, writer):
            translate_stream(
                translator, reader, writer, options,
                batch_tokens=batch_tokens, line_format=line_format,
            )  # fmt: skip


@runtime_cli.command("doctor")
@click.option("--bundle", type=click.Path(), help="Tell how `translate` would run this one.")
@click.option("--json", "as_json", is_flag=True, help="The report as JSON.")
@click.pass_context
def doctor(context: click.Context, bundle: str | None, as_json: bool) -> None:
    """Shows what is installed, which backends run here, and why the others don't; and how many
    threads and workers `translate` picks.

    Exits with 1 when no backend can run a bundle here.
    """
    report = doctor_module.diagnose(None if bundle is None else Bundle.open(bundle))
    click.echo(json.dumps(report.to_json(), indent=2) if as_json else doctor_module.render(report))
    if not report.healthy:
        context.exit(1)


for _command in (translate, doctor):
    cli.add_command(_command)


def main() -> None:
    """The entry point `leanseq`."""
    sys.exit(run(cli, prog_name="leanseq"))
