from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fake_backend import (
    BOS,
    EOS,
    PAD,
    SPECIAL_IDS,
    UNK,
    FakeBackend,
    copying_logits,
    random_logits,
)
from support.reference_search import Found, Rules, exhaustive_search, reference_search

from runtime.backend import Candidates
from runtime.errors import BackendError, OptionError
from runtime.options import SearchOptions
from runtime.search import Hypothesis, max_lengths, normalise, pad_sources, search


def as_found(hypotheses: list[Hypothesis]) -> list[Found]:
    return [(found.token_ids, found.score, found.finished) for found in hypotheses]


def sources_of(count: int, seed: int = 0, longest: int = 9) -> list[list[int]]:
    generator = random.Random(seed)
    return [
        [generator.randrange(4, 12) for _ in range(generator.randrange(longest))] + [EOS]
        for _ in range(count)
    ]


def check_against_reference(
    backend: FakeBackend, sources: list[list[int]], options: SearchOptions
) -> None:
    limits = max_lengths([len(source) for source in sources], options, backend.capabilities)
    found = search(backend, sources, options, SPECIAL_IDS)
    for source, limit, hypotheses in zip(sources, limits.tolist(), found, strict=True):

        def log_probs(
            prefix: tuple[int, ...], ban: bool, source: tuple[int, ...] = tuple(source)
        ) -> np.ndarray:
            return backend.log_probs(source, prefix, ban)

        assert as_found(hypotheses) == reference_search(log_probs, EOS, limit, options)


SETTINGS = [
    {"beam_size": 1},
    {"beam_size": 1, "length_penalty": 0.0},
    {"beam_size": 1, "patience": 2.0},
    {"beam_size": 2, "num_hypotheses": 2},
    {"beam_size": 4, "num_hypotheses": 4},
    {"beam_size": 4, "num_hypotheses": 4, "length_penalty": 0.6},
    {"beam_size": 4, "num_hypotheses": 4, "length_penalty": 0.0},
    {"beam_size": 4, "num_hypotheses": 4, "length_penalty": -0.5},
    {"beam_size": 4, "num_hypotheses": 4, "length_penalty_kind": "gnmt", "length_penalty": 0.6},
    {"beam_size": 4, "num_hypotheses": 4, "patience": 2.0},
    {"beam_size": 5, "num_hypotheses": 3, "patience": 0.5},
    {"beam_size": 4, "num_hypotheses": 4, "min_length": 0},
    {"beam_size": 4, "num_hypotheses": 4, "min_length": 6},
    {"beam_size": 4, "num_hypotheses": 4, "max_length": 5},
    {"beam_size": 4, "num_hypotheses": 4, "max_length": 1},
    {"beam_size": 4, "num_hypotheses": 4, "max_length": 5, "min_length": 5},
    {"beam_size": 8, "num_hypotheses": 8},
    {"beam_size": 12, "num_hypotheses": 12},
]


@pytest.mark.parametrize("values", SETTINGS, ids=repr)
def test_search_follows_the_rules(values: dict[str, object]) -> None:
    for seed, eos_bias in ((0, 1.0), (1, 2.5), (2, -1.0)):
        backend = FakeBackend(random_logits(12, seed, eos_bias=eos_bias), 12)
        check_against_reference(backend, sources_of(12, seed, 5), SearchOptions(**values))


@settings(max_examples=60, deadline=None)
@given(
    beam_size=st.integers(1, 6),
    patience=st.floats(0.5, 3),
    min_length=st.integers(0, 4),
    max_length=st.integers(4, 9),
    alpha=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    vocab_size=st.integers(5, 9),
    seed=st.integers(0, 10_000),
    eos_bias=st.floats(-2, 4),
    quantum=st.sampled_from([0.0, 1.0]),
)
def test_search_follows_the_rules_anywhere(
    beam_size: int,
    patience: float,
    min_length: int,
    max_length: int,
    alpha: float,
    vocab_size: int,
    seed: int,
    eos_bias: float,
    quantum: float,
) -> None:
    """Vocabularies smaller than 2K, and logits on a grid, for many exact ties, among them."""
    options = SearchOptions(
        beam_size=beam_size,
        patience=patience if beam_size > 1 else 1.0,
        min_length=min_length,
        max_length=max_length,
        length_penalty=alpha,
        num_hypotheses=max(1, min(beam_size, round(beam_size * patience - 0.5))),
    )
    plain = random_logits(vocab_size, seed, eos_bias=eos_bias)

    def logits(source: tuple[int, ...], prefix: tuple[int, ...]) -> np.ndarray:
        row = plain(source, prefix)
        return np.round(row) if quantum else row

    check_against_reference(FakeBackend(logits, vocab_size), [[5, 6, EOS], [EOS]], options)


