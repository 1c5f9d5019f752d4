"""`python -m model`: train, translate with, and evaluate the eager model; write the corpus."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, get_args

import click

from model.corpora import phrase_files, phrases
from model.evaluation.cli import evaluate_command, tune_search_command
from model.interpretation.aligned_translation import choose_aligned_format, open_aligning_translator
from model.interpretation.cli import attention_command
from model.training.cli import recipes_command, train_command
from model.translation import open_translator
from runtime.batching import DEFAULT_BATCH_TOKENS
from runtime.cli import search_options, with_flags
from runtime.console import group
from runtime.stream import choose_format, open_streams, translate_stream

cli = group(
    "model",
    "Train, translate with and evaluate the eager model.",
    lazy={
        "check-data": (
            "model.data_check.cli:check_data_command",
            "Tells what training would fail on, leave out or learn wrong.",
        )
    },
)

_PATH: Any = click.Path(path_type=Path)


@cli.command("translate")
@click.option("--checkpoint", required=True, type=_PATH, help="Directory that training wrote.")
@click.option("--input", "source", default="-", type=click.Path(exists=True, dir_okay=False, allow_dash=True), help="UTF-8 text, a sentence a line; - is stdin.")  # noqa: E501  # fmt: skip
@click.option("--output", "target", default="-", type=click.Path(dir_okay=False, allow_dash=True), help="- is stdout.")  # noqa: E501  # fmt: skip
@click.option("--threads", type=int, help="CPU threads; all cores if not given.")
@click.option("--batch-tokens", type=int, default=DEFAULT_BATCH_TOKENS, show_default=True, help="Padded source tokens searched at a time.")  # noqa: E501  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.option("--alignment", is_flag=True, help="Add which source word each word comes from: a tab and `0-0 1-2 ...`.")  # noqa: E501  # fmt: skip
@search_options
def translate_command(
    checkpoint: Path, source: str, target: str, threads: int | None, batch_tokens: int,
    as_json: bool, alignment: bool, **flags: Any,
) -> None:  # fmt: skip
    """Translates lines with PyTorch: one line in, one line out, in order."""
    open_it = open_aligning_translator if alignment else open_translator
    with open_it(checkpoint, threads=threads) as translator:
        options = with_flags(translator.defaults, flags)
        choose = choose_aligned_format if alignment else choose_format
        line_format = choose(as_json=as_json, options=options)
        translator.check(options, batch_tokens)
        with open_streams(source, target, sys.stdin, sys.stdout) as (reader, writer):
            translate_stream(
                translator, reader, writer, options,
                batch_tokens=batch_tokens, line_format=line_format,
            )  # fmt: skip


@cli.command("corpus")
@click.option("--target", type=click.Choice(get_args(phrases.Target)), default="de", show_default=True, help="Language translated into.")  # noqa: E501  # fmt: skip
@click.option("--pairs", type=int, default=30_000, show_default=True, help="Of the train split.")
@click.option("--seed", type=int, default=0, show_default=True, help="Draws other phrases.")
@click.option("--out", required=True, type=_PATH, help="Directory to write to.")
def corpus_command(target: phrases.Target, pairs: int, seed: int, out: Path) -> None:
    """Writes the embedded corpus: train, valid, calibration and test splits."""
    click.echo(phrase_files.write(phrases.make(target, pairs, seed=seed), out))


for _command in (
    attention_command,
    evaluate_command,
    recipes_command,
    train_command,
    tune_search_command,
):
    cli.add_command(_command)
