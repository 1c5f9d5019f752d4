"""`python -m model attention`: what a model attends to, as a heat map."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import click

from model.interpretation.files import check_path, write_heatmap
from model.interpretation.heatmap import Kind, Selection, Units, make_heatmap
from runtime.console import Command

_PATH: Any = click.Path(path_type=Path)


@click.command("attention", cls=Command)
@click.option("--checkpoint", required=True, type=_PATH, help="Directory that training wrote.")
@click.option("--src", required=True, help="The source sentence.")
@click.option("--tgt", help="Its translation; the model's own if not given.")
@click.option("--out", required=True, type=_PATH, help="NAME.html, a page in which all maps can be chosen; or NAME.png, one map.")  # noqa: E501  # fmt: skip
@click.option("--kind", type=click.Choice(get_args(Kind)), default="cross", show_default=True, help="Decoder to source; the encoder's or decoder's to itself; or what translate --alignment sees.")  # noqa: E501  # fmt: skip
@click.option("--layer", type=int, help="Counted from 1; the average over all if not given.")
@click.option("--head", type=int, help="The same.")
@click.option("--units", type=click.Choice(get_args(Units)), default="subwords", show_default=True, help="What rows and columns are.")  # noqa: E501  # fmt: skip
@click.option("--beam-size", type=int, help="Of the search for a translation.")
@click.option("--threads", type=int, help="CPU threads; all cores if not given.")
def attention_command(
    checkpoint: Path, src: str, tgt: str | None, out: Path, kind: Kind, layer: int | None,
    head: int | None, units: Units, beam_size: int | None, threads: int | None,
) -> None:  # fmt: skip
    """Draws what a model attends to in a sentence and its translation.

    Rows are target tokens, columns source tokens; beside each row stands the probability that the
    model gives it. In an .html page kind, layer, head and units can be changed; the options choose
    what it shows first.
    """
    check_path(out)
    selection = Selection(kind=kind, layer=layer, head=head, units=units)
    heatmap = make_heatmap(checkpoint, src, tgt, beam_size=beam_size, threads=threads)
    write_heatmap(heatmap, out, selection)
    click.echo(out)
