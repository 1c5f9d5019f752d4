"""A phrase corpus as a directory: text files, one phrase a line, and `corpus.json`.

train.src  train.tgt  train.families     the same line of each is one phrase
valid.*  calibration.*  test.*
corpus.json                              parameters, versions, counts, a SHA-256 for each file
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from model.corpora.phrases import GENERATOR, SPLITS, Parameters, Phrase, PhraseCorpus, Split
from model.errors import DataError
from runtime.directory import recover, replace_directory
from runtime.errors import OptionError

FORMAT = "leanseq-phrases-1"
RECORD = "corpus.json"

_FIELDS = {"src": "source", "tgt": "target", "families": "family"}


def write(corpus: PhraseCorpus, directory: str | os.PathLike[str]) -> Path:
    """Write a corpus, all of it or nothing; an older corpus there is replaced. Gives the directory.

    The bytes depend on the corpus alone. Raises DataError where the directory holds something else
    than a corpus, or more than that, or cannot be written; `runtime.directory` adds its own for a
    directory that another process is writing.
    """
    final = Path(directory)
    if final.exists():
        _check_replaceable(final)
    try:
        with replace_directory(final) as folder:
            _write_files(corpus, folder)
    except OSError as error:
        raise DataError(
            f"the corpus cannot be written to {final} ({error.strerror}); expected a directory "
            "that can be made and written to, with room left"
        ) from error
    return final


def load(directory: str | os.PathLike[str]) -> PhraseCorpus:
    """Read a corpus and check it against its hashes.

    Raises DataError where it is missing, of another format, incomplete or altered.
    """
    folder = Path(directory)
    record = _read_record(folder)
    try:
        parameters = Parameters(**record["parameters"])
        versions = {str(name): str(version) for name, version in record["versions"].items()}
        hashes = dict(record["sha256"])
    except (KeyError, TypeError, AttributeError, ValueError, OptionError) as error:
        raise DataError(
            f"{folder / RECORD} is not a whole record of a corpus ({error!r}); make it again"
        ) from error
    splits: dict[Split, list[Phrase]] = {}
    for split in SPLITS:
        columns = [_read_column(folder, f"{split}.{ending}", hashes) for ending in _FIELDS]
        if {len(column) for column in columns} != {parameters.size(split)}:
            raise DataError(
                f"{folder}: the {split} split has {'/'.join(str(len(c)) for c in columns)} lines; "
                f"expected {parameters.size(split)}: make it again"
            )
        splits[split] = [
            Phrase(source=source, target=target, family=family)
            for source, target, family in zip(*columns, strict=True)
        ]
    return PhraseCorpus(parameters=parameters, splits=splits, versions=versions)


def is_current(directory: str | os.PathLike[str], parameters: Parameters) -> bool:
    """Whether `make` with these parameters would give the very corpus that `directory` holds.

    False for a directory that is missing or holds anything else. Files are not read: `load` does.
    """
    try:
        record = _read_record(Path(directory))
    except DataError:
        return False
    return all(record.get(key) == value for key, value in _origin(parameters).items())


def _origin(parameters: Parameters, versions: dict[str, str] | None = None) -> dict[str, Any]:
    """What decides a corpus, as the record states it."""
    if versions is None:
        versions = dict(PhraseCorpus(parameters=parameters, splits={}).versions)
    return {
        "format": FORMAT,
        "generator": GENERATOR,
        "parameters": dataclasses.asdict(parameters),
        "versions": versions,
    }


def _write_files(corpus: PhraseCorpus, folder: Path) -> None:
    hashes = {}
    for split in SPLITS:
        for ending, attribute in _FIELDS.items():
            lines = [getattr(phrase, attribute) for phrase in corpus.splits[split]]
            data = "".join(f"{line}\n" for line in lines).encode()
            (folder / f"{split}.{ending}").write_bytes(data)
            hashes[f"{split}.{ending}"] = hashlib.sha256(data).hexdigest()
    record = {
        **_origin(corpus.parameters, dict(corpus.versions)),
        "families": {split: corpus.family_counts(split) for split in SPLITS},
        "sha256": hashes,
    }
    text = json.dumps(record, indent=2, sort_keys=True, ensure_ascii=False)
    (folder / RECORD).write_text(text + "\n", encoding="utf-8")


def _check_replaceable(folder: Path) -> None:
    """Raises DataError unless all that is there is of a corpus."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else {folder.name}
    ours = {RECORD, *(f"{split}.{ending}" for split in SPLITS for ending in _FIELDS)}
    if RECORD in names and names - ours:
        raise DataError(
            f"{folder} holds {min(names - ours)} beside a corpus, and would be replaced as a "
            "whole; move that away, or name another directory"
        )
    if not folder.is_dir() or (names and RECORD not in names):
        raise DataError(
            f"{folder} exists and is no phrase corpus; expected a new or empty directory, or a "
            "corpus to replace: name another one"
        )


def _read_record(folder: Path) -> dict[str, Any]:
    recover(folder)
    path = folder / RECORD
    try:
        record = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(
            f"{folder} holds no phrase corpus: {RECORD} cannot be read ({error.strerror}); make it"
        ) from error
    except ValueError as error:
        raise DataError(f"{path} is not JSON ({error}); make the corpus again") from error
    found = record.get("format") if isinstance(record, dict) else None
    if found != FORMAT:
        raise DataError(f"{path} has format {found!r}; expected {FORMAT!r}: make the corpus again")
    return dict(record)


def _read_column(folder: Path, name: str, hashes: dict[str, Any]) -> list[str]:
    path = folder / name
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}); make the corpus again"
        ) from error
    found = hashlib.sha256(data).hexdigest()
    if found != hashes.get(name):
        raise DataError(
            f"{path} was altered: its SHA-256 is {found[:12]}, expected "
            f"{str(hashes.get(name))[:12]}; make the corpus again"
        )
    return data.decode().removesuffix("\n").split("\n")
