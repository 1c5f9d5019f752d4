"""What a build starts from: a checkpoint, sentences to calibrate on, lines to measure with.

Given a checkpoint, all three come from it or from files the user names. Given none, the embedded
corpus is made and the demo model trained on it, and both are kept for the next time.
"""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import TestSet
from model.checkpoint import Checkpoint, is_checkpoint, load_checkpoint
from model.corpora import phrase_files
from model.corpora.files import read_lines
from model.corpora.phrases import Parameters, PhraseCorpus, Target, make
from model.errors import CheckpointError, ConfigError, DataError
from model.training.batching import corpus_sha256
from model.training.settings import TrainingSettings, demo_settings
from model.training.state import has_state
from model.training.train import train
from runtime.directory import recover
from runtime.errors import OptionError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Sources:
    """test_set: what parity is checked with, and what is measured."""

    checkpoint: Checkpoint
    checkpoint_path: Path
    calibration_lines: tuple[str, ...]
    test_set: TestSet


@dataclass(frozen=True, kw_only=True)
class GivenFiles:
    """Files the user named instead of what a checkpoint or the embedded corpus brings."""

    calibration_src: Path | None = None
    src: Path | None = None
    ref: Path | None = None

    def calibration_lines(self) -> tuple[str, ...] | None:
        return None if self.calibration_src is None else tuple(read_lines(self.calibration_src))

    def test_set(self) -> TestSet | None:
        """Raises DataError where one of the two files is missing or they are not aligned."""
        if self.src is None or self.ref is None:
            return None
        return TestSet(
            lines=read_lines(self.src), references=read_lines(self.ref), name=self.src.name
        )


def from_checkpoint(path: Path, files: GivenFiles) -> Sources:
    """A checkpoint of the user's own, with the sentences that it carries where no file is named.

    Raises CheckpointError or DataError for what can't be read, OptionError where it carries no
    sentences and no files are named.
    """
    checkpoint = load_checkpoint(path)
    samples, test_set = checkpoint.samples, files.test_set()
    lines = files.calibration_lines()
    if lines is None:
        lines = () if samples is None else samples.calibration
    if test_set is None and samples is not None and samples.valid:
        sources, targets = zip(*samples.valid, strict=True)
        test_set = TestSet(
            lines=sources, references=targets, name="validation pairs of the checkpoint"
        )
    if test_set is None:
        raise OptionError(
            f"{path} carries no sentences to check parity with; name some with --src and --ref"
        )
    return Sources(
        checkpoint=checkpoint, checkpoint_path=path, calibration_lines=lines, test_set=test_set
    )


def from_embedded_corpus(
    work_dir: Path, target: Target, files: GivenFiles, *, max_minutes: float | None, force: bool
) -> Sources:
    """The demo: corpus and checkpoint in WORK_DIR, made where they are not there yet.

    A training that was killed goes on. Raises OptionError where WORK_DIR/checkpoint is another
    training's, and what the corpus and the training raise.
    """
    _check_is_the_demos(work_dir)
    settings = demo_settings()
    if max_minutes is not None:
        settings = dataclasses.replace(settings, max_minutes=max_minutes)
    corpus = _corpus(work_dir / "corpus", Parameters(target=target))
    path = work_dir / "checkpoint"
    checkpoint = None if force else _reusable(path, settings, corpus)
    if checkpoint is None:
        checkpoint = _train(path, settings, corpus, force=force)
    else:
        logger.info("checkpoint: %s is there and fits the corpus, reused", path)
    calibration = tuple(phrase.source for phrase in corpus.splits["calibration"])
    test = corpus.splits["test"]
    own = TestSet(
        lines=[phrase.source for phrase in test],
        references=[phrase.target for phrase in test],
        families=[phrase.family for phrase in test],
        target_language=target,
        name=f"embedded test phrases, en-{target}",
    )
    return Sources(
        checkpoint=checkpoint,
        checkpoint_path=path,
        calibration_lines=files.calibration_lines() or calibration,
        test_set=files.test_set() or own,
    )


def _check_is_the_demos(work_dir: Path) -> None:
    """The demo's checkpoint always stands beside its corpus, and may be trained anew; a checkpoint
    without one is the user's own."""
    path, corpus = work_dir / "checkpoint", work_dir / "corpus"
    recover(corpus)  # a kill may have left it aside
    if (is_checkpoint(path) or has_state(path)) and not corpus.exists():
        raise OptionError(
            f"{path} is not the demo's, since {corpus} is missing; build from it with "
            "--checkpoint, or name another --work-dir for the demo"
        )


def _corpus(directory: Path, parameters: Parameters) -> PhraseCorpus:
    if phrase_files.is_current(directory, parameters):
        try:
            corpus = phrase_files.load(directory)
        except DataError as error:
            logger.warning("corpus: %s; making it again", error)
        else:
            logger.info("corpus: %s is there, reused", directory)
            return corpus
    logger.info("corpus: making %d phrase pairs, en-%s", parameters.pairs, parameters.target)
    corpus = make(**dataclasses.asdict(parameters))
    phrase_files.write(corpus, directory)
    return corpus


def _reusable(path: Path, settings: TrainingSettings, corpus: PhraseCorpus) -> Checkpoint | None:
    """The checkpoint in `path`, if it came from these settings and this corpus."""
    if not is_checkpoint(path):
        return None
    try:
        checkpoint = load_checkpoint(path)
    except CheckpointError as error:
        logger.warning("checkpoint: %s", error)
        return None
    made_of = (checkpoint.metadata.get("settings"), checkpoint.metadata.get("corpus"))
    expected = (settings.to_json(), _sha256(corpus))
    if made_of == expected:
        return checkpoint
    logger.info("checkpoint: %s was made from another corpus or other settings", path)
    return None


def _train(
    path: Path, settings: TrainingSettings, corpus: PhraseCorpus, *, force: bool
) -> Checkpoint:
    logger.info(
        "checkpoint: none at hand that fits; training the %s preset into %s, at most %g minutes",
        settings.preset,
        path,
        settings.max_minutes,
    )
    pairs = corpus.pairs("train"), corpus.pairs("valid")
    try:
        train(*pairs, settings, path, resume=not force, overwrite=force)
    except (ConfigError, CheckpointError) as error:
        if force:
            raise
        logger.info("checkpoint: starting anew, since %s", error)
        train(*pairs, settings, path, overwrite=True)
    return load_checkpoint(path)


def _sha256(corpus: PhraseCorpus) -> str:
    return corpus_sha256([*corpus.pairs("train"), *corpus.pairs("valid")])
