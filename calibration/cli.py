"""`python -m calibration`: ranges of a bundle, and which way of choosing them is best."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from calibration import bundles
from calibration.compare import render
from calibration.statistics import DEFAULT_METHOD, DEFAULT_PERCENTILE, DEFAULT_SENTENCES, METHODS
from runtime.console import group

cli = group("calibration", "Find the ranges for INT8.")

_COMMON = [
    click.option(
        "--bundle",
        "bundle_path",
        required=True,
        type=click.Path(path_type=Path),
        help="Directory of the bundle; it must hold FP32 graphs.",
    ),
    click.option(
        "--src",
        required=True,
        type=click.Path(path_type=Path),
        help="Source sentences, UTF-8, one a line, plain or .gz.",
    ),
    click.option(
        "--sentences",
        type=int,
        default=DEFAULT_SENTENCES,
        show_default=True,
        help="Sentences to calibrate on at most, evenly spread over the file.",
    ),
    click.option("--beam-size", type=int, default=4, show_default=True, help="Of the searches."),
    click.option("--threads", type=int, help="CPU threads; the backend's choice if not given."),
]


def _common_options(command: Any) -> Any:
    for option in reversed(_COMMON):
        command = option(command)
    return command


@cli.command("run")
@_common_options
@click.option("--method", type=click.Choice(METHODS), default=DEFAULT_METHOD, show_default=True, help="How a bound is drawn from the values seen.")  # noqa: E501  # fmt: skip
@click.option("--percentile", type=float, default=DEFAULT_PERCENTILE, show_default=True, help="Percent of the values inside the bound; of that method.")  # noqa: E501  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), help="File to write; stdout if not given.")
def run_command(bundle_path: Path, src: Path, out: Path | None, **options: Any) -> None:
    """Decodes sentences with the FP32 graphs and writes the ranges of what their MatMuls read."""
    ranges = bundles.calibrate_bundle(bundle_path, src, **options)
    if out is None:
        click.echo(ranges.to_text(), nl=False)
    else:
        ranges.save(out)


@cli.command("compare")
@_common_options
@click.option("--json", "as_json", is_flag=True, help="The table as JSON.")
def compare_command(bundle_path: Path, src: Path, as_json: bool, **options: Any) -> None:
    """Makes INT8 models in several ways and shows how each agrees with FP32.

    Reads twice --sentences lines: every other one calibrates, those between are measured on.
    """
    found = bundles.compare_bundle(bundle_path, src, **options)
    click.echo(json.dumps([c.to_json() for c in found], indent=2) if as_json else render(found))
