"""`python -m benchmarks peers`."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import click

from benchmarks.peers.rounds import Effort
from benchmarks.peers.subjects import SUBJECTS
from benchmarks.peers.workloads import WORKLOADS
from runtime.console import Command
from runtime.directory import write_text_atomically
from runtime.errors import OptionError

logger = logging.getLogger(__name__)

RESULTS = Path("benchmarks/results")
_FILE = click.Path(path_type=Path)
_OF_FILES = ("bundle", "checkpoint", "src", "ref", "limit", "target_language")


@click.command("peers", cls=Command)
@click.option("--bundle", type=_FILE, help="Directory of the bundle, with INT8.")
@click.option("--checkpoint", type=_FILE, help="What it was built from.")
@click.option("--src", type=_FILE, help="Source lines, UTF-8, plain or gzip.")
@click.option("--ref", type=_FILE, help="Their reference translations, for BLEU.")
@click.option("--limit", type=click.IntRange(1), help="Only so many lines.")
@click.option("--target-language", help="zh, ja or ko: how BLEU splits words; Chinese is told by its characters if not given.")  # noqa: E501  # fmt: skip
@click.option("--preset", help="With --random: the model size to build.")
@click.option("--random", "random_weights", is_flag=True, help="Random weights and lines.")
@click.option("--steps", type=click.IntRange(1), help="With --random: target tokens of every search.  [default: 24]")  # noqa: E501  # fmt: skip
@click.option("--subjects", type=click.Choice(list(SUBJECTS)), multiple=True, help="Measure this one; may be repeated.  [default: all]")  # noqa: E501  # fmt: skip
@click.option("--workloads", type=click.Choice(list(WORKLOADS)), multiple=True, help="Lines at once x beams; may be repeated.  [default: all; with --random no file]")  # noqa: E501  # fmt: skip
@click.option("--threads", type=click.IntRange(1), multiple=True, help="Of each; may be repeated.  [default: 1, and all cores]")  # noqa: E501  # fmt: skip
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Timed runs; of the slow subjects one.")  # noqa: E501  # fmt: skip
@click.option("--sentences", type=click.IntRange(1), default=20, show_default=True, help="How many are timed one at a time.")  # noqa: E501  # fmt: skip
@click.option("--batches", type=click.IntRange(1), default=2, show_default=True, help="How many of 32 lines are timed.")  # noqa: E501  # fmt: skip
@click.option("--cost", is_flag=True, help="Also the cost against length and beams.")
@click.option("--json", "json_path", type=_FILE, help="Write the record here as well.")
@click.option("--plot", "plot_path", type=_FILE, help="The PNG.  [default: in benchmarks/results]")
def peers_command(json_path: Path | None, plot_path: Path | None, **options: Any) -> None:
    """Times leanseq beside PyTorch, a plain ONNX Runtime loop and CTranslate2: same weights, same
    lines, all in turn, each alone in its process.

    Needs --bundle, --checkpoint and --src; or --preset and --random. Proves first that CTranslate2
    and leanseq give the same tokens in FP32. At the end it says which bars hold.
    """
    from benchmarks.peers.report import render
    from benchmarks.peers.run import measure_peers

    run = make_run(**options)
    plots = Plots.of(run, plot_path)
    if json_path is not None:
        check_writable(json_path, "--json")
    record = measure_peers(run)
    click.echo(render(record))  # first: should a file fail, what took hours to measure is there
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(json_path, json.dumps(record, ensure_ascii=False) + "\n")
    plots.draw(record)


def make_run(random_weights: bool, **options: Any) -> Any:
    """The PeersRun of the command's options. Raises OptionError where they don't go together."""
    from benchmarks.peers.run import PeersRun

    effort = Effort(**{name: options.pop(name) for name in ("rounds", "sentences", "batches")})
    if random_weights:
        _refuse([name for name in _OF_FILES if options[name] is not None], "--random")
        options["preset"] = options["preset"] or "base"
    else:
        given = [name for name in ("preset", "steps") if options[name] is not None]
        _refuse(given, "files; add --random")
        missing = [f"--{name}" for name in ("bundle", "checkpoint", "src") if not options[name]]
        if missing:
            raise OptionError(
                f"{', '.join(missing)} not given; peers needs --bundle, --checkpoint and --src, or "
                "--preset with --random"
            )
    return PeersRun(
        effort=effort, **{name: value for name, value in options.items() if value is not None}
    )


class Plots:
    """What is drawn, and where; found out before anything is measured."""

    def __init__(self, path: Path, *, pareto: bool, cost: bool) -> None:
        self.path, self.pareto, self.cost = path, pareto, cost

    @classmethod
    def of(cls, run: Any, path: Path | None) -> Plots:
        """Raises OptionError for a path that is given and would stay empty, or is no PNG."""
        from benchmarks.peers.plot import check_plot_path

        pareto = run.ref is not None and "file" in {w.name for w in run.chosen_workloads()}
        if path is not None and not pareto and not run.cost:
            raise OptionError(
                "--plot is given, but there is nothing to draw: latency against BLEU needs --ref "
                "and the workload file, or add --cost"
            )
        name = run.preset or Path(run.bundle).resolve().name
        chosen = path or RESULTS / f"peers-{name}.png"
        if pareto or run.cost:
            check_plot_path(chosen)
            check_writable(chosen, "--plot")
        return cls(chosen, pareto=pareto, cost=run.cost)

    def draw(self, record: Any) -> None:
        """Writes the files, and tells their names."""
        from benchmarks.peers.plot import cost_path, plot_cost, plot_pareto

        if self.pareto:
            plot_pareto(record, self.path)
            logger.info("latency against BLEU: %s", self.path)
        if self.cost:
            plot_cost(record["cost"], cost_path(self.path))
            logger.info("cost: %s", cost_path(self.path))


def check_writable(path: Path, flag: str) -> None:
    """Raises OptionError where no file can be written there, in directories that may be yet to be
    made: before minutes of measuring. Nothing is made or changed.
    """
    place = next(p for p in (path, *path.absolute().parents) if p.exists())
    file = place == path
    if path.is_dir() or not (file or place.is_dir()) or not os.access(place, os.W_OK):
        raise OptionError(
            f"{flag} is {path}, which can't be written; name a file in a directory that can"
        )


def _refuse(names: list[str], other: str) -> None:
    if names:
        shown = ", ".join("--" + name.replace("_", "-") for name in names)
        raise OptionError(f"{shown} can't be used with {other}; leave it out")
