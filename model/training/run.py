"""One training under way: its model, optimizer, position and what it shows.

`model.training.train.train` opens one and drives it; everything that decides the next update is in
what `Run` saves (model.training.state).
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from model.checkpoint import load_weights, model_weights, save_checkpoint
from model.devices import has_fast_bf16
from model.diagnosis import stall
from model.diagnosis.early import unigram_entropy
from model.diagnosis.watch import Update, Watch
from model.errors import CheckpointError
from model.samples import Samples
from model.tokenizer_training import train_tokenizer
from model.training import state as states
from model.training.batching import encode_corpus, make_batch
from model.training.best import Best, Score
from model.training.distributed import Ranks
from model.training.gradients import GradientWorkers
from model.training.history import RECORD_EVERY, History
from model.training.interrupt import catch_interrupt
from model.training.progress import Progress
from model.training.reporter import Reporter
from model.training.schedule import early_end, learning_rate
from model.training.selection import Scored, candidates, choose
from model.training.settings import TrainingSettings
from model.training.state import Position, SavedState, weights_sha256
from model.training.subword_dropout import EpochCorpus
from model.training.validation import Validator, validation_threads
from model.training.window import Window
from model.transformer import Transformer
from runtime.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

Pairs = Sequence[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """What a training came to. chosen: which weights were written (model.training.selection), and
    averaged: of how many saves they are the mean. valid_loss: nats a target token; valid_bleu,
    valid_bleu_lc: of greedy translations. seconds: across resumes."""

    path: Path
    sha256: str
    updates: int
    chosen: str
    averaged: int
    valid_loss: float
    valid_bleu: float
    valid_bleu_lc: float
    seconds: float


class Run:
    """One training under way."""

    def __init__(
        self,
        train_pairs: Pairs,
        valid_pairs: Pairs,
        settings: TrainingSettings,
        out_dir: Path,
        corpus: str,
        saved: SavedState | None,
        *,
        quiet: bool,
        ranks: Ranks,
        tensorboard: bool,
        about: Mapping[str, Any],
    ) -> None:
        self.started, self.ranks, self.about = time.monotonic(), ranks, about
        self.settings, self.out_dir, self.corpus = settings, out_dir, corpus
        if saved is not None:
            self.tokenizer = Tokenizer(saved.tokenizer_proto)
        else:
            trained = train_tokenizer(train_pairs, settings.pieces) if ranks.first else b""
            self.tokenizer = Tokenizer(ranks.share_bytes(trained))
        self.config = settings.model_config(self.tokenizer.size)
        self.epochs = EpochCorpus.encode(
            train_pairs, self.tokenizer, self.config, p=settings.bpe_dropout, seed=settings.seed
        )
        self.train_corpus, self.num_batches = self.epochs.plain, 1
        valid_corpus = encode_corpus(valid_pairs, self.tokenizer, self.config, "validation")
        self.validator = Validator(
            valid_pairs,
            valid_corpus,
            self.tokenizer,
            lines=settings.valid_lines,
            batch_tokens=settings.batch_tokens,
            threads=validation_threads(ranks),
        )
        self.samples = Samples.take(train_pairs, valid_pairs)
        self.bf16 = settings.precision == "bf16" or (
            settings.precision == "auto" and has_fast_bf16(ranks.device)
        )
        torch.manual_seed(settings.seed)
        self.model = Transformer(self.config).to(ranks.device)
        self.optimizer = torch.optim.Adam(
            self.model.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=True
        )
        self.position = Position()
        self.last_save = 0
        if saved is not None:
            self.position, self.last_save = saved.position, saved.position.updates
            saved.restore(self.model, self.optimizer)
        self.workers = GradientWorkers(settings.accumulation, ranks)
        self.progress = Progress(
            max_updates=self.max_updates,
            done=self.position.updates,
            quiet=quiet or not ranks.first,
        )
        self.watch = Watch(
            self.model,
            self.optimizer,
            settings,
            bf16=self.bf16,
            pairs=train_pairs,
            valid_corpus=valid_corpus,
            guessing_nll=unigram_entropy(self.epochs.of_epoch(0, self.config)),
            ranks=ranks,
            say=self.progress.warn,
        )
        _log.info(
            "training %s: %s weights, %d pieces, %d pairs, %s, seed %d",
            settings.preset,
            f"{sum(p.numel() for p in self.model.parameters()):,}",
            self.tokenizer.size,
            len(self.train_corpus),
            "bf16" if self.bf16 else "fp32",
            settings.seed,
        )
        history = None
        if ranks.first:
            if saved is None:  # not before all that can be wrong with settings and corpora
                states.remove_state(out_dir)
            history = History(out_dir, updates=self.last_save, tensorboard=tensorboard)
        self.reporter = Reporter(self.progress, history, saved.window if saved else Window())

    def close(self) -> None:
        """The bar, the curves and the threads."""
        self.reporter.close()
        self.workers.close()

    @property
    def max_updates(self) -> int:
        """Those of the settings, or fewer where patience ended."""
        ends_at = self.position.ends_at if self.settings.patience else None
        return min(self.settings.max_updates, ends_at or self.settings.max_updates)

    @property
    def seconds(self) -> float:
        """Spent on this training, across resumes."""
        return self.position.seconds + time.monotonic() - self.started

    def _look_at_the_clock(self) -> None:
        """Sets how much is done, 0 to 1: by updates or by minutes, whichever is further."""
        self.share_done = self.position.updates / self.max_updates
        if self.settings.max_minutes is not None:
            by_time = self.ranks.share(self.seconds / (60 * self.settings.max_minutes))
            self.share_done = max(self.share_done, by_time)

    def train(self) -> None:
        """Updates until enough of them, or minutes, are done.

        Ctrl-C ends it after an update, which is saved, with KeyboardInterrupt; pressed twice, at
        once.
        """
        with catch_interrupt(quiet=not self.ranks.first) as self.interrupt:
            self._train()

    def _train(self) -> None:
        self.model.train()
        self.watch.begin(self.epochs.plain, self.tokenizer)
        self._look_at_the_clock()
        while self.share_done < 1:
            self.train_corpus = self.epochs.of_epoch(self.position.epoch, self.config)
            batches = self.train_corpus.batches(
                self.settings.batch_tokens, self.settings.seed, self.position.epoch
            )
            self.num_batches = len(batches)
            while self.position.batch < len(batches) and self.share_done < 1:
                first = self.position.batch
                group = batches[first : first + self.settings.accumulation]
                self._update(group)
                self.position.batch += len(group)
                self._after_update()
                self._end_if_asked()
            if self.position.batch >= len(batches):
                self.position.epoch, self.position.batch = self.position.epoch + 1, 0

    def finish(self) -> TrainingResult:
        """Chooses among the weights that were kept (model.training.selection), and writes them."""
        self._record()
        if self.ranks.share(self.position.snapshots[-1:] != [self.position.updates]):
            self._save()
        written = self.ranks.share(self._write_best() if self.ranks.first else {})
        return TrainingResult(path=self.out_dir, updates=self.position.updates, **written)

    def _write_best(self) -> dict[str, Any]:
        """On rank 0 -> the fields of a TrainingResult that came of it."""
        position, signature, scored = self.position, "", []
        found_candidates = candidates(position)
        for number, candidate in enumerate(found_candidates, start=1):
            score = candidate.score
            try:
                self._load(candidate.updates)
            except CheckpointError as error:
                if candidate.updates == (position.updates,):
                    raise
                self.progress.warn(f"{candidate.name}: left out, since {error}")
                continue
            if score is None:
                self.reporter.scoring(candidate.name, number, len(found_candidates))
                found = self.validator.validate(self.model)
                score, signature = found.score, found.signature
            scored.append(Scored(name=candidate.name, updates=candidate.updates, score=score))
        best = choose(scored)
        self._load(best.updates)
        told = {"chosen": best.name, "averaged": len(best.updates), **best.score.to_json()}
        sha256 = save_checkpoint(
            self.out_dir,
            model=self.model,
            tokenizer_proto=self.tokenizer.model_proto,
            samples=self.samples,
            metadata={
                **self.about,
                **told,
                "updates": position.updates,
                "epochs": position.epoch,
                "valid_lines": self.validator.num_lines,
                "valid_bleu_signature": signature,
                "candidates": [one.to_json() for one in scored],
                "corpus": self.corpus,
                "settings": self.settings.to_json(),
            },
        )
        self.reporter.ended(
            position,
            self.seconds,
            scored,
            best,
            num_lines=self.validator.num_lines,
            warmup=self.settings.warmup,
        )
        return {**told, "sha256": sha256, "seconds": self.seconds}

    def _load(self, updates: Sequence[int]) -> None:
        """The mean of the snapshots that were taken then."""
        load_weights(self.model, states.average_snapshots(self.out_dir, updates))

    def _update(self, group: Sequence[npt.NDArray[np.int64]]) -> None:
        """One optimizer step on the mean loss of all target tokens of some batches: group holds
        the rows of each."""
        begun = time.monotonic()
        settings, position, own = self.settings, self.position, self.ranks.own(len(group))
        tokens = sum(int(self.train_corpus.target.lengths[rows].sum()) for rows in group)
        update = Update(
            number=position.updates + 1,
            epoch=position.epoch,
            corpus=self.train_corpus,
            rows=[group[i] for i in own],
            batches=[make_batch(self.train_corpus, group[i], self.config) for i in own],
            seeds=[self._dropout_seed(index) for index in own],
            tokens=tokens,
            r_drop=settings.r_drop if self.share_done >= settings.r_drop_from else 0.0,
        )
        self.watch.check(update)
        nll = self.workers.compute(
            self.model,
            [batch.to(self.ranks.device) for batch in update.batches],
            update.seeds,
            tokens=tokens,
            count=len(group),
            smoothing=settings.label_smoothing,
            bf16=self.bf16,
            r_drop=update.r_drop,
        )
        norm = torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), settings.clip_norm or math.inf
        )
        rate = learning_rate(
            position.updates + 1,
            self.share_done,
            peak=settings.peak_learning_rate,
            warmup=settings.warmup,
            cooldown=settings.cooldown,
        )
        if not (math.isfinite(nll) and math.isfinite(norm)):
            raise self.watch.failed(update, nll=nll, norm=float(norm), rate=rate)
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.step()
        position.updates += 1
        self._look_at_the_clock()
        position.window_nll += nll * tokens
        position.window_tokens += tokens
        self.watch.done(update, nll=nll, norm=float(norm))
        seconds = time.monotonic() - begun
        self.reporter.updated(nll=nll, tokens=tokens, norm=float(norm), rate=rate, seconds=seconds)
        self.progress.update(position.updates, nll, tokens, self.share_done)

    def _dropout_seed(self, index: int) -> int:
        """Of one batch of the coming update."""
        key = [self.settings.seed, self.position.updates, index]
        return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1))

    def _after_update(self) -> None:
        updates, settings = self.position.updates, self.settings
        saves = updates % settings.save_every == 0
        if updates % stall.STALL_UPDATES == 0:
            self.watch.window(self.position)
        if saves or updates % RECORD_EVERY == 0:
            self._record()
        if updates % settings.validate_every == 0 and self.share_done < 1:
            self._validate()
        if saves:
            self._save()

    def _end_if_asked(self) -> None:
        """Where Ctrl-C was pressed, on whichever rank, all of them end after the same update."""
        if any(self.ranks.gather_flags(self.interrupt.asked)):
            if self.share_done >= 1:
                self._record()  # as `finish` does, which no longer knows how long its epoch was
            if self.last_save != self.position.updates:
                # At the end `finish` would take one, which the average of a later stage may need.
                self._save(snapshot=self.share_done >= 1)
            raise KeyboardInterrupt

    def _record(self) -> None:
        epoch = self.position.epoch + self.position.batch / self.num_batches
        self.reporter.record(self.position, self.seconds, epoch)

    def _validate(self) -> None:
        """On rank 0; all of them keep the best, and begin the cool-down where patience ends."""
        score = Score(**self.ranks.share(self._score() if self.ranks.first else {}))
        position, settings = self.position, self.settings
        best = Best(updates=position.updates, score=score)
        if position.best is not None:
            best = position.best.after(position.updates, score)
        if best.updates == position.updates and self.ranks.first:
            states.save_snapshot(self.out_dir, position.updates, self.model)
        position.best = best
        waits = position.ends_at is None and self.share_done < 1 - settings.cooldown
        if settings.patience and best.since >= settings.patience and waits:
            position.ends_at = early_end(position.updates, settings.cooldown)
            self.reporter.ends_early(best.since, self.max_updates)
            self._look_at_the_clock()

    def _score(self) -> dict[str, float]:
        """The fields of a Score, of the weights as they are."""
        found = self.validator.validate(self.model)
        self.reporter.validated(self.position, self.seconds, found)
        self.watch.validated(self.position.updates, found.score.loss)
        self.model.train()
        return dataclasses.asdict(found.score)

    def _save(self, *, snapshot: bool = True) -> None:
        """Positions are of whole updates, so what is saved here can be gone on from. snapshot: see
        save_state."""
        position = self.position
        position.seconds, self.started = self.seconds, time.monotonic()
        if self.ranks.size > 1:
            self.ranks.require_same("weights", weights_sha256(model_weights(self.model)))
        if self.ranks.first:
            self.reporter.flush()
            states.save_state(
                self.out_dir,
                settings=self.settings,
                corpus=self.corpus,
                position=position,
                tokenizer_proto=self.tokenizer.model_proto,
                model=self.model,
                optimizer=self.optimizer,
                window=self.reporter.window,
                snapshot=snapshot,
            )
        self.last_save = position.updates