@pytest.mark.parametrize(
    ("rules", "values"),
    [
        (Rules(length_offset=-1), {"length_penalty": 0.6}),
        (Rules(length_offset=1), {"length_penalty": 0.6}),
        (Rules(replace=False), {}),
        (Rules(eos_past_k_ends=True), {}),
        (Rules(keep_at_most_k=True), {}),
        (Rules(at_max="drop"), {"max_length": 5}),
        (Rules(round_up_halves=False), {"beam_size": 5, "patience": 0.5, "num_hypotheses": 2}),
        (Rules(bound_stops=True), {}),
    ],
    ids=repr,
)
def test_a_wrong_rule_would_be_noticed(rules: Rules, values: dict[str, object]) -> None:
    """The sentences of these tests tell right from wrong: each wrong rule changes some of them."""
    backend = FakeBackend(random_logits(12, 1, eos_bias=2.0), 12)
    options = SearchOptions(**({"beam_size": 4, "num_hypotheses": 4} | values))  # type: ignore[arg-type]
    sources = list({tuple(source) for source in sources_of(60, 5)})
    limits = max_lengths([len(source) for source in sources], options, backend.capabilities)
    changed = 0
    for source, limit in zip(sources, limits.tolist(), strict=True):
        right, wrong = (
            reference_search(
                lambda prefix, ban, source=source: backend.log_probs(source, prefix, ban),
                EOS, limit, options, used,
            )
            for used in (Rules(), rules)
        )  # fmt: skip
        changed += right != wrong
    assert changed >= 5


@pytest.mark.parametrize("min_length", [0, 1, 2])
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_beam_equals_exhaustive_search_where_nothing_is_pruned(
    min_length: int, alpha: float
) -> None:
    backend = FakeBackend(random_logits(4, 3), 4, banned=())  # 4 tokens, EOS one of them
    options = SearchOptions(
        beam_size=27,  # 3**3 unfinished prefixes before the last step
        num_hypotheses=20,
        patience=100.0,
        min_length=min_length,
        max_length=4,
        length_penalty=alpha,
    )
    (found,) = search(backend, [[EOS]], options, SPECIAL_IDS)
    expected = exhaustive_search(
        lambda prefix, ban: backend.log_probs((EOS,), prefix, ban), EOS, 4, options
    )
    assert as_found(found) == expected


def test_greedy_is_the_stepwise_argmax() -> None:
    backend = FakeBackend(random_logits(30, 5), 30)
    sources = sources_of(20)
    found = search(backend, sources, SearchOptions(beam_size=1), SPECIAL_IDS)
    lengths = set()
    for source, (hypothesis,) in zip(sources, found, strict=True):
        prefix: tuple[int, ...] = ()
        total = np.float32(0)
        while len(prefix) < min(64, 2 * len(source) + 20):
            row = backend.log_probs(tuple(source), prefix, not prefix)
            token = int(row.argmax())
            total += row[token]
            if token == EOS:
                break
            prefix += (token,)
        assert hypothesis.token_ids == prefix
        assert hypothesis.finished == (token == EOS)
        assert hypothesis.sum_log_prob == float(total)
        lengths.add(len(prefix))
    assert len(lengths) > 3


@pytest.mark.parametrize(
    "options",
    [
        SearchOptions(beam_size=1),
        SearchOptions(beam_size=4, num_hypotheses=4),
        SearchOptions(sampling=True, num_hypotheses=3, seed=9, temperature=0.7, top_p=0.9),
        SearchOptions(sampling=True, top_k=5),
    ],
    ids=["greedy", "beam", "sampling", "top_k"],
)
def test_a_source_is_searched_the_same_in_any_batch(options: SearchOptions) -> None:
    backend = FakeBackend(random_logits(20, 1, eos_bias=1.0), 20)
    sources = sources_of(15)
    indices = list(range(100, 115))

    def run(order: list[int]) -> dict[int, list[Hypothesis]]:
        found = search(
            backend,
            [sources[i] for i in order],
            options,
            SPECIAL_IDS,
            input_indices=[indices[i] for i in order],
        )
        return dict(zip(order, found, strict=True))

    together = run(list(range(15)))
    shuffled = random.Random(3).sample(range(15), 15)
    assert run(shuffled) == together
    alone: dict[int, list[Hypothesis]] = {}
    for i in range(15):
        alone |= run([i])
    assert alone == together


