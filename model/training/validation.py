"""How good a model is while it trains, by unseen pairs: their loss, and greedy translations.

Both are computed batch by batch, a core each, and do not depend on how many cores there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from model.eager import EagerBackend, special_token_ids
from model.errors import TrainingError
from model.evaluation.metrics import evaluate, make_metrics
from model.samples import spread
from model.training.batching import EncodedCorpus, make_batch
from model.training.best import Score
from model.training.distributed import Ranks
from model.training.loss import token_loss
from model.transformer import Transformer
from runtime.batching import plan_batches
from runtime.cores import usable_cpus
from runtime.options import SearchOptions
from runtime.search import search
from runtime.tokenizer import Tokenizer

NUM_SHOWN = 3
SOURCE_TOKENS = 4096
"""Of sentences translated together: fewer larger steps cost less."""

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class SampleTranslation:
    """references: all that the source has."""

    source: str
    translation: str
    references: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Validation:
    """A score, the signature of its BLEU, and some of the translations behind it."""

    score: Score
    signature: str
    samples: tuple[SampleTranslation, ...]


class Validator:
    """Scores a model on validation pairs.

    corpus: all of them, encoded, for the loss. lines: at most so many of them, spread evenly, are
    translated; equal sources are one, with several references. batch_tokens: of a batch of the
    loss. threads: batches computed at once. Raises MissingExtraError without sacrebleu.
    """

    def __init__(
        self,
        pairs: Sequence[tuple[str, str]],
        corpus: EncodedCorpus,
        tokenizer: Tokenizer,
        *,
        lines: int,
        batch_tokens: int,
        threads: int,
    ) -> None:
        self._corpus, self._tokenizer = corpus, tokenizer
        self._batch_tokens, self._threads = batch_tokens, threads
        make_metrics("")  # complains now if it can't be measured
        grouped: dict[str, list[str]] = {}
        for source, reference in spread(pairs, lines):
            grouped.setdefault(source, []).append(reference)
        self._lines, self._references = list(grouped), list(grouped.values())
        self._sources = [tokenizer.encode_source(line) for line in self._lines]

    @property
    def num_lines(self) -> int:
        """How many sources are translated."""
        return len(self._lines)

    def validate(self, model: Transformer) -> Validation:
        """Leaves the model in eval mode. Raises TrainingError for a loss that is not finite."""
        loss = validation_loss(model, self._corpus, self._batch_tokens, threads=self._threads)
        if not math.isfinite(loss):
            raise TrainingError(
                f"the validation loss is {loss}: the model computes no numbers for lines that it "
                "was not trained on. Probably the learning rate is too high: halve it, or lengthen "
                "--warmup. The state of the last save is kept"
            )
        translations = self._translate(model)
        found = evaluate(translations, self._references)
        return Validation(
            score=Score(loss=loss, bleu=found.bleu.score, bleu_lc=found.bleu_lc.score),
            signature=found.bleu.signature,
            samples=tuple(
                SampleTranslation(
                    source=self._lines[i],
                    translation=translations[i],
                    references=tuple(self._references[i]),
                )
                for i in spread(range(len(self._lines)), NUM_SHOWN)
            ),
        )

    def _translate(self, model: Transformer) -> list[str]:
        """Greedily, sources cut to the model's limit; one without any piece is left empty."""
        config, backend = model.config, EagerBackend(model)
        special_ids, options = special_token_ids(config), SearchOptions(beam_size=1)
        eos_id = special_ids.eos
        sources = {
            i: [*ids[: min(len(ids), config.max_source) - 1], eos_id]
            for i, ids in enumerate(self._sources)
            if len(ids) > 1
        }
        rows = list(sources)
        batches = plan_batches([len(sources[i]) for i in rows], SOURCE_TOKENS)
        groups = [[rows[place] for place in batch] for batch in batches]
        groups.sort(key=lambda group: -max(len(sources[i]) for i in group))  # the longest first

        def translate(group: Sequence[int]) -> list[str]:
            found = search(backend, [sources[i] for i in group], options, special_ids)
            return [self._tokenizer.decode(best[0].token_ids) for best in found]

        translations = [""] * len(self._lines)
        for group, texts in zip(
            groups, _side_by_side(translate, groups, self._threads), strict=True
        ):
            for i, text in zip(group, texts, strict=True):
                translations[i] = text
        return translations


def validation_loss(
    model: Transformer, corpus: EncodedCorpus, batch_tokens: int, *, threads: int = 1
) -> float:
    """Negative log-likelihood of a target token, in nats, without smoothing or dropout.

    Leaves the model in eval mode.
    """
    model.eval()
    device = model.output_weight.device

    @torch.no_grad()
    def nll(rows: npt.NDArray[np.int64]) -> float:
        batch = make_batch(corpus, rows, model.config).to(device)
        return float(token_loss(model, batch, smoothing=0.0, bf16=False)[1])

    total = sum(_side_by_side(nll, corpus.batches(batch_tokens, seed=None), threads))
    return total / int(corpus.target.lengths.sum())


def _side_by_side(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int
) -> list[Result]:
    """function of each item, in order; each of so many threads takes one at a time."""
    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, initializer=lambda: torch.set_num_threads(1)) as pool:
            return list(pool.map(function, items))
    finally:
        torch.set_num_threads(before)  # some of PyTorch's libraries hold one number for all threads


def validation_threads(ranks: Ranks) -> int:
    """One a core: of several processes on the CPU those that do not validate wait."""
    if ranks.device.type != "cpu":
        return 1
    return max(1, min(torch.get_num_threads() * ranks.size, len(usable_cpus())))
