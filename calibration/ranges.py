"""Activation ranges as a file: what was measured, how, on what, for which graphs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from calibration.errors import CalibrationError
from runtime.directory import write_text_atomically
from runtime.manifest import Role
from runtime.numbers import is_finite

FORMAT = "leanseq-ranges"
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Ranges:
    """Clipping bounds of activations, ready to become scales.

    bounds: role -> tensor -> the bound of |x|. graphs: role -> SHA-256 of the float graph they were
    measured on. sources_sha256: of the token ids that were decoded. search: the search options.
    """

    method: str  # minmax | percentile | mse
    percentile: float | None  # in percent; None for the other methods
    sentences: int
    sources_sha256: str
    search: Mapping[str, Any]
    graphs: Mapping[Role, str]
    bounds: Mapping[Role, Mapping[str, float]]

    def bound(self, role: Role, tensor: str) -> float:
        """Raises CalibrationError when the tensor was not measured."""
        try:
            return self.bounds[role][tensor]
        except KeyError:
            raise CalibrationError(
                f"the ranges hold no bound for tensor {tensor!r} of the {role} graph (they have "
                f"{len(self.bounds.get(role, {}))}); calibrate again on this graph"
            ) from None

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """Raises CalibrationError for another format or version, or a damaged field."""
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise CalibrationError(
                "this is not a ranges file; expected one made by `python -m calibration run`"
            )
        if values.get("version") != VERSION:
            raise CalibrationError(
                f"the ranges have version {values.get('version')!r}; this leanseq reads {VERSION}: "
                "calibrate again"
            )
        try:
            ranges = cls(**{name: values[name] for name in cls.__dataclass_fields__})
            bounds = [bound for role in ranges.bounds.values() for bound in role.values()]
            valid = bool(bounds) and all(is_finite(b) and b >= 0 for b in bounds)
        except (KeyError, TypeError, AttributeError) as error:
            raise CalibrationError(
                f"the ranges lack a field or have a malformed one ({error}); calibrate again"
            ) from error
        if not valid:
            raise CalibrationError(
                "the ranges hold a bound that is negative or no finite number, or no bound at all; "
                "calibrate again"
            )
        return ranges

    def to_text(self) -> str:
        """The file's content: the same text for the same ranges."""
        return json.dumps(self.to_json(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"

    def save(self, path: Path) -> None:
        """Writes to_text(); the old file stays until the new one is whole. Raises WriteError."""
        write_text_atomically(path, self.to_text())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Raises CalibrationError when the file can't be read or is not a ranges file."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CalibrationError(
                f"{path} can't be read ({error}); expected a file made by "
                "`python -m calibration run`"
            ) from error
        return cls.from_json(values)
