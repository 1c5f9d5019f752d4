"""One training under way: its model, optimizer, position and what it shows.

`model.training.train` opens one and drives it; everything that decides the next update is in what
`Run` saves (model.training_state).
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from model import training_state as states
from model.batching import EncodedCorpus, encode_corpus, make_batch
from model.checkpoint import load_weights, save_checkpoint
from model.devices import has_fast_bf16
from model.diagnosis import stall
from model.diagnosis.watch import Update, Watch
from model.distributed import Ranks
from model.gradients import GradientWorkers
from model.progress import Progress
from model.samples import Samples
from model.schedule import learning_rate
from model.settings import TrainingSettings
from model.subword_dropout import EpochCorpus
from model.tokenizer_training import train_tokenizer
from model.training_state import Position, SavedState
from model.transformer import Transformer
from model.validation import translate_samples, validation_loss
from runtime.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

Pairs = Sequence[tuple[str, str]]
NUM_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """What a training came to. valid_loss: nats a target token. seconds: across resumes."""

    path: Path
    sha256: str
    updates: int
    valid_loss: float
    averaged: int
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
    ) -> None:
        self.started, self.ranks = time.monotonic(), ranks
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
        self.train_corpus = self.epochs.plain
        self.valid_corpus = encode_corpus(valid_pairs, self.tokenizer, self.config, "validation")
        self.samples = Samples.take(train_pairs, valid_pairs)
        self.shown = valid_pairs[:: max(1, len(valid_pairs) // NUM_SHOWN)][:NUM_SHOWN]
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
            max_updates=settings.max_updates,
            done=self.position.updates,
            quiet=quiet or not ranks.first,
        )
        self.watch = Watch(
            self.model,
            self.optimizer,
            settings,
            bf16=self.bf16,
            pairs=train_pairs,
            valid_corpus=self.valid_corpus,
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

    @property
    def seconds(self) -> float:
        """Spent on this training, across resumes."""
        return self.position.seconds + time.monotonic() - self.started

    def _look_at_the_clock(self) -> None:
        """Sets how much is done, 0 to 1: by updates or by minutes, whichever is further."""
        self.share_done = self.position.updates / self.settings.max_updates
        if self.settings.max_minutes is not None:
            by_time = self.ranks.share(self.seconds / (60 * self.settings.max_minutes))
            self.share_done = max(self.share_done, by_time)

    def train(self) -> None:
        """Updates until enough of them, or minutes, are done."""
        self.model.train()
        self.watch.begin(self.epochs.plain, self.tokenizer)
        self._look_at_the_clock()
        while self.share_done < 1:
            self.train_corpus = self.epochs.of_epoch(self.position.epoch, self.config)
            batches = self.train_corpus.batches(
                self.settings.batch_tokens, self.settings.seed, self.position.epoch
            )
            while self.position.batch < len(batches) and self.share_done < 1:
                first = self.position.batch
                group = batches[first : first + self.settings.accumulation]
                self._update(group)
                self.position.batch += len(group)
                self._after_update()
            if self.position.batch >= len(batches):
                self.position.epoch, self.position.batch = self.position.epoch + 1, 0

    def finish(self) -> TrainingResult:
        """Takes the better of the last weights and the average of the last saves; writes them."""
        if self.ranks.share(self.position.snapshots[-1:] != [self.position.updates]):
            self._save()
        sha256, valid_loss, averaged, seconds = self.ranks.share(
            self._write_better() if self.ranks.first else []
        )
        return TrainingResult(
            path=self.out_dir,
            sha256=sha256,
            updates=self.position.updates,
            valid_loss=valid_loss,
            averaged=averaged,
            seconds=seconds,
        )

    def _write_better(self) -> list[Any]:
        """On rank 0 -> the checkpoint's sha256, its loss, of how many saves, seconds in all."""
        last_loss = best_loss = self._validation_loss()
        snapshots, averaged = self.position.snapshots, 1
        if len(snapshots) > 1:
            load_weights(self.model, states.average_snapshots(self.out_dir, snapshots))
            best_loss, averaged = self._validation_loss(), len(snapshots)
            if best_loss >= last_loss:
                load_weights(self.model, states.average_snapshots(self.out_dir, snapshots[-1:]))
                best_loss, averaged = last_loss, 1
        sha256 = save_checkpoint(
            self.out_dir,
            model=self.model,
            tokenizer_proto=self.tokenizer.model_proto,
            samples=self.samples,
            metadata={
                "updates": self.position.updates,
                "epochs": self.position.epoch,
                "valid_loss": round(best_loss, 6),
                "averaged": averaged,
                "corpus": self.corpus,
                "settings": self.settings.to_json(),
            },
        )
        self.progress.say(
            "training done: %d updates, %d epochs, %.1f minutes, validation loss %.4f (%s)",
            self.position.updates,
            self.position.epoch,
            self.seconds / 60,
            best_loss,
            f"average of the last {averaged} saves" if averaged > 1 else "last weights",
        )
        if self.position.updates < self.settings.warmup:
            _log.warning(
                "the training ended in its warm-up, after %d of %d updates, so it learned little; "
                "give it more time, or a smaller --warmup and --batch-tokens",
                self.position.updates,
                self.settings.warmup,
            )
        return [sha256, best_loss, averaged, self.seconds]

    def _update(self, group: Sequence[npt.NDArray[np.int64]]) -> None:
        """One optimizer step on the mean loss of all target tokens of some batches: group holds
        the rows of each."""
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
        self.progress.update(position.updates, nll, tokens, self.share_done)

    def _dropout_seed(self, index: int) -> int:
        """Of one batch of the coming update."""
        key = [self.settings.seed, self.position.updates, index]
        return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1))

    def _after_update(self) -> None:
        updates, done = self.position.updates, self.share_done >= 1
        if updates % stall.STALL_UPDATES == 0:
            self.watch.window(self.position)
        if updates % self.settings.validate_every == 0 and not done and self.ranks.first:
            self._validate()
        if updates % self.settings.save_every == 0:
            self._save()

    def _validate(self) -> None:
        loss = self._validation_loss()
        self.progress.say(
            "update %d, epoch %d: validation loss %.4f (perplexity %.2f)",
            self.position.updates,
            self.position.epoch + 1,
            loss,
            math.exp(min(loss, 50.0)),
        )
        for sample in translate_samples(self.model, self.tokenizer, self.shown):
            right = sample.translation == sample.reference
            expected = "" if right else f"   (expected: {sample.reference})"
            self.progress.say("  %s => %s%s", sample.source, sample.translation, expected)
        self.watch.validated(self.position.updates, loss)
        self.model.train()

    def _validation_loss(self) -> float:
        return validation_loss(self.model, self.valid_corpus, self.settings.batch_tokens)

    def _save(self) -> None:
        """Positions are of whole updates, so what is saved here can be gone on from."""
        position = self.position
        position.seconds, self.started = self.seconds, time.monotonic()
        if self.ranks.size > 1:
            self.ranks.require_same("weights", weights_sha256(self.model))
        if self.ranks.first:
            states.save_state(
                self.out_dir,
                settings=self.settings,
                corpus=self.corpus,
                position=position,
                tokenizer_proto=self.tokenizer.model_proto,
                model=self.model,
                optimizer=self.optimizer,
            )
        self.last_save = position.updates


def weights_sha256(model: Transformer) -> str:
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def unigram_entropy(corpus: EncodedCorpus) -> float:
    """What a target token costs, in nats, if only the frequency of each piece is known."""
    counts = np.bincount(corpus.target.ids)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())
