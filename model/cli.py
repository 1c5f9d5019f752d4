"""`python -m model`: train, translate with, and evaluate the eager model; write the corpus."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any, get_args

import click

from model.aligned_translation import choose_aligned_format, open_aligning_translator
from model.attention_cli import attention_command
from model.config import PRESETS, CrossScore, Norm, Positions
from model.corpora import phrase_files, phrases
from model.corpora.files import read_parallel, read_tsv
from model.devices import Device, choose_device
from model.distributed import join_ranks
from model.evaluation_cli import evaluate_command, tune_search_command
from model.settings import Precision, TrainingSettings
from model.training import train
from model.translation import open_translator
from runtime.batching import DEFAULT_BATCH_TOKENS
from runtime.cli import search_options, with_flags
from runtime.console import group, set_verbosity
from runtime.errors import OptionError
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
_DEFAULTS = TrainingSettings()

_SETTINGS: dict[str, tuple[Any, str]] = {
    "preset": (click.Choice(list(PRESETS)), "Sizes of the model."),
    "vocab_size": (int, "Pieces of the joint vocabulary; the preset's if not given."),
    "encoder_layers": (int, "The preset's if not given."),
    "decoder_layers": (int, "The preset's if not given; each is paid for at every target token."),
    "norm": (click.Choice(get_args(Norm)), "Where the layer norms stand."),
    "positions": (click.Choice(get_args(Positions)), "How positions are encoded."),
    "cross_score": (
        click.Choice(get_args(CrossScore)),
        "How attention compares target with source.",
    ),
    "dropout": (float, "Of embeddings and sublayers; the preset's if not given."),
    "ffn_dropout": (float, "After the activation."),
    "attention_dropout": (float, "On attention weights."),
    "max_source": (int, "Most tokens of a source line; longer pairs are left out."),
    "max_target": (int, "Most tokens of a target line."),
    "max_updates": (int, "Optimizer steps."),
    "max_minutes": (float, "Most minutes, across resumes; whichever ends first."),
    "learning_rate": (float, "The largest, after the warm-up; suits preset and norm if not given."),
    "warmup": (int, "Updates until then."),
    "cooldown": (float, "Share at the end over which the rate falls to zero."),
    "label_smoothing": (float, "0 to below 1."),
    "r_drop": (float, "Weight of R-Drop, such as 5; 0: off. Twice the work an update."),
    "r_drop_from": (float, "Share of the training after which R-Drop begins."),
    "bpe_dropout": (float, "Share of merges left out, such as 0.1: words cut anew each epoch."),
    "batch_tokens": (int, "Padded tokens on the longer side of a batch."),
    "accumulation": (int, "Batches an update."),
    "clip_norm": (float, "Largest norm of the gradient; 0: no limit."),
    "average": (int, "Saves whose weights are averaged at the end."),
    "save_every": (int, "Updates between saves."),
    "validate_every": (int, "Updates between validations."),
    "valid_lines": (int, "Most validation pairs that are translated for BLEU."),
    "patience": (int, "Validations without a better BLEU after which the cool-down begins early."),
    "precision": (click.Choice(get_args(Precision)), "Of matrix products; auto: bf16 if quick."),
    "seed": (int, "Of weights, batches and dropout."),
}


def _training_options(command: Any) -> Any:
    """Decorator: a flag for each field of TrainingSettings, with its default."""
    for name, (kind, text) in reversed(_SETTINGS.items()):
        default = getattr(_DEFAULTS, name)
        command = click.option(
            f"--{name.replace('_', '-')}",
            type=kind,
            default=default,
            show_default=default is not None,
            envvar="LEANSEQ_MAX_MINUTES" if name == "max_minutes" else None,
            help=text,
        )(command)
    return command


@cli.command("train")
@click.option("--train-src", type=_PATH, help="Source lines, plain or gzip.")
@click.option("--train-tgt", type=_PATH, help="Their translations, line by line.")
@click.option("--valid-src", type=_PATH, help="Source lines to validate with.")
@click.option("--valid-tgt", type=_PATH, help="Their translations.")
@click.option("--train-tsv", type=_PATH, help="Instead: source, tab, target on each line.")
@click.option("--valid-tsv", type=_PATH, help="The same for validation.")
@click.option("--out", required=True, type=_PATH, help="Directory of the checkpoint.")
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads; all cores if not given.")
@click.option("--device", type=click.Choice(get_args(Device)), default="cpu", show_default=True, help="cuda: a GPU for each process that torchrun starts; auto: if there is one.")  # noqa: E501  # fmt: skip
@click.option("--resume", is_flag=True, help="Go on where a training there was killed.")
@click.option("--force", is_flag=True, help="Start anew, whatever is there.")
@_training_options
def train_command(
    out: Path, threads: int | None, device: Device, resume: bool, force: bool,
    train_src: Path | None, train_tgt: Path | None, valid_src: Path | None,
    valid_tgt: Path | None, train_tsv: Path | None, valid_tsv: Path | None, **settings: Any,
) -> None:  # fmt: skip
    """Trains a model on lines of your own and writes a checkpoint."""
    with join_ranks(choose_device(device)) as ranks:
        if not ranks.first:
            set_verbosity(-2)  # of several processes one speaks
        chosen = TrainingSettings(**settings)
        train_pairs = _read_pairs("train", train_src, train_tgt, train_tsv)
        valid_pairs = _read_pairs("valid", valid_src, valid_tgt, valid_tsv)
        result = train(
            train_pairs, valid_pairs, chosen, out, resume=resume, overwrite=force, threads=threads,
            ranks=ranks,
        )  # fmt: skip
        if ranks.first:
            click.echo(json.dumps({**dataclasses.asdict(result), "path": str(result.path)}))


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


for _command in (attention_command, evaluate_command, tune_search_command):
    cli.add_command(_command)


def _read_pairs(
    split: str, src: Path | None, tgt: Path | None, tsv: Path | None
) -> list[tuple[str, str]]:
    """The pairs of one split, from two files or one. Raises OptionError for neither or both."""
    if tsv is not None and src is None and tgt is None:
        return read_tsv(tsv)
    if tsv is None and src is not None and tgt is not None:
        return read_parallel(src, tgt)
    raise OptionError(f"give either --{split}-src and --{split}-tgt, or --{split}-tsv")
