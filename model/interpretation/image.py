"""One map of a heat map as a PNG, drawn by matplotlib (extra `plot`)."""

from __future__ import annotations

import logging
import unicodedata
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from model.interpretation.heatmap import Heatmap, Selection
from runtime.errors import MissingExtraError, OptionError

log = logging.getLogger(__name__)

_CELL = 0.28  # inches
_DPI = 120
_LONGEST_LABEL = 30  # characters
_MOST_CELLS = 1500
"""On a side. matplotlib draws up to 65,536 pixels, of which these take 50,400."""
_LAYS_OUT_TEXT = (3, 11)
_MARK = "\u200e"  # left-to-right mark


def write_image(
    heatmap: Heatmap, target: Path | str | IO[bytes], selection: Selection | None = None
) -> None:
    """Draws the selected map, the average of the cross-attention if not given, with the probability
    of each row.

    Warns of characters that no font of this machine has, which are drawn as boxes, and, with a
    matplotlib before 3.11, of scripts from right to left. Raises MissingExtraError without
    matplotlib, OptionError if the heat map lacks that layer or head, or is too large.
    """
    selection = selection or Selection()
    selection.check(heatmap)
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plot", "drawing a PNG") from error
    shown = heatmap.maps[selection.kind, selection.units]
    if max(len(shown.rows), len(shown.columns)) > _MOST_CELLS:
        raise OptionError(
            f"the map has {len(shown.rows):,} rows and {len(shown.columns):,} columns; an image "
            f"holds {_MOST_CELLS:,} of each: write an .html page"
        )
    rows, columns = [_shorten(text) for text in shown.rows], [_shorten(t) for t in shown.columns]
    _warn_of_layout((*rows, *columns))
    fonts = _choose_fonts({char for text in (*rows, *columns) for char in text})
    style: dict[str, Any] = {"parse_math": False, "fontfamily": fonts, "fontsize": 9}
    if shown.probabilities is not None:
        rows = [
            # The marks keep the number on the right of text from right to left.
            f"{_MARK}{text}{_MARK}  {p:.3f}" if _is_right_to_left(text) else f"{text}  {p:.3f}"
            for text, p in zip(rows, shown.probabilities.tolist(), strict=True)
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
    axes.set_xlabel(_caption(heatmap, selection), fontsize=9)
    figure.colorbar(image, ax=axes, shrink=min(1.0, 6 / len(rows)), pad=0.02)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # told of above
        figure.savefig(target, format="png", bbox_inches="tight")


def _caption(heatmap: Heatmap, selection: Selection) -> str:
    if selection.kind == "alignment":
        return "\n".join(("alignment: the mean of", *map(str, heatmap.views)))
    kind = {"cross": "cross-attention"}.get(selection.kind, f"{selection.kind} self-attention")
    layer, head = (
        f"average over {name}s" if number is None else f"{name} {number}"
        for name, number in (("layer", selection.layer), ("head", selection.head))
    )
    return f"{kind}\n{layer}, {head}"


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST_LABEL else text[: _LONGEST_LABEL - 1] + "…"


def _choose_fonts(chars: Iterable[str]) -> list[str]:
    """Names of fonts that together have these characters: matplotlib's own, and of this machine's
    those that it takes to have the rest. Warns of those that none has."""
    from matplotlib import font_manager, get_data_path

    wanted = {char for char in chars if unicodedata.category(char) not in ("Cf", "Mn")}
    names = ["DejaVu Sans"]
    missing = wanted - _characters(font_manager.findfont(names[0]))
    if missing:
        for entry in sorted(font_manager.fontManager.ttflist, key=_plain_first):
            # matplotlib's own others draw formulas, and boxes for whatever has no glyph.
            if entry.fname.startswith(get_data_path()):
                continue
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
    return names


def _is_right_to_left(text: str) -> bool:
    return any(unicodedata.bidirectional(char) in ("R", "AL") for char in text)


def _warn_of_layout(texts: Iterable[str]) -> None:
    """Says so where this matplotlib is one that can't lay out such text."""
    from matplotlib import __version_info__ as version

    if version < _LAYS_OUT_TEXT and any(_is_right_to_left(text) for text in texts):
        log.warning(
            "the text has a script from right to left, whose letters this matplotlib shows "
            "unjoined and in the wrong order; install matplotlib 3.11 or newer, or write an .html "
            "page"
        )


def _plain_first(entry: Any) -> tuple[bool, str, str]:
    return (entry.style != "normal" or entry.weight not in (400, "normal"), entry.name, entry.fname)


def _characters(path: str) -> set[str]:
    """What a font file has glyphs for; nothing where matplotlib can't draw with it."""
    from matplotlib.ft2font import FT2Font

    try:
        return {chr(code) for code in FT2Font(path).get_charmap()}
    except (RuntimeError, OSError):
        return set()
