"""Errors of model/, below the one root that the command line knows.

LeanseqError
└── ModelError
    ├── ConfigError        a model shape or training setting that cannot be used
    ├── DataError          a corpus that cannot be read or used
    ├── CheckpointError    a checkpoint that is missing, damaged, altered or of another version
    ├── TrainingError      training that went wrong: NaN, a loss that stands still
    └── OutputError        a picture or page that cannot be written
"""

from __future__ import annotations

from runtime.errors import LeanseqError


class ModelError(LeanseqError):
    """Root of the errors of model/."""


class ConfigError(ModelError, ValueError):
    """A model shape or training setting that cannot be used."""

    exit_code = 2


class DataError(ModelError):
    """A corpus that cannot be read or used."""


class CheckpointError(ModelError):
    """A checkpoint that is missing, damaged, altered or of another version."""


class TrainingError(ModelError):
    """Training that went wrong; the message says what it probably is."""


class OutputError(ModelError):
    """A picture or page that cannot be written."""
