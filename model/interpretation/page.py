"""A heat map as one HTML file that needs nothing else: no network, no server, no library.

The page holds a policy under which a browser runs and loads nothing but what is in it.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from importlib import resources
from typing import Any, get_args

import numpy as np

from model.interpretation.heatmap import Heatmap, Kind, Map, Selection, Units

UNIT = 65535
"""What a weight of 1 is in the page: weights stand there as little-endian uint16."""

_AVERAGE = "avg"

_KINDS: dict[Kind, dict[str, str]] = {
    "cross": {
        "label": "cross-attention",
        "meaning": "Where the decoder looks in the source (columns) while it writes each row.",
    },
    "encoder": {
        "label": "encoder self-attention",
        "meaning": "Where each source token (row) looks in the source itself (columns).",
    },
    "decoder": {
        "label": "decoder self-attention",
        "meaning": "Where the decoder looks in what it has read so far (columns) while it writes "
        "each row.",
        "unseen": "Hatched: not read yet.",
    },
    "alignment": {
        "label": "alignment",
        "meaning": "The cross-attention that aligns best, from which the links of translate "
        "--alignment are read off. The mean of {views}.",
    },
}


def render_page(heatmap: Heatmap, start: Selection | None = None) -> str:
    """The page. start: what it shows first; the average of the cross-attention if not given.

    Raises OptionError if the heat map lacks that layer or head.
    """
    start = start or Selection()
    start.check(heatmap)
    style, script = _file("heatmap.css"), _file("heatmap.js")
    parts = {
        "title": html.escape(f"Attention: {heatmap.source}"),
        "source": html.escape(heatmap.source),
        "target": html.escape(heatmap.target),
        "target_label": "Translation" if heatmap.translated else "Target",
        "style": style,
        "script": script,
        "style_hash": _policy_hash(style),
        "script_hash": _policy_hash(script),
        "data": _script_text(_data(heatmap, start)),
    }
    # In one pass: what is put in may hold such a name itself.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _file("heatmap.html"))


def _data(heatmap: Heatmap, start: Selection) -> dict[str, Any]:
    views = "; and ".join(map(str, heatmap.views))
    return {
        "kinds": {
            kind: {name: text.format(views=views) for name, text in texts.items()}
            for kind, texts in _KINDS.items()
        },
        "start": {
            "kind": start.kind,
            "layer": _AVERAGE if start.layer is None else str(start.layer),
            "head": _AVERAGE if start.head is None else str(start.head),
            "units": start.units,
        },
        "maps": {
            kind: {units: _map(heatmap.maps[kind, units]) for units in get_args(Units)}
            for kind in _KINDS
        },
    }


def _map(shown: Map) -> dict[str, Any]:
    steps = np.rint(shown.weights.clip(0, 1) * UNIT).astype("<u2")
    probabilities = shown.probabilities
    return {
        "rows": shown.rows,
        "columns": shown.columns,
        "layers": shown.num_layers,
        "heads": shown.num_heads,
        "weights": base64.b64encode(steps.tobytes()).decode("ascii"),
        "probabilities": None
        if probabilities is None
        else [round(float(p), 6) for p in probabilities],
    }


def _script_text(values: dict[str, Any]) -> str:
    """JSON in which nothing can end or change the script element around it."""
    text = json.dumps(values, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy_hash(text: str) -> str:
    """How a Content-Security-Policy names a script or style by its content."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def _file(name: str) -> str:
    return resources.files("model.interpretation").joinpath(name).read_text(encoding="utf-8")
