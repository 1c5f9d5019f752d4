from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from support import chromium

from model.interpretation.alignment import View
from model.interpretation.heatmap import Heatmap, Map, Selection, make_heatmap
from model.interpretation.page import UNIT, render_page
from runtime.errors import OptionError

NASTY = "</script><script>alert(1)</script> {{data}} \\g<0> <b title='\"'> & مرحبا 你好 👩‍👩‍👧"


class Page(HTMLParser):
    """What a page holds. addresses: all that an attribute could load. texts: by element, in order;
    the data of a script or style is one text."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open and data.strip():
            self.texts.setdefault(self._open[-1], []).append(data)


@pytest.fixture(scope="module")
def heatmap(random_checkpoint: Path) -> Heatmap:
    return make_heatmap(random_checkpoint, "in 12 days", "été 99")


@pytest.fixture(scope="module")
def nasty(random_checkpoint: Path) -> Heatmap:
    shown = make_heatmap(random_checkpoint, "in days", "cat").maps["cross", "words"]
    rows = (NASTY, "</s>")
    named = Map(
        rows=rows, columns=shown.columns, weights=shown.weights, probabilities=shown.probabilities
    )
    kinds = ("cross", "encoder", "decoder", "alignment")
    maps = {(kind, units): named for kind in kinds for units in ("subwords", "words")}
    return Heatmap(source=NASTY, target=NASTY, translated=False, views=(), maps=maps)


def data_of(page: str) -> dict:
    return json.loads(Page(page).texts["script"][0])


def test_the_data_are_the_weights(heatmap: Heatmap) -> None:
    maps = data_of(render_page(heatmap))["maps"]
    for (kind, units), expected in heatmap.maps.items():
        found = maps[kind][units]
        assert (tuple(found["rows"]), tuple(found["columns"])) == (expected.rows, expected.columns)
        values = np.frombuffer(base64.b64decode(found["weights"]), "<u2").astype(np.float64) / UNIT
        assert (found["layers"], found["heads"]) == expected.weights.shape[:2]
        np.testing.assert_allclose(
            values.reshape(expected.weights.shape), expected.weights, atol=0.5001 / UNIT
        )
        if expected.probabilities is None:
            assert found["probabilities"] is None
        else:
            np.testing.assert_allclose(found["probabilities"], expected.probabilities, atol=1e-6)


def test_the_page_refers_to_nothing_outside_itself(heatmap: Heatmap) -> None:
    text = render_page(heatmap)
    page = Page(text)
    loading = {"src", "href", "srcset", "action", "data", "poster", "background", "style"}
    assert not [attributes for _, attributes in page.tags if loading & attributes.keys()]
    assert not {tag for tag, _ in page.tags} & {"link", "img", "iframe", "object", "embed", "base"}
    for code in (*page.texts["style"], page.texts["script"][1]):
        assert not re.search(r"https?:|//[a-z]|url\(|@import|fetch|XMLHttp|import\(|eval", code)


def test_the_policy_allows_its_own_style_and_script_alone(heatmap: Heatmap) -> None:
    page = Page(render_page(heatmap))
    (policy,) = [a["content"] for tag, a in page.tags if tag == "meta" and "http-equiv" in a]

    def name(text: str) -> str:
        return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    script, style = page.texts["script"][1], page.texts["style"][0]
    assert policy == (f"default-src 'none'; script-src '{name(script)}'; style-src '{name(style)}'")


def test_text_is_escaped(nasty: Heatmap) -> None:
    text = render_page(nasty)
    page = Page(text)
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert page.texts["dd"] == [NASTY, NASTY]
    assert page.texts["title"] == [f"Attention: {NASTY}"]
    assert data_of(text)["maps"]["cross"]["words"]["rows"] == [NASTY, "</s>"]
    plain = {tag for tag, _ in Page(render_page(nasty).replace(NASTY, "")).tags}
    assert "b" not in plain


def test_first_shown_is_the_average_unless_chosen(heatmap: Heatmap) -> None:
    assert data_of(render_page(heatmap))["start"] == {
        "kind": "cross", "layer": "avg", "head": "avg", "units": "subwords",
    }  # fmt: skip
    chosen = Selection(kind="decoder", layer=2, head=4, units="words")
    assert data_of(render_page(heatmap, chosen))["start"] == {
        "kind": "decoder", "layer": "2", "head": "4", "units": "words",
    }  # fmt: skip
    with pytest.raises(OptionError, match="layer is 3"):
        render_page(heatmap, Selection(layer=3))


def test_the_alignment_says_what_it_is_made_of(heatmap: Heatmap) -> None:
    views = (View(layer=1, after=False), View(layer=0, head=2, after=True))
    page = render_page(dataclasses.replace(heatmap, views=views))
    assert data_of(page)["kinds"]["alignment"]["meaning"].endswith(
        "The mean of layer 2, all heads, in the step that writes a token; and layer 1, head 3, in "
        "the step that reads a token."
    )


def test_the_target_is_named_for_what_it_is(heatmap: Heatmap, random_checkpoint: Path) -> None:
    assert Page(render_page(heatmap)).texts["dt"] == ["Source", "Target"]
    own = make_heatmap(random_checkpoint, "in 12 days")
    assert Page(render_page(own)).texts["dt"] == ["Source", "Translation"]


# In a browser

in_browser = pytest.mark.skipif(
    chromium.find() is None, reason=f"there is no browser: none of {', '.join(chromium.NAMES)}"
)


def show(heatmap: Heatmap, directory: Path, fragment: str = "") -> Page:
    """The page as a browser shows it."""
    path = directory / "page.html"
    path.write_text(render_page(heatmap), encoding="utf-8", newline="\n")
    profile = directory / "profile"
    profile.mkdir(exist_ok=True)
    return Page(chromium.dump_dom(path.as_uri() + fragment, profile))


@in_browser
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("fragment", "selection"),
    [
        ("", Selection()),
        ("#kind=encoder&layer=2&head=3", Selection(kind="encoder", layer=2, head=3)),
        ("#kind=alignment&layer=1", Selection(kind="alignment")),
        ("#units=words&head=1&layer=9&kind=x", Selection(units="words", head=1)),
    ],
)
def test_a_browser_shows_the_map_that_the_address_asks_for(
    heatmap: Heatmap, tmp_path: Path, fragment: str, selection: Selection
) -> None:
    page = show(heatmap, tmp_path, fragment)
    shown = heatmap.maps[selection.kind, selection.units]
    labels = [a["title"] for tag, a in page.tags if tag == "th" and "title" in a]
    assert labels == [*shown.columns, *shown.rows]
    expected = shown.select(selection.layer, selection.head)
    alphas = [
        float((a["style"] or "").removeprefix("--weight:").rstrip("; "))
        for tag, a in page.tags
        if tag == "td" and "style" in a
    ]
    np.testing.assert_allclose(
        np.reshape(alphas, expected.shape), expected / expected.max(), atol=2e-4
    )
    if shown.probabilities is not None:
        numbers = [float(text) for text in page.texts["span"] if re.fullmatch(r"\d\.\d+", text)]
        largest, *beside = numbers  # the scale's end stands above the map
        assert largest == pytest.approx(expected.max(), abs=6e-4)
        np.testing.assert_allclose(beside, shown.probabilities, atol=6e-4)


@in_browser
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_browser_shows_nasty_text_as_text(nasty: Heatmap, tmp_path: Path) -> None:
    page = show(nasty, tmp_path)
    assert NASTY in page.texts["bdi"]
    assert [tag for tag, _ in page.tags].count("script") == 2
