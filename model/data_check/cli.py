"""`python -m model check-data`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from model.checkpoint import load_checkpoint
from model.config import PRESETS
from model.data_check import fix as fixing
from model.data_check.checking import CheckOptions, check
from model.data_check.kinds import DROPPABLE, DROPPED
from model.data_check.reading import SplitFiles
from model.data_check.report import Report
from model.errors import DataError
from model.training.recipe import SPLITS, Recipe, load_recipe
from model.training.settings import TrainingSettings
from runtime.console import Command
from runtime.errors import OptionError
from runtime.tokenizer import Tokenizer

_PATH: Any = click.Path(path_type=Path)
_TEXTS = {"train": "train with", "valid": "validate with", "test": "test with"}


def _file_options(command: Any) -> Any:
    """Decorator: --SPLIT-src, -tgt and -tsv for each split."""
    for split in reversed(SPLITS):
        for ending, text in (
            ("tsv", "Instead: source, tab, target on each line."),
            ("tgt", "Their translations, line by line."),
            ("src", f"Source lines to {_TEXTS[split]}, plain or gzip."),
        ):
            command = click.option(f"--{split}-{ending}", type=_PATH, help=text)(command)
    return command


def _kinds(name: str, choices: tuple[str, ...], text: str) -> Callable[[Any], Any]:
    return click.option(f"--{name}", name, multiple=True, type=click.Choice(choices), help=text)


@click.command("check-data", cls=Command)
@click.option("--recipe", "recipe_name", help="Checks a recipe's files, with its settings.")
@click.option("--data", type=_PATH, help="Directory that holds the recipe's files.")
@_file_options
@click.option("--checkpoint", type=_PATH, help="Checks with its tokenizer and limits.")
@click.option("--tokenizer", "model_file", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Checks with this SentencePiece model.")  # noqa: E501  # fmt: skip
@click.option("--preset", type=click.Choice(list(PRESETS)), help="Whose vocabulary size training would take; the recipe's, or tiny, if not given.")  # noqa: E501  # fmt: skip
@click.option("--vocab-size", type=click.IntRange(min=1), help="Pieces that training would be told to make; the recipe's or the preset's if not given.")  # noqa: E501  # fmt: skip
@click.option("--max-source", type=click.IntRange(min=1), help="Most tokens of a source line; the checkpoint's, the recipe's, or 256.")  # noqa: E501  # fmt: skip
@click.option("--max-target", type=click.IntRange(min=1), help="Most tokens of a target line.")
@click.option("--fix", is_flag=True, help="Writes a cleaned copy of the files, and the report.")
@click.option("--out", type=_PATH, help="Directory for that copy.")
@_kinds("drop", tuple(k for k in DROPPABLE if k not in DROPPED), "Drops these lines of train too.")
@_kinds("keep", fixing.KEEPABLE, "Doesn't drop these.")
@_kinds("mend", tuple(fixing.MENDS), "Puts these right, in all files.")
@click.option("--examples", type=click.IntRange(min=0), default=3, show_default=True, help="Lines shown of each finding.")  # noqa: E501  # fmt: skip
@click.option("--strict", is_flag=True, help="Exit code 1 for warnings too.")
@click.option("--json", "as_json", is_flag=True, help="The report as JSON.")
def check_data_command(
    recipe_name: str | None, data: Path | None, checkpoint: Path | None,
    model_file: Path | None, preset: str | None, vocab_size: int | None,
    max_source: int | None, max_target: int | None, fix: bool, out: Path | None,
    drop: tuple[str, ...], keep: tuple[str, ...], mend: tuple[str, ...], examples: int,
    strict: bool, as_json: bool, **files: Path | None,
) -> None:  # fmt: skip
    """Tells what training would fail on, leave out or learn wrong, before it does.

    Exit code 0: training can run, whatever else was found. 1: it would fail, or --strict and there
    are warnings; with --fix, the cleaned copy is what is judged.
    """
    recipe = None if recipe_name is None else load_recipe(recipe_name)
    splits = _splits(files, recipe, data)
    settings = _settings(recipe, preset, vocab_size)
    options = _options(checkpoint, model_file, settings, max_source, max_target, examples)
    fix_options = _fix_options(fix, out, drop, keep, mend, splits)
    report = check(splits, options)
    record = report.to_json()
    if not as_json:
        click.echo(report.render())
    try:
        if out is not None and fix_options is not None:
            fixed = fixing.fix(splits, report, fix_options, out)
            record["fixed"] = fixing.to_json(fixed)
            if not as_json:
                click.echo(f"\n{fixing.render(fixed)}\nin {out}, with {fixing.TEXT_REPORT}")
    finally:
        if as_json:
            click.echo(json.dumps(record, ensure_ascii=False))
    _judge(report, fix_options, strict=strict)


def _splits(
    files: Mapping[str, Path | None], recipe: Recipe | None, data: Path | None
) -> list[SplitFiles]:
    """Those that are given, or the recipe's that are not, train first. Raises OptionError for half
    of one, or none at all, DataError where a recipe's file is missing."""
    if (recipe is None) != (data is None):
        raise OptionError("--recipe and --data go together: give both, or neither")
    splits = []
    for split in SPLITS:
        src, tgt, tsv = (files[f"{split}_{ending}"] for ending in ("src", "tgt", "tsv"))
        if tsv is not None and src is None and tgt is None:
            splits.append(SplitFiles(split=split, source=tsv))
        elif tsv is None and src is not None and tgt is not None:
            splits.append(SplitFiles(split=split, source=src, target=tgt))
        elif (src, tgt, tsv) != (None, None, None):
            raise OptionError(f"give either --{split}-src and --{split}-tgt, or --{split}-tsv")
        elif recipe is not None and data is not None:
            found = recipe.find(split, data)
            target = found[1] if len(found) > 1 else None
            splits.append(SplitFiles(split=split, source=found[0], target=target))
    if not splits:
        raise OptionError("no file is given; give --train-src and --train-tgt, or --train-tsv")
    return splits


