"""Every error a user can meet, as one tree.

    LeanseqError                      exit code 1
    ├── OptionError                   exit code 2: an option or argument that cannot be used
    ├── MissingExtraError             a package of an optional extra is not installed
    ├── TextError                     a tokenizer or text that cannot be used
    ├── BundleError                   a bundle that cannot be read or written
    ├── WriteError                    an output that cannot be written, such as on a full disk
    └── BackendError                  a backend that cannot run here
        ├── UnavailableError          this machine lacks what the backend needs
        ├── EngineError               a TensorRT engine that can't be built, found or used here
        │   └── ProofError            an engine that is not compiled as its graph says
        ├── DeviceMemoryError         the device has no memory left for it
        └── SplitBatchError           the sentences of a batch that must go apart

`model`, `export` and `calibration` hang their own roots below LeanseqError. Each message says what
was found, what was expected and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from runtime.extras import install_command


class LeanseqError(Exception):
    """Root of every error raised on purpose. `exit_code` is what the command line exits with."""

    exit_code = 1


class OptionError(LeanseqError, ValueError):
    """An option value, or a combination of options, that cannot be used."""

    exit_code = 2


class MissingExtraError(LeanseqError, ImportError):
    """A package of an optional extra is missing; the message names the extra."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package}, which is not installed; "
            f"install it with: {install_command(extra)}"
        )
        self.package = package
        self.extra = extra


class TextError(LeanseqError):
    """A tokenizer model or an input text that cannot be used."""


class BundleError(LeanseqError):
    """A bundle that is missing, damaged, altered, locked or of another version."""


class WriteError(LeanseqError):
    """A file or stream that cannot be written; of what was to be replaced the old is left."""


class BackendError(LeanseqError):
    """A backend that cannot run here, or that failed while running."""


class EngineError(BackendError):
    """A TensorRT engine that can't be built, is damaged, or was built for something else."""


class ProofError(EngineError):
    """An engine in which a MatMul that should be INT8 is not."""


class DeviceMemoryError(BackendError):
    """A device has no memory left for what was asked."""


class SplitBatchError(BackendError):
    """`Backend.begin` can't take these sentences together. `search` splits them and goes on.

    groups: places in the batch, 0..B-1, each once: what to begin together.
    """

    def __init__(self, groups: list[list[int]], reason: str) -> None:
        largest = max(len(group) for group in groups)
        super().__init__(f"{reason}; begin with {largest} of them or fewer")
        self.groups = groups


class UnavailableError(BackendError):
    """This machine lacks what a backend needs. `short` says what, in a few words, for a list."""

    def __init__(self, message: str, *, short: str) -> None:
        super().__init__(message)
        self.short = short


def nearest_hint(found: str, known: Sequence[str], prefix: str = "") -> str:
    """What an unknown name may have been meant to be: the nearest known one, or all of them."""
    near = difflib.get_close_matches(found, known, n=1)
    return f"did you mean {prefix}{near[0]!r}?" if near else f"known: {', '.join(known)}"
