"""Lines of the training corpus, as messages name them."""

from __future__ import annotations

from collections.abc import Sequence

from model.training.batching import EncodedCorpus

_CUT = 60


def name_lines(corpus: EncodedCorpus, pairs: Sequence[tuple[str, str]], rows: Sequence[int]) -> str:
    """rows of `corpus` -> "line 7 ('source' => 'target') and lines 9, 12 and 3 more": numbers of
    `pairs`, from 1, and the text of the first."""
    numbers = sorted(int(corpus.pair_rows[row]) for row in rows)
    source, target = pairs[numbers[0]]
    text = f"line {numbers[0] + 1} ({_cut(source)!r} => {_cut(target)!r})"
    if len(numbers) > 1:
        shown = ", ".join(str(number + 1) for number in numbers[1:4])
        more = f" and {len(numbers) - 4} more" if len(numbers) > 4 else ""
        text += f" and line{'s' if len(numbers) > 2 else ''} {shown}{more}"
    return text


def _cut(text: str) -> str:
    return text if len(text) <= _CUT else f"{text[: _CUT - 3]}..."
