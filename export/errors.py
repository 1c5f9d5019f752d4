"""Errors of export/, below the one root that the command line knows.

LeanseqError
└── ExportError            a graph that cannot be made, or is not what it must be
    └── ParityError        a backend that does not compute what the reference computes
"""

from __future__ import annotations

from runtime.errors import LeanseqError


class ExportError(LeanseqError):
    """A graph that cannot be made, or is not what the contract says."""


class ParityError(ExportError):
    """A backend that does not compute what the reference computes."""