def test_finished_sentences_leave_the_batch() -> None:
    backend = FakeBackend(copying_logits(12), 12)
    sources = [[5, EOS], [5, 6, 7, 8, 9, 10, 5, EOS], [5, 6, 7, EOS]]
    found = search(backend, sources, SearchOptions(beam_size=1), SPECIAL_IDS)
    assert [h.token_ids for (h,) in found] == [(5,), (5, 6, 7, 8, 9, 10, 5), (5, 6, 7)]
    assert backend.rows_stepped == 2 + 8 + 4


def test_sampling_follows_the_distribution() -> None:
    backend = FakeBackend(random_logits(7, 4), 7)
    options = SearchOptions(sampling=True, num_hypotheses=2000, max_length=1)
    (found,) = search(backend, [[5, EOS]], options, SPECIAL_IDS)
    expected = np.exp(backend.log_probs((5, EOS), (), True))
    drawn = [h.token_ids[0] for h in found]
    shares = [drawn.count(token) / 2000 for token in range(7)]
    assert shares == pytest.approx(expected.tolist(), abs=0.04)
    assert not {PAD, UNK, BOS, EOS} & set(drawn)
    assert len(found) == 2000


def test_samples_are_scored_without_temperature_and_best_first() -> None:
    backend = FakeBackend(random_logits(9, 4, eos_bias=1), 9)
    options = SearchOptions(sampling=True, num_hypotheses=5, temperature=3.0)
    (found,) = search(backend, [[5, EOS]], options, SPECIAL_IDS)
    assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
    for h in found:
        tokens = h.token_ids + ((EOS,) if h.finished else ())
        total = np.float32(0)
        for step, token in enumerate(tokens):
            total += backend.log_probs((5, EOS), tokens[:step], step < 1)[token]
        assert h.sum_log_prob == float(total)
        assert h.score == pytest.approx(float(total) / len(tokens))


def test_more_samples_leave_the_first_ones_as_they_were() -> None:
    backend = FakeBackend(random_logits(20, 1, eos_bias=1.0), 20)
    few, many = (
        search(
            backend,
            [[5, EOS]],
            SearchOptions(sampling=True, num_hypotheses=count, seed=3),
            SPECIAL_IDS,
        )[0]
        for count in (3, 9)
    )
    assert set(few) < set(many)


def test_nothing_in_nothing_out() -> None:
    assert search(FakeBackend(random_logits(9), 9), [], SearchOptions(), SPECIAL_IDS) == []


def test_unreachable_beams_are_not_returned() -> None:
    """Two allowed tokens, a beam of 8: the first step fills only two of its slots."""
    backend = FakeBackend(random_logits(5, 2), 5)  # EOS and one token
    options = SearchOptions(beam_size=8, num_hypotheses=8, max_length=3)
    (found,) = search(backend, [[4, EOS]], options, SPECIAL_IDS)
    assert sorted(h.token_ids for h in found) == [(4,), (4, 4), (4, 4, 4)]
    assert all(h.score > -1e6 for h in found)


def test_where_nothing_can_be_reached_the_best_of_it_comes_back() -> None:
    class Dead(FakeBackend):
        def log_probs(self, source: object, prefix: object, ban_eos: bool) -> np.ndarray:
            return np.full(9, -np.inf, dtype=np.float32)

    (found,) = search(Dead(random_logits(9), 9), [[5, EOS]], SearchOptions(), SPECIAL_IDS)
    assert len(found) == 1
    assert found[0].score == -np.inf


@pytest.mark.parametrize("sampling", [False, True])
def test_nan_is_an_error(sampling: bool) -> None:
    def logits(source: tuple[int, ...], prefix: tuple[int, ...]) -> np.ndarray:
        row = copying_logits(9)(source, prefix)
        return row * np.float32("nan") if len(prefix) == 2 else row

    with pytest.raises(BackendError, match=r"fake backend \(fp32\) computed NaN at step 2;.*fp32"):
        search(
            FakeBackend(logits, 9),
            [[5, 6, 7, 8, EOS]],
            SearchOptions(sampling=sampling),
            SPECIAL_IDS,
        )


@pytest.mark.parametrize(
    ("source_length", "values", "limit", "expected"),
    [
        (4, {}, None, 28),
        (4, {}, 64, 28),
        (30, {}, 64, 64),
        (4, {"max_length": 5}, 64, 5),
        (4, {"max_length": 64}, 64, 64),
        (4, {"max_length": 500}, None, 500),
        (4, {"min_length": 40}, 64, 40),
        (4, {"min_length": 40}, None, 40),
    ],
)
def test_max_lengths(
    source_length: int, values: dict[str, int], limit: int | None, expected: int
) -> None:
    backend = FakeBackend(random_logits(9), 9, max_target=limit)
    lengths = max_lengths([source_length], SearchOptions(**values), backend.capabilities)
    assert lengths.tolist() == [expected]


