"""Training: teacher forcing with Adam, from pairs of lines to a checkpoint.

Vaswani et al. 2017, section 5, with batches by tokens, an optional cap on wall-clock time, and the
average of the last saves; in one stage or several, each of which goes on where the one before has
ended, with another schedule and loss. Everything that decides the next update is saved every
`save_every` updates (model.training.state): a training that is killed and resumed ends with the
very same weights, as long as updates bound it and not minutes.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from model.checkpoint import FILES, is_checkpoint
from model.errors import ConfigError
from model.training import state as states
from model.training.batching import corpus_sha256
from model.training.distributed import ALONE, Ranks
from model.training.memory import check_memory, memory_of
from model.training.place import hold
from model.training.run import Pairs, Run, TrainingResult
from model.training.settings import TrainingSettings, check_stages
from model.training.state import SavedState
from runtime.cores import check_threads

_log = logging.getLogger(__name__)


def train(
    train_pairs: Pairs,
    valid_pairs: Pairs,
    settings: TrainingSettings,
    out_dir: Path | str,
    *,
    then: Sequence[TrainingSettings] = (),
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    threads: int | None = None,
    ranks: Ranks = ALONE,
    tensorboard: bool = True,
    about: Mapping[str, Any] | None = None,
) -> TrainingResult:
    """Trains a model on (source, target) pairs and writes a checkpoint to out_dir.

    then: further stages, with these settings; each ends with a checkpoint of its own in out_dir.
    resume: goes on from what a killed training left there; starts anew if there is nothing.
    overwrite: starts anew whatever is there, which stays until the new one can begin. quiet: no
    progress bar. threads: PyTorch's, for the whole process; None leaves them alone. ranks: this
    process and those that train with it, on their devices (model.training.distributed.join_ranks);
    each is given the same, and makes the same update. tensorboard: curves in out_dir/tensorboard,
    where it is installed. about: more metadata for the checkpoint, such as search_defaults
    (model.search_defaults).
    Where the training can't begin, out_dir is left as it was, or not there.
    Raises OptionError (threads), ConfigError (settings, or something in the way), DataError
    (corpus), CheckpointError (files) and TrainingError (NaN, a loss that stands still, two
    trainings into one place).
    """
    out_dir, stages = Path(out_dir), (settings, *then)
    check_stages(stages)
    if resume and overwrite:
        raise ConfigError(
            "--resume goes on with the training that is there and --force replaces it; give one"
        )
    _check_name(out_dir)
    check_threads(threads)
    if threads is not None:
        torch.set_num_threads(threads)
    _check_ranks(ranks, settings)
    devices = [ranks.device] if ranks.device.type == "cuda" else []
    with (
        hold(out_dir) if ranks.first else contextlib.nullcontext() as place,
        torch.random.fork_rng(devices=devices),
    ):
        check_memory(settings.model_config(settings.pieces), memory_of(ranks.device))
        result = None
        corpus = corpus_sha256([*train_pairs, *valid_pairs])
        ranks.require_same("settings or corpora", f"{stages} {corpus}")
        saved = None
        if ranks.first:
            saved = _open_state(out_dir, stages, corpus, resume=resume, overwrite=overwrite)
        if ranks.share(saved is not None) and not ranks.first:
            saved = states.load_state(out_dir)
        for number in range(_stage_after(saved, stages), len(stages)):
            if len(stages) > 1:
                _log.info(
                    "stage %d of %d, up to update %d (the time left is told of this stage)",
                    number + 1,
                    len(stages),
                    stages[number].max_updates,
                )
            if result is not None:
                saved = states.load_state(out_dir)
            run = Run(
                train_pairs, valid_pairs, stages[number], out_dir, corpus, saved,
                quiet=quiet, ranks=ranks, tensorboard=tensorboard, about=about or {},
            )  # fmt: skip
            if place is not None:
                place.begun = True
            result = _train_to_its_end(run)
            del run  # and its model, before the next one's is made
    assert result is not None
    return result


def _train_to_its_end(run: Run) -> TrainingResult:
    with contextlib.closing(run):
        try:
            run.train()
        except KeyboardInterrupt:
            run.progress.say("stopped; --resume goes on after update %d", run.last_save)
            raise
        return run.finish()


def _stage_after(saved: SavedState | None, stages: Sequence[TrainingSettings]) -> int:
    """The number of the stage that the coming update belongs to; the last where all are done."""
    done = 0 if saved is None else saved.position.updates
    unfinished = (n for n, stage in enumerate(stages) if stage.max_updates > done)
    return next(unfinished, len(stages) - 1)


def _check_name(out_dir: Path) -> None:
    """Raises ConfigError for a name that safetensors could write to, but not read from."""
    try:
        str(out_dir).encode()
    except UnicodeEncodeError as error:
        name = ascii(str(out_dir))
        raise ConfigError(
            f"the name {name} is not UTF-8; give another --out, or if it is, set a UTF-8 locale "
            "(LANG=C.UTF-8)"
        ) from error


def _check_ranks(ranks: Ranks, settings: TrainingSettings) -> None:
    """Raises ConfigError if a process would have nothing to do."""
    if ranks.size > settings.accumulation:
        raise ConfigError(
            f"{ranks.size} processes share the batches of an update, and accumulation is "
            f"{settings.accumulation}; expected a batch for each: start fewer processes, or give "
            f"--accumulation {ranks.size} and batches of fewer tokens"
        )
    if settings.accumulation % ranks.size and ranks.first:
        _log.warning(
            "%d processes share %d batches an update, so some wait for the others; a multiple of "
            "%d for --accumulation keeps all busy",
            ranks.size,
            settings.accumulation,
            ranks.size,
        )


def _open_state(
    out_dir: Path, stages: Sequence[TrainingSettings], corpus: str, *, resume: bool, overwrite: bool
) -> SavedState | None:
    """The state to go on from, or None to start anew."""
    if overwrite:
        return None
    if not states.has_state(out_dir):
        if is_checkpoint(out_dir):
            raise ConfigError(
                f"{out_dir} holds a checkpoint already; give another --out, or replace it with "
                "--force"
            )
        taken = [name for name in FILES if (out_dir / name).exists()]
        if taken:  # a bundle has a manifest as well
            raise ConfigError(
                f"{out_dir} holds {', '.join(taken)} of something else, which a checkpoint would "
                "replace; give another --out, or --force"
            )
        if resume:
            _log.info("%s holds no training to go on with: a new one begins", out_dir)
        return None
    if not resume:
        raise ConfigError(
            f"{out_dir} holds a training already; go on with --resume, or start anew with --force"
        )
    saved = states.load_state(out_dir)
    done, number = saved.position.updates, _stage_after(saved, stages)
    settings = stages[number]
    ended = saved.settings.max_updates <= done < settings.max_updates
    if number > 0 and done != stages[number - 1].max_updates:
        ended = False  # it is in the midst of that stage, if it is a training of these
    different = settings.differences(saved.settings, ended=ended)
    if saved.corpus != corpus:
        different.append("the corpus: other lines")
    if different:
        raise ConfigError(
            f"the training in {out_dir} cannot go on with other settings ({'; '.join(different)}); "
            "resume with the same ones, or start anew with --force"
        )
    _log.info("going on after update %d", done)
    changes = settings.changes(saved.settings)
    if changes:
        _log.info("with other settings: %s", "; ".join(changes.values()))
    return saved
