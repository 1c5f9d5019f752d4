"""Heat maps by the name of the file: .html a page, .png an image."""

from __future__ import annotations

from pathlib import Path

from model.interpretation.heatmap import Heatmap, Selection
from model.interpretation.image import write_image
from model.interpretation.page import render_page
from runtime.errors import OptionError

_PAGES = (".html", ".htm")
_IMAGES = (".png",)


def check_path(path: Path) -> None:
    """Raises OptionError for a name that says neither, or a directory that isn't there."""
    if path.suffix.lower() not in (*_PAGES, *_IMAGES):
        raise OptionError(f"{path} ends with {path.suffix!r}; expected a name in .html or .png")
    if not path.parent.is_dir():
        raise OptionError(f"there is no directory {path.parent} to write {path.name} to; make it")


def write_heatmap(heatmap: Heatmap, path: Path, selection: Selection) -> None:
    """selection: what a page shows first, and all that an image shows. Raises OptionError,
    MissingExtraError."""
    check_path(path)
    if path.suffix.lower() in _IMAGES:
        write_image(heatmap, path, selection)
    else:
        path.write_text(render_page(heatmap, selection), encoding="utf-8", newline="\n")
