"""The commands of `python -m model` that train: train, recipes."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import click
from click.core import ParameterSource

from model.config import PRESETS, CrossScore, Norm, Positions
from model.corpora.files import read_parallel, read_tsv
from model.devices import Device, choose_device
from model.errors import DataError
from model.training.distributed import join_ranks
from model.training.recipe import Recipe, Split, evaluation_command, load_recipe, recipe_names
from model.training.settings import Precision, TrainingSettings
from model.training.train import train
from runtime.console import Command, set_verbosity
from runtime.errors import OptionError

_log = logging.getLogger(__name__)

_PATH: Any = click.Path(path_type=Path)
_DEFAULTS = TrainingSettings()
_ENDS = ("max_updates", "max_minutes", "patience")

SETTINGS: dict[str, tuple[Any, str]] = {
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
    "r_drop": (float, "Weight of R-Drop, such as 1; 0: off. Twice the work an update."),
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
    for name, (kind, text) in reversed(SETTINGS.items()):
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


@click.command("train", cls=Command)
@click.option("--recipe", "recipe_name", help="A recipe's files and settings (see `recipes`), or those of a .toml of your own; what else is given counts more.")  # noqa: E501  # fmt: skip
@click.option("--data", type=_PATH, help="Directory that holds the recipe's files.")
@click.option("--train-src", type=_PATH, help="Source lines, plain or gzip.")
@click.option("--train-tgt", type=_PATH, help="Their translations, line by line.")
@click.option("--valid-src", type=_PATH, help="Source lines to validate with.")
@click.option("--valid-tgt", type=_PATH, help="Their translations.")
@click.option("--train-tsv", type=_PATH, help="Instead: source, tab, target on each line.")
@click.option("--valid-tsv", type=_PATH, help="The same for validation.")
@click.option("--out", required=True, type=_PATH, help="Directory of the checkpoint.")
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads; all cores if not given.")
@click.option("--device", type=click.Choice(get_args(Device)), default="cpu", show_default=True, help="cuda: a GPU for each process that torchrun starts; auto: if there is one.")  # noqa: E501  # fmt: skip
@click.option("--tensorboard/--no-tensorboard", default=True, show_default=True, help="Curves in OUT/tensorboard.")  # noqa: E501  # fmt: skip
@click.option("--resume", is_flag=True, help="Go on where a training there was killed.")
@click.option("--force", is_flag=True, help="Start anew, whatever is there.")
@_training_options
def train_command(
    recipe_name: str | None, data: Path | None, out: Path,
    threads: int | None, device: Device, tensorboard: bool, resume: bool, force: bool,
    train_src: Path | None, train_tgt: Path | None, valid_src: Path | None,
    valid_tgt: Path | None, train_tsv: Path | None, valid_tsv: Path | None, **settings: Any,
) -> None:  # fmt: skip
    """Trains a model on lines of your own, or by a recipe, and writes a checkpoint."""
    if data is not None and recipe_name is None:
        raise OptionError("--data holds the files of a --recipe; give one, or leave out --data")
    with join_ranks(choose_device(device)) as ranks:
        if not ranks.first:
            set_verbosity(-2)  # of several processes one speaks
        recipe = None if recipe_name is None else load_recipe(recipe_name)
        chosen, *then = _choose_stages(recipe, settings)
        train_pairs = _read_pairs("train", train_src, train_tgt, train_tsv, recipe, data)
        valid_pairs = _read_pairs("valid", valid_src, valid_tgt, valid_tsv, recipe, data)
        result = train(
            train_pairs, valid_pairs, chosen, out, then=then, resume=resume, overwrite=force,
            threads=threads, ranks=ranks, tensorboard=tensorboard,
            about=recipe.about() if recipe else None,
        )  # fmt: skip
        if ranks.first:
            _log.info("to score it: %s", evaluation_command(out, _test_files(recipe, data)))
            click.echo(json.dumps({**dataclasses.asdict(result), "path": str(result.path)}))


@click.command("recipes", cls=Command)
def recipes_command() -> None:
    """Lists the recipes, and where to get the files that each needs."""
    click.echo("\n\n".join(load_recipe(name).describe() for name in recipe_names()))


def _choose_stages(recipe: Recipe | None, flags: Mapping[str, Any]) -> list[TrainingSettings]:
    """With the settings of the flags, or of the recipe where no flag was given; of a recipe's
    stages the first alone where a flag says when to end. Raises ConfigError."""
    if recipe is None:
        return [TrainingSettings(**flags)]
    context = click.get_current_context()
    given = {
        name: value
        for name, value in flags.items()
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT
    }
    then, ends = recipe.then, [name for name in _ENDS if name in given]
    if then and ends:
        _log.info(
            "one stage instead of the recipe's %d, since --%s says when to end",
            1 + len(then),
            ends[0].replace("_", "-"),
        )
        then = ()
    return [dataclasses.replace(stage, **given) for stage in (recipe.settings, *then)]


def _read_pairs(
    split: Split,
    src: Path | None,
    tgt: Path | None,
    tsv: Path | None,
    recipe: Recipe | None,
    data: Path | None,
) -> list[tuple[str, str]]:
    """The pairs of one split, from two files or one, or from those of a recipe. Raises OptionError
    for none or several of these, DataError for files that can't be read."""
    if tsv is not None and src is None and tgt is None:
        return read_tsv(tsv)
    if tsv is None and src is not None and tgt is not None:
        return read_parallel(src, tgt)
    if tsv is None and src is None and tgt is None and recipe is not None and data is not None:
        return recipe.read(split, data)
    raise OptionError(
        f"give either --{split}-src and --{split}-tgt, or --{split}-tsv, or --recipe and --data"
    )


def _test_files(recipe: Recipe | None, data: Path | None) -> list[Path]:
    """The recipe's, if they are there."""
    try:
        return recipe.find("test", data) if recipe is not None and data is not None else []
    except DataError:
        return []
