"""How good translations are: BLEU and chrF with their signatures, and exact match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from runtime.errors import MissingExtraError, OptionError


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Scores of one list of translations.

    bleu, chrf: 0 to 100, each with the sacrebleu signature that says how it was computed.
    exact_match: the share of lines, 0 to 1, that equal their reference to the letter.
    exact_match_by_family: the same within each family of lines, where families were given.
    """

    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str
    exact_match: float
    exact_match_by_family: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def score(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    families: Sequence[str] | None = None,
    target_language: str | None = None,
) -> Quality:
    """Scores hypotheses [n] against references [n]; families [n] names a group for each line.

    target_language: picks BLEU's tokenizer where the language needs its own (zh, ja, ko). Raises
    OptionError when the lists differ in length or are empty, and as make_metrics does.
    """
    check_aligned(hypotheses, references, families)
    bleu, chrf = make_metrics(target_language)
    bleu_score = bleu.corpus_score(list(hypotheses), [list(references)]).score
    chrf_score = chrf.corpus_score(list(hypotheses), [list(references)]).score
    overall, by_family = exact_match(hypotheses, references, families)
    return Quality(
        bleu=float(bleu_score),
        bleu_signature=str(bleu.get_signature()),
        chrf=float(chrf_score),
        chrf_signature=str(chrf.get_signature()),
        exact_match=overall,
        exact_match_by_family=by_family,
    )


def make_metrics(target_language: str | None) -> tuple[Any, Any]:
    """BLEU and chrF.

    Raises MissingExtraError without sacrebleu, OptionError without what splits the language's words
    (ja, ko).
    """
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError as error:
        raise MissingExtraError("sacrebleu", "train", "measuring BLEU and chrF") from error
    try:
        return BLEU(trg_lang=target_language or ""), CHRF()
    except (RuntimeError, ImportError) as error:
        raise OptionError(
            f"target_language is {target_language!r}, whose words sacrebleu can't split here; "
            f"install what it needs with: pip install 'sacrebleu[{target_language}]'"
        ) from error


def exact_match(
    hypotheses: Sequence[str], references: Sequence[str], families: Sequence[str] | None = None
) -> tuple[float, dict[str, float]]:
    """The share of equal lines, 0 to 1: of all, and of each family (sorted by name)."""
    equal = [
        hypothesis == reference
        for hypothesis, reference in zip(hypotheses, references, strict=True)
    ]
    groups: dict[str, list[bool]] = {}
    for family, hit in zip(families or (), equal, strict=families is not None):
        groups.setdefault(family, []).append(hit)
    by_family = {name: sum(hits) / len(hits) for name, hits in sorted(groups.items())}
    return sum(equal) / len(equal), by_family


def check_aligned(
    lines: Sequence[str], references: Sequence[str], families: Sequence[str] | None
) -> None:
    """Raises OptionError unless there is a reference, and a family if any, for every line."""
    if not lines:
        raise OptionError("there are no lines to measure; give a source file that has some")
    for name, others in (("references", references), ("families", families)):
        if others is not None and len(others) != len(lines):
            raise OptionError(
                f"{len(lines):,} lines but {len(others):,} {name}; expected one for each line"
            )
