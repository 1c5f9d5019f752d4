"""Heat maps by the name of the file: .html a page, .png an image."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path

from model.errors import OutputError
from model.interpretation.heatmap import Heatmap, Selection
from model.interpretation.image import write_image
from model.interpretation.page import render_page
from runtime.errors import OptionError

_PAGES = (".html", ".htm")
_IMAGES = (".png",)


def check_path(path: Path) -> None:
    """Raises OptionError for a name that says neither, a directory, or one that isn't there."""
    if path.suffix.lower() not in (*_PAGES, *_IMAGES):
        raise OptionError(f"{path} ends with {path.suffix!r}; expected a name in .html or .png")
    if not path.parent.is_dir():
        raise OptionError(f"there is no directory {path.parent} to write {path.name} to; make it")
    if path.is_dir():
        raise OptionError(f"{path} is a directory; expected the name of a file")


def write_heatmap(heatmap: Heatmap, path: Path, selection: Selection) -> None:
    """All of it or nothing. selection: what a page shows first, and all that an image shows.

    Raises OptionError, MissingExtraError, and OutputError where it can't be written.
    """
    check_path(path)
    if path.suffix.lower() in _IMAGES:
        image = io.BytesIO()
        write_image(heatmap, image, selection)
        content = image.getvalue()
    else:
        content = render_page(heatmap, selection).encode()
    try:
        _write(path.resolve(), content)
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror or error}; choose a place that can be written "
            "and has space left"
        ) from error


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".writing-{os.getpid()}")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
