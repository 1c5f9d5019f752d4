"""The commands of `python -m model` that score translations: evaluate, tune-search."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from model.evaluation.bootstrap import RESAMPLES
from model.evaluation.metrics import METRIC_NAMES
from model.evaluation.report import report_evaluation
from model.evaluation.search_tuning import LENGTH_PENALTIES, tune_search, validation_set
from model.evaluation.sets import EvaluationFiles
from model.evaluation.systems import SystemChoice
from model.search_defaults import write_search_defaults
from runtime.cli import search_options
from runtime.console import Command
from runtime.errors import OptionError
from runtime.registry import BACKEND_NAMES

_PATH: Any = click.Path(path_type=Path)

_SYSTEM_OPTIONS = [
    click.option(
        "--checkpoint", type=_PATH, help="Directory that training wrote; PyTorch runs it."
    ),
    click.option("--bundle", type=_PATH, help="Instead: a bundle, whose graphs are quicker."),
    click.option(
        "--backend",
        type=click.Choice(BACKEND_NAMES),
        help="What runs the bundle; auto if not given.",
    ),
    click.option(
        "--precision", help="Of the bundle: fp32, int8, ...; the backend's favourite if not given."
    ),
    click.option(
        "--threads",
        type=int,
        help="CPU threads; the backend's choice if not given, PyTorch's all cores.",
    ),
]
_FILE_OPTIONS = [
    click.option("--src", type=_PATH, help="Source lines, plain or gzip."),
    click.option(
        "--ref",
        "refs",
        type=_PATH,
        multiple=True,
        help="Reference translations, line by line; repeat it where there are several of each.",
    ),
    click.option("--tsv", type=_PATH, help="Instead: source, tab, reference on each line."),
    click.option(
        "--group/--no-group",
        default=None,
        help="Equal sources are one, with all their references; if not given, those of a TSV are.",
    ),
    click.option(
        "--target-language",
        default="",
        help="zh, ja or ko: how BLEU splits words; Chinese is told by its characters if not given.",
    ),
]


def _with(options: list[Any]) -> Callable[[Any], Any]:
    """Decorator: these options, in this order."""

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@click.command("evaluate", cls=Command)
@_with(_SYSTEM_OPTIONS)
@click.option("--translations", type=_PATH, help="Instead of a model: lines that are translated already.")  # noqa: E501  # fmt: skip
@_with(_FILE_OPTIONS)
@click.option("--families", type=_PATH, help="A family for each line; exact match is shown by it.")
@click.option("--baseline", type=_PATH, help="Another system's translations, line by line: is the difference more than chance?")  # noqa: E501  # fmt: skip
@click.option("--bootstrap", "resamples", type=int, default=RESAMPLES, show_default=True, help="Resamples behind the intervals; 0: none.")  # noqa: E501  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="The scores as JSON.")
@search_options
def evaluate_command(
    checkpoint: Path | None, bundle: Path | None, backend: str | None, precision: str | None,
    threads: int | None, translations: Path | None, src: Path | None, refs: tuple[Path, ...],
    tsv: Path | None, group: bool | None, target_language: str, families: Path | None,
    baseline: Path | None, resamples: int, as_json: bool, **flags: Any,
) -> None:  # fmt: skip
    """Scores the translations of a test set: BLEU, BLEU -lc, chrF, exact match.

    Intervals hold 95% of the scores on resampled lines. With --baseline both systems are scored on
    the same resamples: paired bootstrap.
    """
    search = {name: value for name, value in flags.items() if value is not None}
    system: dict[str, Any] = {"checkpoint": checkpoint, "bundle": bundle, "backend": backend}
    system |= {"precision": precision, "threads": threads}
    report = report_evaluation(
        _choose_system(translations, system, search),
        EvaluationFiles(src=src, refs=refs, tsv=tsv, families=families, group=group),
        search=search,
        baseline=baseline,
        target_language=target_language,
        resamples=resamples,
    )
    click.echo(json.dumps(report.to_json()) if as_json else report.render())


@click.command("tune-search", cls=Command)
@_with(_SYSTEM_OPTIONS)
@_with(_FILE_OPTIONS)
@click.option("--length-penalty", "length_penalties", type=float, multiple=True, help=f"To try; may be repeated.  [default: {LENGTH_PENALTIES[0]:g}, {LENGTH_PENALTIES[1]:g}, ... {LENGTH_PENALTIES[-1]:g}]")  # noqa: E501  # fmt: skip
@click.option("--beam-size", "beam_sizes", type=int, multiple=True, help="To try; may be repeated. The default's if not given.")  # noqa: E501  # fmt: skip
@click.option("--metric", type=click.Choice(METRIC_NAMES[:2]), default=METRIC_NAMES[0], show_default=True, help="To choose by.")  # noqa: E501  # fmt: skip
@click.option("--write", is_flag=True, help="Keep the best in the checkpoint: what opens it, and bundles made from it, search so.")  # noqa: E501  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Everything as JSON.")
def tune_search_command(
    src: Path | None, refs: tuple[Path, ...], tsv: Path | None, group: bool | None,
    target_language: str, length_penalties: tuple[float, ...], beam_sizes: tuple[int, ...],
    metric: str, write: bool, as_json: bool, **system: Any,
) -> None:  # fmt: skip
    """Tries length penalties, and beam sizes if asked, and says which scores best.

    Give it validation lines; those that the checkpoint carries are taken if none are given. Never
    choose on a test set: its score would then say nothing about other text.
    """
    choice = SystemChoice(**system)
    if write and choice.checkpoint is None:
        raise OptionError("--write needs --checkpoint; make the bundle again from it")
    with choice.open() as opened:
        tuning = tune_search(
            opened.translator,
            validation_set(opened, EvaluationFiles(src=src, refs=refs, tsv=tsv, group=group)),
            base=opened.translator.defaults,
            length_penalties=length_penalties or LENGTH_PENALTIES,
            beam_sizes=beam_sizes,
            metric_name=metric,
            target_language=target_language,
        )
    if write and choice.checkpoint is not None:
        write_search_defaults(choice.checkpoint, tuning.best.options)
    click.echo(json.dumps(tuning.to_json()) if as_json else tuning.render())


def _choose_system(
    translations: Path | None, system: dict[str, Any], search: dict[str, Any]
) -> SystemChoice | Path:
    """A file of translations goes with no system, nor with options of a search."""
    if translations is None:
        return SystemChoice(**system)
    given = [name for name, value in {**system, **search}.items() if value is not None]
    if given:
        shown = ", ".join("--" + name.replace("_", "-") for name in given)
        raise OptionError(f"{shown} can't be used with --translations; leave it out")
    return translations
