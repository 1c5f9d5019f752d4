"""From float graphs and sentences to activation ranges: the one call that a build makes."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path

from calibration.errors import CalibrationError
from calibration.graph_file import graph_sha256
from calibration.ranges import Ranges
from calibration.statistics import DEFAULT_METHOD, DEFAULT_PERCENTILE, METHODS, Method
from calibration.trajectories import BATCH_TOKENS, Statistics, collect_statistics
from runtime.errors import OptionError
from runtime.manifest import ModelSpec, Role, SpecialTokenIds
from runtime.options import SearchOptions

log = logging.getLogger(__name__)


def calibrate(
    encoder_path: Path,
    step_path: Path,
    model: ModelSpec,
    special_ids: SpecialTokenIds,
    sources: Sequence[Sequence[int]],
    *,
    method: Method = DEFAULT_METHOD,
    percentile: float = DEFAULT_PERCENTILE,
    options: SearchOptions | None = None,
    batch_tokens: int = BATCH_TOKENS,
    threads: int | None = None,
) -> Ranges:
    """The ranges of every tensor that a weight MatMul reads, over beam searches of the sources.

    sources: token ids, EOS included; those that are empty but for EOS are left out, those beyond
    the model's limit cut as the translator cuts them. percentile: in percent, of that method only.
    options: of the search; beam_size 4 if not given. Neither batch_tokens nor threads changes the
    result. Raises CalibrationError.
    """
    check_method(method, percentile)
    options = options or SearchOptions()
    usable = usable_sources(sources, model, special_ids)
    statistics = collect_statistics(
        encoder_path,
        step_path,
        model,
        special_ids,
        usable,
        options=options,
        batch_tokens=batch_tokens,
        threads=threads,
    )
    graphs: dict[Role, Path] = {"encoder": encoder_path, "decoder_step": step_path}
    return ranges_from(statistics, graphs, usable, options, method=method, percentile=percentile)


def ranges_from(
    statistics: Statistics,
    graphs: dict[Role, Path],
    sources: Sequence[Sequence[int]],
    options: SearchOptions,
    *,
    method: Method,
    percentile: float = DEFAULT_PERCENTILE,
) -> Ranges:
    """The bounds that one method draws from statistics that are there already."""
    check_method(method, percentile)
    ids = json.dumps([[int(i) for i in source] for source in sources], separators=(",", ":"))
    return Ranges(
        method=method,
        percentile=percentile if method == "percentile" else None,
        sentences=len(sources),
        sources_sha256=hashlib.sha256(ids.encode()).hexdigest(),
        search=options.to_json(),
        graphs={role: graph_sha256(path) for role, path in graphs.items()},
        bounds={
            role: {name: tensor.bound(method, percentile) for name, tensor in of_role.items()}
            for role, of_role in statistics.items()
        },
    )


def usable_sources(
    sources: Sequence[Sequence[int]], model: ModelSpec, special_ids: SpecialTokenIds
) -> list[list[int]]:
    """Sources that hold more than EOS, cut to the model's limit (its first pieces, then EOS)."""
    usable = [list(source) for source in sources if any(i != special_ids.eos for i in source)]
    if not usable:
        found = f"{len(sources)} that are all empty" if sources else "none"
        raise CalibrationError(
            f"calibration needs sentences and found {found}; give some like those that will be "
            "translated, 500 or so"
        )
    if len(usable) < len(sources):
        log.info("calibration: %d empty sentences left out", len(sources) - len(usable))
    limit = model.max_source
    if limit is None:
        return usable
    return [s if len(s) <= limit else [*s[: limit - 1], special_ids.eos] for s in usable]


def check_method(method: str, percentile: float) -> None:
    """Raises OptionError for a method that there is not, or a percentile outside (50, 100]."""
    if method not in METHODS:
        raise OptionError(f"method is {method!r}; expected one of {', '.join(METHODS)}")
    if not 50 < percentile <= 100:
        raise OptionError(
            f"percentile is {percentile!r}; expected a number above 50 and at most 100, in percent",
        )
