"""The record as pictures, drawn by matplotlib."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.cost import Curve
from benchmarks.peers.subjects import SUBJECTS, missing_peer
from runtime.directory import write_atomically
from runtime.errors import OptionError

_DPI = 130
_MARKERS = {"fp32": "s", "int8": "o"}
_POINT_AREA = 4.0  # square points a MB, so that twice the memory is twice the area
_LEAST_AREA = 20.0


def check_plot_path(path: Path) -> None:
    """Raises OptionError unless the name ends in .png, MissingExtraError without matplotlib."""
    if path.suffix.lower() != ".png":
        raise OptionError(f"--plot is {path}; expected the name of a PNG, such as peers.png")
    _figure(1)


def cost_path(path: Path) -> Path:
    """Where the cost goes: beside the other plot."""
    return path.with_name(f"{path.stem}-cost.png")


def plot_pareto(record: Mapping[str, Any], path: Path) -> bool:
    """Latency against BLEU, the area of a point its memory; False, and nothing is written, where no
    BLEU was measured."""
    block = record["threads"][0]
    scored = {n: found for n, found in record["subjects"].items() if found["quality"]}
    if not scored:
        return False
    workload = block["workloads"].get("1x4") or next(iter(block["workloads"].values()))
    figure, (axes,) = _figure(1)
    from matplotlib.ticker import LogLocator, NullFormatter

    for number, (name, found) in enumerate(scored.items()):
        memory = found["footprint"]["rss_used"] / 1e6
        axes.scatter(
            workload["subjects"][name]["ms"]["p50"],
            found["quality"]["bleu"],
            s=max(_LEAST_AREA, _POINT_AREA * memory),
            color=f"C{number}",
            marker=_MARKERS[found["group"]],
            alpha=0.6,
            edgecolors="black",
            linewidths=1.5 if name.startswith("leanseq") else 0.3,
            label=f"{found['label']}, {memory:.0f} MB",
        )
    legend = figure.legend(fontsize=7, loc="outside right upper")
    for handle in legend.legend_handles:
        handle.set_sizes([40.0])
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.margins(x=0.35, y=0.2)
    axes.set_xlabel(f"ms a line, p50: {workload['label']}, {block['label']}")
    axes.set_ylabel("BLEU")
    axes.set_title("upper left is better; squares: FP32; the area is memory", fontsize=8)
    _save(figure, path)
    return True


def plot_cost(cost: Mapping[str, Any], path: Path) -> None:
    """Both curves, what was measured as points and the fitted terms as lines."""
    figure, both = _figure(2)
    for axes, over, label in zip(
        both, ("lengths", "beams"), ("target tokens", "beams"), strict=True
    ):
        for name, found in cost[over].items():
            curve = Curve(
                sizes=tuple(found["sizes"]),
                ms=tuple(found["ms"]),
                terms={int(power): ms for power, ms in found["terms"].items()},
            )
            fine = np.linspace(0, curve.sizes[-1], 100)
            (line,) = axes.plot(
                fine, [curve.fitted(x) for x in fine], linewidth=1, label=SUBJECTS[name].label
            )
            axes.scatter(curve.sizes, curve.ms, s=14, color=line.get_color())
        axes.set_xlabel(label)
        axes.set_ylabel("ms a line")
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=7)
    _save(figure, path)


def _figure(count: int) -> tuple[Any, list[Any]]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise missing_peer(error) from error
    figure = Figure(figsize=(6.4 * count, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, [figure.add_subplot(1, count, number + 1) for number in range(count)]


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=_DPI)
    write_atomically(path, image.getvalue())
