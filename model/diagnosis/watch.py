"""Watches a training: raises where it cannot come to anything, says what looks wrong.

It only looks: no weight, random number or saved state depends on it. What it remembers begins anew
when a training goes on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from model.diagnosis import stall
from model.diagnosis.batches import check_batch
from model.diagnosis.early import EarlyLoss
from model.diagnosis.heads import dead_heads
from model.diagnosis.lines import name_lines
from model.diagnosis.norms import GradientNorms, vanished_layers
from model.diagnosis.not_finite import FailedUpdate, explain, find_in_batches
from model.diagnosis.overfitting import LossHistory
from model.diagnosis.probe import check_masks, probe_batch
from model.diagnosis.stall import Plateau, frozen_weights, source_use, typical_weight
from model.diagnosis.vocabulary import UNSEEN, unseen_pieces
from model.errors import TrainingError
from model.training.batching import Batch, EncodedCorpus, make_batch
from model.training.distributed import Ranks
from model.training.gradients import GradientWorkers
from model.training.settings import TrainingSettings
from model.training.state import Position
from model.transformer import Transformer
from runtime.tokenizer import Tokenizer

_HEADS_ROWS = 32


@dataclass(frozen=True, kw_only=True)
class Update:
    """What an update is computed from, as far as this rank computes it.

    number: from 1. epoch: from 0. rows, batches, seeds: of each batch its rows of `corpus`, itself,
    and its dropout's seed. tokens: target tokens, on all ranks.
    """

    number: int
    epoch: int
    corpus: EncodedCorpus
    rows: Sequence[npt.NDArray[np.int64]]
    batches: Sequence[Batch]
    seeds: Sequence[int]
    tokens: int
    r_drop: float


class Watch:
    """Of one training in one process. say: takes a warning; called on the first rank only."""

    def __init__(
        self,
        model: Transformer,
        optimizer: torch.optim.Optimizer,
        settings: TrainingSettings,
        *,
        bf16: bool,
        pairs: Sequence[tuple[str, str]],
        valid_corpus: EncodedCorpus,
        guessing_nll: float,
        ranks: Ranks,
        say: Callable[[str], None],
    ) -> None:
        """pairs: what the corpus of each Update was encoded from. guessing_nll: what a target token
        costs by frequency alone."""
        self._model, self._optimizer, self._settings = model, optimizer, settings
        self._bf16, self._pairs, self._valid = bf16, pairs, valid_corpus
        self._guessing, self._ranks = guessing_nll, ranks
        self._say = say if ranks.first else lambda _: None
        self._norms, self._history = GradientNorms(), LossHistory()
        self._early = EarlyLoss(guessing_nll)
        self._nll, self._tokens = 0.0, 0  # since the last validation
        self._told: set[str] = set()

    def begin(self, corpus: EncodedCorpus, tokenizer: Tokenizer) -> None:
        """Before the first update. Raises TrainingError for a mask that is missing, DataError and
        TrainingError for batches that can't be right (model.diagnosis.batches)."""
        batch = probe_batch(corpus, self._model.config).to(self._ranks.device)
        check_batch(batch, self._model.config)
        check_masks(self._model, batch)
        unseen, pieces = unseen_pieces(corpus, tokenizer)
        if unseen > UNSEEN * pieces:
            self._say(
                f"{unseen} of {pieces} pieces of the vocabulary are in no training line: nothing "
                "teaches their embeddings. Probably the vocabulary is too large for the corpus: "
                "try a smaller --vocab-size"
            )

    def check(self, update: Update) -> None:
        """Before its gradients. Raises DataError and TrainingError (model.diagnosis.batches)."""
        for index, batch in enumerate(update.batches):
            check_batch(batch, self._model.config, partial(self._name_rows, update, index))

    def failed(self, update: Update, *, nll: float, norm: float, rate: float) -> TrainingError:
        """The error for an update whose loss or gradient is not finite; its step must not have been
        made. Called by all ranks; returns on the one that found it, raises on the others."""
        settings = self._settings
        alone = Ranks(device=self._ranks.device)
        with contextlib.closing(GradientWorkers(1, alone)) as workers:

            def redo(index: int, bf16: bool) -> float:
                return workers.compute(
                    self._model,
                    [update.batches[index].to(self._ranks.device)],
                    [update.seeds[index]],
                    tokens=update.tokens,
                    smoothing=settings.label_smoothing,
                    bf16=bf16,
                    r_drop=update.r_drop,
                )

            failed = FailedUpdate(
                update=update.number,
                epoch=update.epoch + 1,
                nll=nll,
                norm=norm,
                largest_norm=self._norms.largest,
                rate=rate,
                clip_norm=settings.clip_norm,
                bf16=self._bf16,
                rows=[len(rows) for rows in update.rows],
                name_rows=partial(self._name_rows, update),
                redo=redo,
            )
            found = find_in_batches(self._model, failed)
            flags = self._ranks.gather_flags(found is not None)
            tells = flags.index(True) if any(flags) else 0
            if self._ranks.rank != tells:
                self._ranks.gather_flags(False)  # raises once the one that tells has told
            return TrainingError(explain(self._model, failed, found))

    def done(self, update: Update, *, nll: float, norm: float) -> None:
        """After its step. nll: nats a target token; norm: of the gradient, before clipping. Raises
        TrainingError where the loss is too low for a model that sees only what it may."""
        self._nll += nll * update.tokens
        self._tokens += update.tokens
        times = self._norms.add(norm)
        if times is not None and update.rows:
            self._say(
                f"gradient norm {norm:.3g} at update {update.number}, {times:.0f} times what is "
                f"usual here: {self._clipping()}. Look at its lines if this comes again: "
                f"{self._name_rows(update, 0, range(len(update.rows[0])))}"
            )
        low = self._early.add(update.number, nll)
        if low is not None:
            # By now a leak that random weights hid would show.
            check_masks(
                self._model, probe_batch(update.corpus, self._model.config).to(self._ranks.device)
            )
            copies = sum(source.strip() == target.strip() for source, target in self._pairs)
            self._say(
                f"the loss is down to {low:.3f} nats a token after {update.number} updates, where "
                f"guessing by frequency costs {self._guessing:.2f}. Masks and shift are right, so "
                "either the lines are that regular, or the sources hold the targets: both sides "
                f"are the same in {copies / len(self._pairs):.0%} of the pairs. Look at the corpus"
            )

    def window(self, position: Position) -> None:
        """After each STALL_UPDATES updates: closes position's window of losses. Raises
        TrainingError for a loss that stands still."""
        mean, before = position.window_nll / position.window_tokens, position.last_window
        own, other = source_use(self._model, self._valid, self._ranks.device)
        settings, frozen = self._settings, frozen_weights(self._model, self._optimizer)
        plateau = Plateau(
            mean=mean,
            before=float("inf") if before is None else before,
            guessing=self._guessing,
            own=own,
            other=other,
            median_norm=self._norms.median,
            moved=settings.peak_learning_rate * position.updates,
            size=typical_weight(self._model),
            frozen=frozen,
            peak=settings.peak_learning_rate,
            norm=settings.norm,
        )
        if plateau.stands_still:
            raise TrainingError(plateau.explain())
        position.last_window = mean
        position.window_nll, position.window_tokens = 0.0, 0
        if frozen:
            self._say_once(
                f"{len(frozen)} weights are frozen, {frozen[0]} the first: they had no gradient "
                "since training began. Look for requires_grad, detach() or no_grad() on the way"
            )
        if plateau.ignores_source and position.updates >= max(
            settings.warmup, 2 * stall.STALL_UPDATES
        ):
            self._say(
                f"the source makes no difference so far: validation loss {own:.3f}, {other:.3f} "
                "with the sources of other lines. Probably source and target lines do not belong "
                "together: `python -m model check-data` tells where"
            )

    def validated(self, updates: int, loss: float) -> None:
        """After a validation, on the first rank."""
        train, self._nll, train_tokens, self._tokens = self._nll, 0.0, self._tokens, 0
        if train_tokens:
            note = self._history.add(updates, loss, train / train_tokens)
            if note:
                self._say(note)
        for name, share in vanished_layers(self._model):
            self._say_once(
                f"the gradient vanishes on the way to {name}: {share:.1g} of the largest layer's. "
                "It learns next to nothing. Try --norm pre, a smaller --learning-rate, or fewer "
                "layers",
                key=f"vanished {name}",
            )
        if updates >= self._settings.warmup:
            order = np.argsort(self._valid.source.lengths, kind="stable")
            rows = order[:: max(1, len(order) // _HEADS_ROWS)][:_HEADS_ROWS]
            batch = make_batch(self._valid, rows, self._model.config).to(self._ranks.device)
            found = [str(head) for head in dead_heads(self._model, batch)]
            new = [text for text in found if text not in self._told]
            self._told.update(new)
            if new:
                self._say(
                    f"dead heads, {len(found)} in all: {'; '.join(new)}. A few are usual; many say "
                    "that fewer heads or layers would do, or that the learning rate is too high"
                )

    def _clipping(self) -> str:
        clip = self._settings.clip_norm
        return f"clipped to {clip:g}" if clip else "not clipped, set --clip-norm 1"

    def _name_rows(self, update: Update, index: int, found: Sequence[int]) -> str:
        rows = update.rows[index]
        return name_lines(update.corpus, self._pairs, [int(rows[row]) for row in found])

    def _say_once(self, text: str, key: str = "") -> None:
        if (key or text) not in self._told:
            self._told.add(key or text)
            self._say(text)
