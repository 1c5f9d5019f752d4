"""The bundle that schema 1 began with opens and translates, in this version and every later one.

tests/golden/make.py tells how it was made. If one of these fails, users' bundles fail as well: mend
the reader, never the bundle.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.bundle import Bundle
from runtime.options import SearchOptions
from runtime.translator import Translator

GOLDEN = Path(__file__).parents[1] / "golden" / "bundle-schema-1"
BUNDLE_ID = "1d93696a47367cb887c65f3732e67f6ece3f4c67873ceac897c51a9600f667ab"

TRANSLATIONS = {
    "in 3 days": "in 3 Tagen",
    "42 years ago": "vor 42 Jahren",
    "": "",
    "in 7 weeks": "in 7 Wochen",
    "17 months ago": "vor 17 Monaten",
    "  in\t3 days ": "in 3 Tagen",
}


def test_manifest_reads_as_it_was_written() -> None:
    bundle = Bundle.open(GOLDEN)
    bundle.verify()
    assert bundle.bundle_id == BUNDLE_ID
    assert bundle.precisions() == ("fp32", "int8")
    assert bundle.manifest.raw["schema"] == "1.0"
    assert bundle.manifest.model.head_dim == 8
    assert bundle.graph("decoder_step", "int8").int8_matmuls > 0
    assert bundle.size() < 300_000


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("beam_size", [1, 4])
def test_translations_stay_the_same(precision: str, beam_size: int) -> None:
    with Translator.open(GOLDEN, precision=precision, threads=1) as translator:
        found = translator.translate(list(TRANSLATIONS), SearchOptions(beam_size=beam_size))
    assert [translation.text for translation in found] == list(TRANSLATIONS.values())


def test_scores_stay_the_same() -> None:
    options = SearchOptions(beam_size=4, num_hypotheses=2)
    with Translator.open(GOLDEN, precision="fp32", threads=1) as translator:
        (translation,) = translator.translate(["42 years ago"], options)
    first, second = translation.hypotheses
    assert (first.text, second.text) == ("vor 42 Jahren", "vor 47 Jahren")
    assert first.score == pytest.approx(-0.000317, abs=1e-5)
    assert second.score == pytest.approx(-0.723267, abs=1e-3)
    assert first.finished
    assert second.finished


def test_default_options_are_the_bundles() -> None:
    with Translator.open(GOLDEN) as translator:
        assert translator.capabilities.precision == "int8"
        assert translator.defaults.beam_size == 4
