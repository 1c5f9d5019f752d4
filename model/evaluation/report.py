"""One evaluation from files to a table: the scores of a system, and how it differs from another."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from model.corpora.files import read_lines
from model.evaluation.bootstrap import PairedDifference, check_resamples
from model.evaluation.metrics import Evaluation, evaluate, make_metrics, render
from model.evaluation.sets import EvaluationFiles
from model.evaluation.significance import check_paired_resamples, compare
from model.evaluation.systems import SystemChoice


@dataclass(frozen=True, kw_only=True)
class EvaluationReport:
    """system: what translated, and how it searched (model.evaluation.systems), or the file that was
    given. differences: from the baseline's file, by metric."""

    evaluation: Evaluation
    system: dict[str, Any]
    baseline: str | None
    differences: dict[str, PairedDifference]

    def to_json(self) -> dict[str, Any]:
        values = {**self.evaluation.to_json(), "system": self.system}
        if self.baseline is not None:
            found = {name: asdict(one) for name, one in self.differences.items()}
            values["against"] = {"baseline": self.baseline, "differences": found}
        return values

    def render(self) -> str:
        lines = [render(self.evaluation)]
        if self.baseline is not None:
            width = max(map(len, self.differences))
            lines.append(f"against {self.baseline}, by paired bootstrap:")
            lines += [f"  {name:<{width}}  {one.text}" for name, one in self.differences.items()]
        lines.append(f"translated by {_system_text(self.system)}")
        return "\n".join(lines)


def report_evaluation(
    system: SystemChoice | Path,
    files: EvaluationFiles,
    *,
    search: Mapping[str, Any] | None = None,
    baseline: Path | None = None,
    target_language: str = "",
    resamples: int = 0,
) -> EvaluationReport:
    """Translates a test set and scores it, or scores a file of translations, one for each line.

    search: options of the search that are not the system's defaults. baseline: another system's
    translations, a line for each. resamples: of the bootstrap behind the intervals; 0: none.
    Raises DataError, OptionError, MissingExtraError, and what opening the system raises.
    """
    check_resamples(resamples)
    if baseline is not None:
        check_paired_resamples(resamples)
    test_set = files.read(need_sources=isinstance(system, SystemChoice))
    theirs = None if baseline is None else test_set.pick(read_lines(baseline), str(baseline))
    make_metrics(target_language)  # complains before anything is translated
    if isinstance(system, Path):
        texts = test_set.pick(read_lines(system), str(system))
        description: dict[str, Any] = {"source": f"file {system}"}
    else:
        assert test_set.sources is not None
        with system.open() as opened:
            options = dataclasses.replace(opened.translator.defaults, **(search or {}))
            translations = opened.translator.translate(test_set.sources, options)
            texts = [translation.text for translation in translations]
            description = opened.describe(options)
    evaluation = evaluate(
        texts,
        test_set.references,
        families=test_set.families,
        target_language=target_language,
        resamples=resamples,
    )
    differences = {}
    if theirs is not None:
        differences = compare(
            texts,
            theirs,
            test_set.references,
            target_language=target_language,
            resamples=resamples,
        )
    return EvaluationReport(
        evaluation=evaluation,
        system=description,
        baseline=None if baseline is None else str(baseline),
        differences=differences,
    )


def _system_text(system: Mapping[str, Any]) -> str:
    if "search" not in system:
        return str(system["source"])
    search = system["search"]
    return (
        f"{system['source']}, {system['backend']} {system['precision']}, beam "
        f"{search['beam_size']}, length penalty {search['length_penalty']:g}"
    )
