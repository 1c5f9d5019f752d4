"""A small training as a user types it."""

from __future__ import annotations

from pathlib import Path

from model.corpora import phrases
from model.training.settings import TrainingSettings

Pairs = list[tuple[str, str]]


def small_corpus(train: int = 1500, valid: int = 20) -> tuple[Pairs, Pairs]:
    """Phrases to train on and to validate with."""
    corpus = phrases.make("de", 1500, valid=50, calibration=50, test=50)
    return corpus.pairs("train")[:train], corpus.pairs("valid")[:valid]


def train_arguments(
    corpus: tuple[Pairs, Pairs], settings: TrainingSettings, folder: Path, out: Path
) -> list[str]:
    """What follows `python -m model` or `torchrun ... -m model`; the corpus goes into files of
    `folder`."""
    arguments = ["train", "--out", str(out)]
    for split, pairs in zip(("train", "valid"), corpus, strict=True):
        path = folder / f"{split}.tsv"
        text = "".join(f"{source}\t{target}\n" for source, target in pairs)
        path.write_text(text, encoding="utf-8")
        arguments += [f"--{split}-tsv", str(path)]
    for name, value in settings.to_json().items():
        if value is not None:
            arguments += [f"--{name.replace('_', '-')}", str(value)]
    return arguments
