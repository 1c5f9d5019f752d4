"""Which way of choosing ranges keeps INT8 closest to FP32, on sentences held out for it."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from calibration.agreement import Agreement, measure_agreement
from calibration.calibrate import ranges_from, usable_sources
from calibration.errors import CalibrationError
from calibration.quantize import quantize_graph
from calibration.statistics import Method
from calibration.trajectories import Statistics, collect_statistics
from runtime.backend import Backend
from runtime.manifest import ModelSpec, Role, SpecialTokenIds
from runtime.onnxruntime_backend import OnnxRuntimeBackend
from runtime.options import SearchOptions

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One way to make an INT8 model."""

    method: Method
    percentile: float = 100.0
    quantize_logits: bool = False

    @property
    def name(self) -> str:
        name = f"percentile {self.percentile:g}" if self.method == "percentile" else self.method
        return f"{name} + logits" if self.quantize_logits else name


CHOICES = (
    Choice(method="minmax"),
    Choice(method="percentile", percentile=99.999),
    Choice(method="percentile", percentile=99.99),
    Choice(method="percentile", percentile=99.9),
    Choice(method="percentile", percentile=99.0),
    Choice(method="mse"),
    Choice(method="minmax", quantize_logits=True),
)


_LEGEND = """\
equal: held-out sentences whose best translation is FP32's. Along FP32's translations, step by step,
in nats: KL of INT8 from FP32, and token, how far the log-probability of the token taken is off.
size: of the quantized weights, FP32 = 1"""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """choice, and how its INT8 agrees with FP32. size_ratio: of the quantized weights."""

    choice: Choice
    agreement: Agreement
    size_ratio: float

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.choice.name,
            **asdict(self.choice),
            **self.agreement.to_json(),
            "size_ratio": self.size_ratio,
        }


def compare(
    encoder_path: Path,
    step_path: Path,
    model: ModelSpec,
    special_ids: SpecialTokenIds,
    sources: Sequence[Sequence[int]],
    *,
    choices: Sequence[Choice] = CHOICES,
    options: SearchOptions | None = None,
    threads: int | None = None,
) -> list[Comparison]:
    """Every other source calibrates, the ones between are held out and measured on.

    sources: token ids, EOS included, at least two that are not empty. Raises CalibrationError.
    """
    options = options or SearchOptions()
    usable = usable_sources(sources, model, special_ids)
    if len(usable) < 2:
        raise CalibrationError(
            "there is 1 sentence; expected at least 2, since half of them are held out"
        )
    measured_on, held_out = usable[0::2], usable[1::2]
    log.info("compare: %d sentences calibrate, %d are held out", len(measured_on), len(held_out))
    statistics = collect_statistics(
        encoder_path, step_path, model, special_ids, measured_on, options=options, threads=threads
    )
    graphs: dict[Role, Path] = {"encoder": encoder_path, "decoder_step": step_path}
    with ExitStack() as stack:
        directory = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="leanseq-compare-"))
        )

        def opened(paths: dict[Role, Path], precision: Any) -> OnnxRuntimeBackend:
            backend = OnnxRuntimeBackend(
                paths["encoder"], paths["decoder_step"], model, special_ids, precision, threads
            )
            stack.callback(backend.close)
            return backend

        backends: dict[str, Backend] = {}
        ratios: dict[str, float] = {}
        for choice in choices:
            paths, ratio = _quantize(
                choice, statistics, graphs, measured_on, options, directory / choice.name
            )
            backends[choice.name], ratios[choice.name] = opened(paths, "int8"), ratio
        agreements = measure_agreement(
            opened(graphs, "fp32"), backends, held_out, options, special_ids
        )
    return [
        Comparison(choice=c, agreement=agreements[c.name], size_ratio=ratios[c.name])
        for c in choices
    ]


def _quantize(
    choice: Choice,
    statistics: Statistics,
    graphs: dict[Role, Path],
    sources: Sequence[Sequence[int]],
    options: SearchOptions,
    directory: Path,
) -> tuple[dict[Role, Path], float]:
    """Writes both INT8 graphs; gives their paths and the size of the weights beside FP32's."""
    directory.mkdir()
    ranges = ranges_from(
        statistics, graphs, sources, options, method=choice.method, percentile=choice.percentile
    )
    paths = {role: directory / f"{role}.onnx" for role in graphs}
    reports = [
        quantize_graph(graphs[role], paths[role], ranges, quantize_logits=choice.quantize_logits)
        for role in graphs
    ]
    int8 = sum(report.weight_bytes_int8 for report in reports)
    return paths, int8 / sum(report.weight_bytes_fp32 for report in reports)


def render(comparisons: Sequence[Comparison]) -> str:
    """A table for people; errors are those of log-probabilities, in nats."""
    heads = ("ranges", "equal", "KL mean", "KL max", "token mean", "token max", "size")
    rows = [
        (
            c.choice.name,
            f"{c.agreement.equal}/{c.agreement.sentences}",
            f"{c.agreement.kl_mean:.2e}",
            f"{c.agreement.kl_max:.2e}",
            f"{c.agreement.log_prob_mean:.2e}",
            f"{c.agreement.log_prob_max:.2e}",
            f"{c.size_ratio:.4f}",
        )
        for c in comparisons
    ]
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    table = "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in (heads, *rows)
    )
    return f"{table}\n\n{_LEGEND}"
