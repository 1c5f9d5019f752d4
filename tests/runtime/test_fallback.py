"""Two backends as one: what goes where, what is moved, what is said."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from support.fake_backend import PAD, SPECIAL_IDS, FakeBackend, random_logits

from runtime.engine_pair import Capacity
from runtime.errors import SplitBatchError
from runtime.fallback import FallbackBackend
from runtime.options import SearchOptions
from runtime.search import pad_sources, search

VOCAB = 12
IDS = SPECIAL_IDS
LOGITS = random_logits(VOCAB, eos_bias=-1.5)
LIMITS = Capacity(batch=4, beam=3, source=4, target=6)


class Keeping(FakeBackend):
    trimmed = 0

    def trim(self) -> None:
        self.trimmed += 1


class Opener:
    def __init__(self) -> None:
        self.opened: list[Keeping] = []

    def __call__(self) -> FakeBackend:
        self.opened.append(Keeping(LOGITS, VOCAB))
        return self.opened[-1]


def both() -> tuple[FallbackBackend, FakeBackend, Opener]:
    first = FakeBackend(LOGITS, VOCAB, max_source=LIMITS.source, max_target=LIMITS.target)
    opener = Opener()
    return FallbackBackend(first, LIMITS, opener, max_source=64, max_target=64), first, opener


def test_what_fits_runs_on_the_first(caplog: pytest.LogCaptureFixture) -> None:
    backend, first, opener = both()
    options = SearchOptions(beam_size=3, max_length=6)
    found = search(backend, [[5, 3], [7, 8, 9, 3]], options, IDS)
    assert found == search(FakeBackend(LOGITS, VOCAB), [[5, 3], [7, 8, 9, 3]], options, IDS)
    assert first.begun == [(2, 4)]
    assert opener.opened == []
    assert caplog.text == ""


def test_capabilities_are_those_of_both() -> None:
    backend, first, _ = both()
    found = backend.capabilities
    assert found.name == first.capabilities.name
    assert (found.max_source, found.max_target) == (64, 64)


def test_one_source_beyond_goes_alone(caplog: pytest.LogCaptureFixture) -> None:
    backend, first, opener = both()
    sources = [[5, 3], [5, 6, 7, 8, 9, 3], [7, 3]]
    ids, mask = pad_sources(sources, PAD)
    with pytest.raises(
        SplitBatchError, match="some sources are beyond the engine's limit; begin with 2 of them"
    ) as caught:
        backend.begin(ids, mask, 1, 6)
    assert caught.value.groups == [[0, 2], [1]]
    options = SearchOptions(beam_size=2, max_length=6)
    found = search(backend, sources, options, IDS)
    assert found == search(FakeBackend(LOGITS, VOCAB), sources, options, IDS)
    assert first.begun == [(2, 2)]
    assert opener.opened[0].begun == [(1, 6)]
    assert (
        "source 6 is beyond the 4 that the fake engines were built for: it runs on fake; build "
        "them with --max-source to keep it on cpu" in caplog.text
    )


def test_a_source_that_is_only_padded_beyond_stays() -> None:
    backend, first, opener = both()
    ids, mask = pad_sources([[5, 3]], PAD)
    wide = ((0, 0), (0, 7))
    backend.begin(np.pad(ids, wide), np.pad(mask, wide), 1, 6)
    assert first.begun == [(1, 2)]
    assert opener.opened == []


def test_more_beams_go_to_the_other(caplog: pytest.LogCaptureFixture) -> None:
    backend, first, opener = both()
    options = SearchOptions(beam_size=4, max_length=6)
    found = search(backend, [[5, 3], [7, 3]], options, IDS)
    assert found == search(FakeBackend(LOGITS, VOCAB), [[5, 3], [7, 3]], options, IDS)
    assert first.begun == []
    assert opener.opened[0].begun == [(2, 2)]
    assert "beam 4 is beyond the 3" in caplog.text


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_target_that_grows_beyond_is_moved(
    beam_size: int, caplog: pytest.LogCaptureFixture
) -> None:
    """In the middle of the search, and after sentences have left."""
    backend, first, _ = both()
    sources = [[5, 3], [7, 3], [8, 9, 3], [4, 3]]
    for min_length in (1, 5, 8):
        options = SearchOptions(beam_size=beam_size, min_length=min_length, max_length=15)
        found = search(backend, sources, options, IDS)
        assert found == search(FakeBackend(LOGITS, VOCAB), sources, options, IDS)
        assert max(len(one[0].token_ids) for one in found) > LIMITS.target or min_length == 1
    assert len(first.begun) == 3
    assert "target 7 is beyond the 6" in caplog.text


def test_sampling_is_moved_as_well() -> None:
    backend, _, opener = both()
    options = SearchOptions(sampling=True, num_hypotheses=3, seed=4, min_length=9, max_length=12)
    found = search(backend, [[5, 3], [7, 3]], options, IDS)
    assert found == search(FakeBackend(LOGITS, VOCAB), [[5, 3], [7, 3]], options, IDS)
    assert opener.opened


def test_the_first_time_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    backend, _, opener = both()
    options = SearchOptions(beam_size=4, max_length=6)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            search(backend, [[5, 3]], options, IDS)
    levels = [r.levelname for r in caplog.records if "is beyond" in r.message]
    assert levels == ["WARNING", "INFO", "INFO"]
    assert len(opener.opened) == 1


def test_closing_closes_both() -> None:
    backend, first, opener = both()
    search(backend, [[5, 3]], SearchOptions(beam_size=4, max_length=6), IDS)
    backend.close()
    backend.close()
    assert first.closed
    assert opener.opened[0].closed


def test_trimming_trims_whichever_keeps_memory() -> None:
    backend, _, opener = both()
    backend.trim()  # neither the first, which keeps none, nor the other, which is not open
    search(backend, [[5, 3]], SearchOptions(beam_size=4, max_length=6), IDS)
    backend.trim()
    assert opener.opened[0].trimmed == 1
