"""Calibration on a bundle that is there: its FP32 graphs, its tokenizer, a file of sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from calibration.calibrate import calibrate, check_method
from calibration.compare import CHOICES, Choice, Comparison, compare
from calibration.ranges import Ranges
from calibration.sentences import evenly_spread, read_sentences
from calibration.statistics import DEFAULT_METHOD, DEFAULT_PERCENTILE, Method
from runtime.bundle import Bundle
from runtime.errors import OptionError
from runtime.manifest import ModelSpec, SpecialTokenIds
from runtime.numbers import shown
from runtime.options import SearchOptions
from runtime.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class _Inputs:
    encoder_path: Path
    step_path: Path
    model: ModelSpec
    special_ids: SpecialTokenIds
    sources: list[list[int]]
    options: SearchOptions


def calibrate_bundle(
    bundle_path: Path,
    src: Path,
    *,
    method: Method = DEFAULT_METHOD,
    percentile: float = DEFAULT_PERCENTILE,
    sentences: int,
    beam_size: int = 4,
    threads: int | None = None,
) -> Ranges:
    """The ranges of a bundle's FP32 graphs over at most `sentences` lines of src, evenly spread.

    Raises BundleError when the bundle or its FP32 graphs can't be read, CalibrationError for the
    sentences, OptionError for a number out of range.
    """
    check_method(method, percentile)
    inputs = _read(bundle_path, src, sentences, beam_size)
    return calibrate(
        inputs.encoder_path,
        inputs.step_path,
        inputs.model,
        inputs.special_ids,
        inputs.sources,
        method=method,
        percentile=percentile,
        options=inputs.options,
        threads=threads,
    )


def compare_bundle(
    bundle_path: Path,
    src: Path,
    *,
    sentences: int,
    choices: Sequence[Choice] = CHOICES,
    beam_size: int = 4,
    threads: int | None = None,
) -> list[Comparison]:
    """`calibration.compare.compare` on twice `sentences` lines of src: half of them held out."""
    inputs = _read(bundle_path, src, 2 * sentences, beam_size)
    return compare(
        inputs.encoder_path,
        inputs.step_path,
        inputs.model,
        inputs.special_ids,
        inputs.sources,
        choices=choices,
        options=inputs.options,
        threads=threads,
    )


def _read(bundle_path: Path, src: Path, sentences: int, beam_size: int) -> _Inputs:
    if sentences < 1:
        raise OptionError(f"sentences is {shown(sentences)}; expected a whole number of at least 1")
    options = SearchOptions(beam_size=beam_size)
    lines = evenly_spread(read_sentences(src), sentences)
    bundle = Bundle.open(bundle_path)
    tokenizer = Tokenizer(bundle.tokenizer_protos()[0])
    return _Inputs(
        encoder_path=bundle.graph_path(bundle.graph("encoder", "fp32")),
        step_path=bundle.graph_path(bundle.graph("decoder_step", "fp32")),
        model=bundle.manifest.model,
        special_ids=bundle.manifest.special_ids,
        sources=[tokenizer.encode_source(line) for line in lines],
        options=options,
    )