def _settings(
    recipe: Recipe | None, preset: str | None, vocab_size: int | None
) -> TrainingSettings:
    """What training would be told."""
    given: dict[str, Any] = {"preset": preset, "vocab_size": vocab_size}
    return dataclasses.replace(
        TrainingSettings() if recipe is None else recipe.settings,
        **{name: value for name, value in given.items() if value is not None},
    )


def _options(
    checkpoint: Path | None, model_file: Path | None, settings: TrainingSettings,
    max_source: int | None, max_target: int | None, examples: int,
) -> CheckOptions:  # fmt: skip
    """What to check with. Raises OptionError for two tokenizers, CheckpointError and TextError for
    one that can't be used."""
    if checkpoint is not None and model_file is not None:
        raise OptionError("give either --checkpoint or --tokenizer")
    limits = settings.max_source, settings.max_target
    tokenizer, name = None, ""
    if checkpoint is not None:
        loaded = load_checkpoint(checkpoint)
        tokenizer, name = Tokenizer(loaded.tokenizer_proto), f"the tokenizer of {checkpoint}"
        limits = loaded.config.max_source, loaded.config.max_target
    elif model_file is not None:
        tokenizer, name = Tokenizer(model_file.read_bytes()), f"the tokenizer {model_file}"
    return CheckOptions(
        max_source=limits[0] if max_source is None else max_source,
        max_target=limits[1] if max_target is None else max_target,
        pieces=settings.pieces,
        tokenizer=tokenizer,
        tokenizer_name=name,
        examples=examples,
    )


def _fix_options(
    fix: bool, out: Path | None, drop: tuple[str, ...], keep: tuple[str, ...],
    mend: tuple[str, ...], splits: list[SplitFiles],
) -> fixing.FixOptions | None:  # fmt: skip
    """None: nothing is to be fixed. Raises OptionError for half of what it takes."""
    if fix != (out is not None):
        raise OptionError("--fix and --out go together: give both, or neither")
    if out is None:
        if drop or keep or mend:
            raise OptionError("--drop, --keep and --mend change what --fix writes; give that too")
        return None
    fixing.check_target(out, splits)
    kept = tuple(kind for kind in DROPPED if kind not in keep)
    return fixing.FixOptions(drop=(*kept, *drop), mend=mend)


def _judge(report: Report, fixed: fixing.FixOptions | None, *, strict: bool) -> None:
    """Raises DataError for what training would fail on; strict: for warnings too."""
    bad = []
    for split in report.splits:
        gone = () if fixed is None else (*fixed.dropped_in(split.split), *fixed.mend)
        for finding in split.sorted_findings():
            counts = finding.severity == "error" or (strict and finding.severity == "warning")
            if counts and finding.kind not in gone:
                bad.append(f"{finding.kind} in {split.split}")
    if bad:
        what = "training would fail" if report.count("error") else "there are warnings"
        raise DataError(f"{what}: {', '.join(dict.fromkeys(bad))}; the report says where")
