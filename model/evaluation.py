"""How well a model translates a test set: BLEU, BLEU without case, chrF, exact match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from model.errors import DataError
from runtime.errors import MissingExtraError, OptionError


@dataclass(frozen=True, kw_only=True)
class Metric:
    """0 to 100, and the sacrebleu signature that says how it was computed."""

    score: float
    signature: str


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """bleu_lc: case does not count. exact_match: the share of lines that equal their reference to
    the letter, 0 to 1; by_family: the same within each family, where families were given."""

    num_lines: int
    bleu: Metric
    bleu_lc: Metric
    chrf: Metric
    exact_match: float
    by_family: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def evaluate(
    translations: Sequence[str],
    references: Sequence[str],
    *,
    families: Sequence[str] | None = None,
    target_language: str = "",
) -> Evaluation:
    """Compares translations [n] with references [n].

    target_language: picks BLEU's tokenizer where the language needs its own (zh, ja, ko); if not
    given, zh where the references are Chinese by their characters. Raises DataError when the lists
    are empty or differ in length, and as make_metrics does.
    """
    check_aligned(translations, references, families)
    if not target_language and _are_chinese(references):
        target_language = "zh"
    scores = []
    for metric in make_metrics(target_language):
        score = metric.corpus_score(list(translations), [list(references)]).score
        scores.append(Metric(score=float(score), signature=str(metric.get_signature())))
    equal = [ours == theirs for ours, theirs in zip(translations, references, strict=True)]
    groups: dict[str, list[bool]] = {}
    for family, hit in zip(families or (), equal, strict=families is not None):
        groups.setdefault(family, []).append(hit)
    return Evaluation(
        num_lines=len(equal),
        bleu=scores[0],
        bleu_lc=scores[1],
        chrf=scores[2],
        exact_match=sum(equal) / len(equal),
        by_family={name: sum(hits) / len(hits) for name, hits in sorted(groups.items())},
    )


def make_metrics(target_language: str) -> list[Any]:
    """BLEU, BLEU without case, chrF.

    Raises MissingExtraError without sacrebleu, OptionError without what splits the language's words
    (ja, ko).
    """
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


def _are_chinese(lines: Sequence[str]) -> bool:
    """Whether Han characters are most of the letters, with few kana, which tell Japanese."""
    letters = han = kana = 0
    for letter in "".join(lines):
        letters += letter.isalpha()
        han += "\u4e00" <= letter <= "\u9fff"
        kana += "\u3041" <= letter <= "\u30ff"
    return han > letters / 2 and kana < letters / 20


def check_aligned(
    lines: Sequence[str], references: Sequence[str], families: Sequence[str] | None = None
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
        ("BLEU", f"{evaluation.bleu.score:.2f}", evaluation.bleu.signature),
        ("BLEU -lc", f"{evaluation.bleu_lc.score:.2f}", evaluation.bleu_lc.signature),
        ("chrF", f"{evaluation.chrf.score:.2f}", evaluation.chrf.signature),
        ("exact match", f"{evaluation.exact_match:.1%}", f"{evaluation.num_lines} lines"),
    ]
    rows += [(f"  {name}", f"{share:.1%}", "") for name, share in evaluation.by_family.items()]
    width = max(len(name) for name, _, _ in rows)
    return "\n".join(f"{name:<{width}}  {value:>7}  {note}".rstrip() for name, value, note in rows)
