"""`python -m export`: from a checkpoint to a bundle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from calibration.statistics import (
    DEFAULT_METHOD,
    DEFAULT_PERCENTILE,
    DEFAULT_SENTENCES,
    METHODS,
)
from runtime.console import group
from runtime.engines.profiles import EngineLimits
from runtime.engines.worker import DEFAULT_TIMEOUT_S

cli = group("export", "Build a bundle from a checkpoint.")

_PATH: Any = click.Path(path_type=Path)


@cli.command("build")
@click.option("--int8", is_flag=True, help="Calibrate and quantize as well.")
@click.option("--checkpoint", type=_PATH, help="Directory that training wrote. Without it the demo model is trained, or reused.")  # noqa: E501  # fmt: skip
@click.option("--out", type=_PATH, help="The bundle's directory; WORK_DIR/bundle if not given.")
@click.option("--work-dir", type=_PATH, default=Path("build"), show_default=True, help="Where the demo's corpus and checkpoint are kept.")  # noqa: E501  # fmt: skip
@click.option("--target-language", "target", type=click.Choice(["de", "fr", "zh"]), default="de", show_default=True, help="The demo's target language.")  # noqa: E501  # fmt: skip
@click.option("--max-minutes", type=float, envvar="LEANSEQ_MAX_MINUTES", help="Most minutes that the demo trains.")  # noqa: E501  # fmt: skip
@click.option("--calibration-src", type=_PATH, help="Sentences to calibrate on; those that the checkpoint carries if not given.")  # noqa: E501  # fmt: skip
@click.option("--calibration-sentences", type=int, default=DEFAULT_SENTENCES, show_default=True, help="At most so many of them.")  # noqa: E501  # fmt: skip
@click.option("--method", type=click.Choice(METHODS), default=DEFAULT_METHOD, show_default=True, help="How ranges are chosen.")  # noqa: E501  # fmt: skip
@click.option("--percentile", type=float, default=DEFAULT_PERCENTILE, show_default=True, help="Of that method.")  # noqa: E501  # fmt: skip
@click.option("--int8-logits/--float-logits", default=None, help="Quantize the logits as well; only those of large vocabularies if not given.")  # noqa: E501  # fmt: skip
@click.option("--target", "engine_targets", multiple=True, metavar="SM", help="Build TensorRT engines for that GPU, such as sm89, ahead of time; may be repeated. Without it for the GPU here, if there is one.")  # noqa: E501  # fmt: skip
@click.option("--max-batch", type=int, default=EngineLimits.max_batch, show_default=True, help="Most sentences at a time that engines take.")  # noqa: E501  # fmt: skip
@click.option("--max-beam", type=int, default=EngineLimits.max_beam, show_default=True, help="Their largest beam.")  # noqa: E501  # fmt: skip
@click.option("--max-source", type=int, default=EngineLimits.max_source, show_default=True, help="Their longest source, in tokens.")  # noqa: E501  # fmt: skip
@click.option("--max-target", type=int, default=EngineLimits.max_target, show_default=True, help="Their longest target, in tokens.")  # noqa: E501  # fmt: skip
@click.option("--engine-timeout", type=float, default=DEFAULT_TIMEOUT_S, show_default=True, help="Seconds that building one engine may take.")  # noqa: E501  # fmt: skip
@click.option("--src", type=_PATH, help="Lines to check parity and measure with; needs --ref.")
@click.option("--ref", type=_PATH, help="Their reference translations.")
@click.option("--threads", type=int, default=1, show_default=True, help="CPU threads that everything is measured with.")  # noqa: E501  # fmt: skip
@click.option("--remeasure", is_flag=True, help="Measure again, even if nothing was built anew.")
@click.option("--force", is_flag=True, help="Train (the demo) and build again.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def build_command(as_json: bool, **options: Any) -> None:
    """Trains (the demo), exports, calibrates, quantizes, builds TensorRT engines (for --target, or
    the GPU here), checks parity, and compares with PyTorch.

    What is there already and was made from the same inputs is used again.
    """
    from benchmarks.table import render, render_families
    from export.build import BuildSettings, build
    from export.engines import engine_table

    record = build(BuildSettings(**options))
    if as_json:
        click.echo(json.dumps(record, sort_keys=True))
        return
    engines = engine_table(record["engines"]) if "engines" in record else ""
    texts = (render(record), render_families(record), engines)
    click.echo("\n\n".join(text for text in texts if text))


@cli.command("pack")
@click.option("--bundle", required=True, type=_PATH, help="The bundle to take from.")
@click.option("--only", required=True, metavar="PRECISION", help="What to keep: fp32, fp16, int8 or int8_fp16.")  # noqa: E501  # fmt: skip
@click.option("--variant", "variants", multiple=True, metavar="NAME", help="Keep that variant of its graphs, portable or cpu_static; may be repeated. Without it, the one that a CPU loads.")  # noqa: E501  # fmt: skip
@click.option("--out", required=True, type=_PATH, help="The new bundle's directory.")
@click.option("--json", "as_json", is_flag=True, help="What was written, as JSON.")
def pack_command(
    bundle: Path, only: str, variants: tuple[str, ...], out: Path, as_json: bool
) -> None:
    """Writes a bundle with only what one configuration loads: one precision's graphs, the
    tokenizer, and of report.json what is true of them.

    It translates as the whole bundle does in that precision. Engines are not taken along.
    """
    from export.pack import pack, render

    record = pack(bundle, only, out, variants=variants)
    click.echo(json.dumps(record, sort_keys=True) if as_json else render(record))


@cli.command("inspect")
@click.argument("bundle", type=_PATH)
@click.option("--json", "as_json", is_flag=True, help="Everything, as one JSON object.")
def inspect_command(bundle: Path, as_json: bool) -> None:
    """Shows what each graph and engine of a bundle is: for which GPU and TensorRT version, its
    inputs, outputs and profiles, which MatMuls are INT8, and which were kept float and why.

    Exits with 1 when a file is damaged.
    """
    from export.inspect import inspect_bundle, render

    found = inspect_bundle(bundle)
    click.echo(json.dumps(found, sort_keys=True) if as_json else render(found))
    if found["problems"]:
        raise click.exceptions.Exit(1)
