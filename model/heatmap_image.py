"""One map of a heat map as a PNG, drawn by matplotlib (extra `plot`)."""

from __future__ import annotations

import logging
import unicodedata
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from model.heatmap import Heatmap, Selection
from runtime.errors import MissingExtraError

log = logging.getLogger(__name__)

_CELL = 0.28  # inches
_DPI = 120
_LONGEST_LABEL = 30  # characters
_RIGHT_TO_LEFT = {"R", "AL"}


def write_image(heatmap: Heatmap, path: Path | str, selection: Selection | None = None) -> None:
    """Draws the selected map, the average of the cross-attention if not given, with the probability
    of each row.

    Warns of characters that no font of this machine has, which are drawn as boxes, and of scripts
    from right to left, which matplotlib does not lay out. Raises MissingExtraError without
    matplotlib, OptionError if the heat map lacks that layer or head.
    """
    selection = selection or Selection()
    selection.check(heatmap)
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plot", "drawing a PNG") from error
    shown = heatmap.maps[selection.kind, selection.units]
    rows, columns = [_shorten(text) for text in shown.rows], [_shorten(t) for t in shown.columns]
    fonts = _choose_fonts({char for text in (*rows, *columns) for char in text})
    style: dict[str, Any] = {"parse_math": False, "fontfamily": fonts, "fontsize": 9}
    if shown.probabilities is not None:
        rows = [
            f"{text}  {p:.3f}" for text, p in zip(rows, shown.probabilities.tolist(), strict=True)
        ]
    figure = Figure(figsize=(_CELL * len(columns) + 2, _CELL * len(rows) + 2), dpi=_DPI)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    weights = shown.select(selection.layer, selection.head)
    image = axes.imshow(weights, cmap="Blues", vmin=0, aspect="equal", interpolation="nearest")
    axes.set_xticks(range(len(columns)), columns, rotation=90, **style)
    axes.set_yticks(range(len(rows)), rows, **style)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.set_xlabel(_caption(selection), fontsize=9)
    figure.colorbar(image, ax=axes, shrink=min(1.0, 6 / len(rows)), pad=0.02)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # told of above
        figure.savefig(path, format="png", bbox_inches="tight")


def _caption(selection: Selection) -> str:
    kind = {"cross": "cross-attention"}.get(selection.kind, f"{selection.kind} self-attention")
    layer, head = (
        f"average over {name}s" if number is None else f"{name} {number}"
        for name, number in (("layer", selection.layer), ("head", selection.head))
    )
    return f"{kind}, {layer}, {head}"


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST_LABEL else text[: _LONGEST_LABEL - 1] + "…"


def _choose_fonts(chars: Iterable[str]) -> list[str]:
    """Names of fonts that together have these characters: matplotlib's own, and of this machine's
    those that it takes to have the rest. Warns of those that none has."""
    from matplotlib import font_manager

    wanted = {char for char in chars if unicodedata.category(char) not in ("Cf", "Mn")}
    names = ["DejaVu Sans"]
    missing = wanted - _characters(font_manager.findfont(names[0]))
    if missing:
        for entry in sorted(font_manager.fontManager.ttflist, key=_plain_first):
            found = missing & _characters(entry.fname)
            if found:
                names.append(entry.name)
                missing -= found
            if not missing:
                break
    if missing:
        log.warning(
            "no font on this machine has %s, drawn as boxes; install one that does (such as Noto "
            "Sans CJK), or write an .html page",
            " ".join(sorted(missing)[:10]) + (" ..." if len(missing) > 10 else ""),
        )
    if any(unicodedata.bidirectional(char) in _RIGHT_TO_LEFT for char in wanted):
        log.warning(
            "the text has a script from right to left, whose letters a PNG may show unjoined or in "
            "the wrong order; write an .html page"
        )
    return names


def _plain_first(entry: Any) -> tuple[bool, str, str]:
    return (entry.style != "normal" or entry.weight not in (400, "normal"), entry.name, entry.fname)


def _characters(path: str) -> set[str]:
    """What a font file has glyphs for; nothing where matplotlib can't draw with it."""
    from matplotlib.ft2font import FT2Font

    try:
        return {chr(code) for code in FT2Font(path).get_charmap()}
    except (RuntimeError, OSError):
        return set()
