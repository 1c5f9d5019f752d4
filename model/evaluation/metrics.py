"""How well a model translates a test set: BLEU, BLEU without case, chrF, exact match."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from model.errors import DataError
from model.evaluation.bootstrap import (
    SEED,
    Interval,
    check_resamples,
    interval,
    resampled_scores,
    score,
    sentence_counts,
)
from runtime.errors import MissingExtraError, OptionError

References = Sequence[str | Sequence[str]]
"""The reference of each line, or all that it has."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """0 to 100, and the sacrebleu signature that says how it was computed. interval: by bootstrap
    resampling of the lines, where that was asked for."""

    score: float
    signature: str
    interval: Interval | None = None


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """bleu_lc: case does not count. exact_match: the share of lines that equal a reference to the
    letter, 0 to 1; by_family: the same within each family, where families were given."""

    num_lines: int
    bleu: Metric
    bleu_lc: Metric
    chrf: Metric
    exact_match: float
    by_family: dict[str, float] = field(default_factory=dict)

    @property
    def metrics(self) -> dict[str, Metric]:
        """By the name that tables call it."""
        return dict(zip(METRIC_NAMES, (self.bleu, self.bleu_lc, self.chrf), strict=True))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


_SHORT = {"zho": "zh", "chi": "zh", "cmn": "zh", "jpn": "ja", "kor": "ko"}
"""ISO 639-3 and -2, as Tatoeba and others name them -> as sacrebleu does."""

METRIC_NAMES = ("BLEU", "BLEU -lc", "chrF")
"""Of what make_metrics makes."""


def evaluate(
    translations: Sequence[str],
    references: References,
    *,
    families: Sequence[str] | None = None,
    target_language: str = "",
    resamples: int = 0,
) -> Evaluation:
    """Compares translations [n] with references [n]: one string for each, or several.

    target_language: picks BLEU's tokenizer where the language needs its own (zh, ja, ko); if not
    given, zh where the references are Chinese by their characters. resamples: of the bootstrap that
    gives each metric its interval; 0 gives none. Raises DataError when the lists are empty or
    differ in length, OptionError for too few resamples, and as make_metrics does.
    """
    check_aligned(translations, references, families)
    check_resamples(resamples)
    several = listed(references)
    metrics = metrics_for(several, target_language)
    parts = [(metric, sentence_counts(metric, translations, several)) for metric in metrics]
    intervals: list[Interval | None] = [None] * len(metrics)
    if resamples:
        intervals = [interval(scores) for scores in resampled_scores(parts, resamples)]
    bleu, bleu_lc, chrf = (
        Metric(score=score(*part), signature=signature(part[0], resamples), interval=found)
        for part, found in zip(parts, intervals, strict=True)
    )
    equal = [ours in theirs for ours, theirs in zip(translations, several, strict=True)]
    groups: dict[str, list[bool]] = {}
    for family, hit in zip(families or (), equal, strict=families is not None):
        groups.setdefault(family, []).append(hit)
    return Evaluation(
        num_lines=len(equal),
        bleu=bleu,
        bleu_lc=bleu_lc,
        chrf=chrf,
        exact_match=sum(equal) / len(equal),
        by_family={name: sum(hits) / len(hits) for name, hits in sorted(groups.items())},
    )


def bleu(
    translations: Sequence[str], references: References, *, target_language: str = ""
) -> float:
    """BLEU alone, 0 to 100, the same as evaluate's. Raises as evaluate."""
    check_aligned(translations, references)
    several = listed(references)
    metric = metrics_for(several, target_language)[0]
    return score(metric, sentence_counts(metric, translations, several))


def listed(references: References) -> list[list[str]]:
    """All references of each line, as a list."""
    return [[one] if isinstance(one, str) else list(one) for one in references]


def metrics_for(references: Sequence[Sequence[str]], target_language: str) -> list[Any]:
    """make_metrics for a language that is named, or told by the references' characters."""
    if not target_language and _are_chinese([line for several in references for line in several]):
        target_language = "zh"
    return make_metrics(target_language)


def signature(metric: Any, resamples: int = 0) -> str:
    """sacrebleu's, of a metric that has counted, with the resamples and their seed if any."""
    if resamples:
        metric.n_bootstrap, metric.seed = resamples, SEED
    return str(metric.get_signature())


def make_metrics(target_language: str) -> list[Any]:
    """BLEU, BLEU without case, chrF.

    target_language: a code such as zh, zh-CN or cmn; "" and those that need no splitting of their
    own take BLEU's usual one. Raises MissingExtraError without sacrebleu, OptionError for what is
    no code, and without what splits the language's words (ja, ko).
    """
    target_language = _code(target_language)
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError as error:
        raise MissingExtraError("sacrebleu", "train", "measuring BLEU and chrF") from error
    try:
        return [
            BLEU(trg_lang=target_language),
            BLEU(trg_lang=target_language, lowercase=True),
            CHRF(),
        ]
    except (RuntimeError, ImportError) as error:
        raise OptionError(
            f"target_language is {target_language!r}, whose words sacrebleu can't split here; "
            f"install what it needs with: pip install 'sacrebleu[{target_language}]'"
        ) from error


def _code(language: str) -> str:
    """Of two letters where sacrebleu knows the language by them; it takes any others in silence."""
    code = re.split("[-_]", language.lower())[0]
    if not re.fullmatch("[a-z]{2,3}", code) and language:
        raise OptionError(
            f"target_language is {language!r}; expected a code of two or three letters, such as "
            "de or zh"
        )
    return _SHORT.get(code, code)


def _are_chinese(lines: Sequence[str]) -> bool:
    """Whether Han characters are most of the letters, with few kana, which tell Japanese."""
    letters = han = kana = 0
    for letter in "".join(lines):
        letters += letter.isalpha()
        han += "\u4e00" <= letter <= "\u9fff"
        kana += "\u3041" <= letter <= "\u30ff"
    return han > letters / 2 and kana < letters / 20


def check_aligned(
    lines: Sequence[str], references: References, families: Sequence[str] | None = None
) -> None:
    """Raises DataError unless there is a reference, and a family if any, for every line."""
    if not lines:
        raise DataError("there are no lines to evaluate; expected a source file that has some")
    for name, others in (("references", references), ("families", families)):
        if others is not None and len(others) != len(lines):
            raise DataError(
                f"{len(lines):,} source lines but {len(others):,} {name}; expected one for each"
            )


def render(evaluation: Evaluation) -> str:
    """The evaluation as lines of text."""
    rows = [
        (name, f"{metric.score:.2f}", _middle(metric.interval), metric.signature)
        for name, metric in evaluation.metrics.items()
    ]
    rows.append(
        ("exact match", f"{evaluation.exact_match:.1%}", "", f"{evaluation.num_lines:,} lines")
    )
    rows += [(f"  {name}", f"{share:.1%}", "", "") for name, share in evaluation.by_family.items()]
    name_width, middle_width = (max(len(row[column]) for row in rows) for column in (0, 2))
    lines = []
    for name, value, middle, note in rows:
        cells = [f"{name:<{name_width}}", f"{value:>7}"]
        cells += [f"{middle:<{middle_width}}"] if middle_width else []
        lines.append("  ".join([*cells, note]).rstrip())
    return "\n".join(lines)


def _middle(found: Interval | None) -> str:
    return "" if found is None else f"95%: {found.low:.2f} to {found.high:.2f}"
