"""ONNX files: read, written and hashed with their external data, and no traceback for a bad one."""

from __future__ import annotations

import hashlib
from pathlib import Path

import onnx
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from calibration.errors import CalibrationError

# Protobuf ends at 2 GiB; beyond this the weights go to a file of their own, as in export.
MAX_INLINE_BYTES = 3 * 2**29
EXTERNAL_FROM_BYTES = 1024


def load_graph(path: Path, *, weights: bool = True) -> onnx.ModelProto:
    """The parsed graph; with weights=False external data stays where it is.

    Raises CalibrationError when the file is missing or is not ONNX.
    """
    try:
        return onnx.load(path, load_external_data=weights)
    except OSError as error:
        raise CalibrationError(
            f"{path} can't be read ({error.strerror or error}); expected an ONNX graph made by "
            "`python -m export build`"
        ) from error
    except Exception as error:  # protobuf's DecodeError, and onnx's own for external data
        raise CalibrationError(
            f"{path} is not a whole ONNX graph ({error}); build it again with "
            "`python -m export build`"
        ) from error


def save_graph(model: onnx.ModelProto, path: Path) -> None:
    """Writes the same bytes for the same graph; large weights go to `PATH.data` beside it."""
    if model.ByteSize() <= MAX_INLINE_BYTES:
        path.write_bytes(model.SerializeToString(deterministic=True))
        return
    location = f"{path.name}.data"
    path.with_name(location).unlink(missing_ok=True)  # onnx would append to it
    onnx.save_model(
        model,
        path,
        save_as_external_data=True,
        location=location,
        size_threshold=EXTERNAL_FROM_BYTES,
    )


def graph_sha256(path: Path) -> str:
    """SHA-256 over the file and its external data. Raises CalibrationError as load_graph does."""
    digest = hashlib.sha256()
    initializers = load_graph(path, weights=False).graph.initializer
    external = {ExternalDataInfo(t).location for t in initializers if uses_external_data(t)}
    for part in [path, *(path.with_name(name) for name in sorted(external))]:
        with part.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
