"""Errors of calibration/, below the one root that the command line knows.

LeanseqError
└── CalibrationError       sentences, graphs or ranges that no INT8 graph can be made from
"""

from __future__ import annotations

from runtime.errors import LeanseqError


class CalibrationError(LeanseqError):
    """Sentences, graphs or ranges that no INT8 graph can be made from."""