@pytest.mark.parametrize(
    ("source", "values", "text"),
    [
        ([EOS], {"max_length": 65}, "max_length is 65; this model makes at most 64 tokens"),
        ([EOS], {"min_length": 65}, "min_length is 65; this model makes at most 64 tokens"),
        ([5] * 65, {}, "a source has 65 tokens; the model reads at most 64"),
        ([], {}, "a source has no tokens; expected at least EOS"),
    ],
)
def test_lengths_beyond_the_model(source: list[int], values: dict[str, int], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        search(FakeBackend(random_logits(9), 9), [source], SearchOptions(**values), SPECIAL_IDS)


def test_pad_sources() -> None:
    src_ids, src_mask = pad_sources([[7, 8, EOS], [EOS]], PAD)
    assert src_ids.tolist() == [[7, 8, EOS], [EOS, PAD, PAD]]
    assert src_mask.tolist() == [[True] * 3, [True, False, False]]
    assert src_ids.dtype == np.int32


def test_unsorted_candidates_are_sorted() -> None:
    """TensorRT's TopK promises no order among ties."""

    class Shuffled(FakeBackend):
        def step(self, *args: object, **kwargs: object) -> Candidates:
            found = super().step(*args, **kwargs)  # type: ignore[arg-type]
            order = np.random.default_rng(0).permutation(found.scores.shape[1])
            return Candidates(
                scores=found.scores[:, order],
                token_ids=found.token_ids[:, order],
                parents=found.parents[:, order],
            )

    options = SearchOptions(num_hypotheses=4)
    plain, shuffled = (
        search(kind(random_logits(12), 12), sources_of(5), options, SPECIAL_IDS)
        for kind in (FakeBackend, Shuffled)
    )
    assert plain == shuffled


def test_the_backend_may_reuse_its_buffers() -> None:
    """Candidates are valid until the next call only."""

    class Reusing(FakeBackend):
        last: Candidates | None = None

        def step(self, *args: object, **kwargs: object) -> Candidates:
            if self.last is not None:
                for array in (self.last.scores, self.last.token_ids, self.last.parents):
                    array.fill(0)
            self.last = super().step(*args, **kwargs)  # type: ignore[arg-type]
            return self.last

    for options in (SearchOptions(num_hypotheses=4), SearchOptions(beam_size=1)):
        plain, reusing = (
            search(kind(random_logits(12, eos_bias=1), 12), sources_of(5), options, SPECIAL_IDS)
            for kind in (FakeBackend, Reusing)
        )
        assert plain == reusing


def test_eos_bans_follow_min_length() -> None:
    for min_length, expected in itertools.product((0, 3), (0, 3)):
        backend = FakeBackend(random_logits(9, eos_bias=50.0), 9)
        options = SearchOptions(beam_size=1, min_length=min_length)
        ((found,),) = search(backend, [[5, EOS]], options, SPECIAL_IDS)
        assert (len(found.token_ids) == expected) == (min_length == expected)


@pytest.mark.parametrize("penalty", [-0.5, 0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("kind", ["power", "gnmt"])
@pytest.mark.parametrize("patience", [0.5, 1.0, 2.0])
def test_what_ends_does_not_depend_on_the_length_penalty(
    penalty: float, kind: str, patience: float
) -> None:
    backend, sources = FakeBackend(random_logits(12, eos_bias=1.5), 12), sources_of(6)
    base = SearchOptions(patience=patience)
    options = SearchOptions(
        patience=patience, length_penalty=penalty, length_penalty_kind=kind  # type: ignore[arg-type]
    )  # fmt: skip
    ended = search(backend, sources, base, SPECIAL_IDS, all_ended=True)
    assert max(map(len, ended)) > 1
    best = search(backend, sources, options, SPECIAL_IDS)
    for several, (expected,) in zip(ended, best, strict=True):

        def score(found: Hypothesis) -> float:
            length = len(found.token_ids) + int(found.finished)
            return normalise(found.sum_log_prob, length, options)

        first = max(several, key=score)
        assert (first.token_ids, score(first)) == (expected.token_ids, expected.score)


def test_all_that_ended_may_be_more_than_the_beams() -> None:
    backend, sources = FakeBackend(random_logits(12, eos_bias=1.5), 12), sources_of(20)
    ended = search(backend, sources, SearchOptions(num_hypotheses=4), SPECIAL_IDS, all_ended=True)
    listed = search(backend, sources, SearchOptions(num_hypotheses=4), SPECIAL_IDS)
    assert max(map(len, ended)) > 4
    for several, best in zip(ended, listed, strict=True):
        assert sorted(several, key=lambda found: -found.score)[:4] == best
