"""Whole searches: the TensorRT backend on the emulator against ONNX Runtime, and mistakes planted.

The emulator computes what ONNX Runtime computes, bit for bit, so every difference is the runner's.
With float16 caches the casts at the border round; then the texts are equal, the scores are near.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from support.bundles import Graphs
from support.emulated_backend import emulated_backend
from support.tiny_model import trained_corpus
from support.trt_emulator import EmulatedDevice

from export.parity import check_parity
from runtime import engine_pair, tensorrt_backend, workspace
from runtime.backend import Backend
from runtime.engines.profiles import EngineLimits
from runtime.errors import BackendError
from runtime.manifest import Precision
from runtime.options import SearchOptions
from runtime.search import search
from runtime.tensorrt_backend import TensorRtBackend
from runtime.tokenizer import Tokenizer
from runtime.workspace import Workspace

SMALL = EngineLimits(max_batch=8, max_beam=4, max_source=64, max_target=64)
PHRASES = 528  # 1 + 2 + ... + 32
SCORE_FP16 = 5e-3
LENGTHS = (1, 9, 4, 2, 6)


@pytest.fixture(scope="module")
def phrases(tokenizer: Tokenizer) -> list[list[int]]:
    """In an order that puts short ones beside long ones, so that sentences leave at any time."""
    corpus = trained_corpus()
    lines = [source for split in ("test", "valid", "train") for source, _ in corpus.pairs(split)]
    sources = [tokenizer.encode_source(line) for line in lines[:PHRASES]]
    random.Random(0).shuffle(sources)
    return sources


def batches_of(sources: list[list[int]], sizes: Sequence[int]) -> Iterator[list[list[int]]]:
    start = 0
    for size in sizes:
        yield sources[start : start + size]
        start += size


def assert_same_searches(
    backend: Backend,
    graphs: Graphs,
    batches: list[list[list[int]]],
    options: SearchOptions,
    *,
    tolerance: float = 0.0,
) -> int:
    """All hypotheses equal ONNX Runtime's: their number comes back."""
    count = 0
    for batch in batches:
        expected = search(graphs.backend(), batch, options, graphs.special_ids)
        found = search(backend, batch, options, graphs.special_ids)
        for one, other in zip(expected, found, strict=True):
            if tolerance == 0:
                assert other == one
            assert [h.token_ids for h in other] == [h.token_ids for h in one]
            np.testing.assert_allclose(
                [h.score for h in other], [h.score for h in one], atol=tolerance
            )
            count += len(other)
    return count


@pytest.mark.parametrize("beam_size", [1, 3, 8])
def test_tensorrt_matches_onnxruntime_searches(
    trained_graphs: Graphs, phrases: list[list[int]], beam_size: int
) -> None:
    backend = emulated_backend(trained_graphs)
    batches = list(batches_of(phrases, [1, 2, 3, 1, 5, 8, 13, 32, 35]))  # 35: beyond the profile
    options = SearchOptions(beam_size=beam_size, num_hypotheses=beam_size)
    assert assert_same_searches(backend, trained_graphs, batches, options) == 100 * beam_size
    backend.close()


@pytest.mark.slow
@pytest.mark.parametrize("beam_size", range(1, 9))
def test_tensorrt_matches_onnxruntime_at_every_batch_size(
    trained_graphs: Graphs, phrases: list[list[int]], beam_size: int
) -> None:
    """528 phrases in batches of 1, 2, ... 32."""
    backend = emulated_backend(trained_graphs)
    batches = list(batches_of(phrases, range(1, 33)))
    assert [len(batch) for batch in batches] == list(range(1, 33))
    options = SearchOptions(beam_size=beam_size, num_hypotheses=beam_size)
    count = assert_same_searches(backend, trained_graphs, batches, options)
    print(f"beam {beam_size}: {count} hypotheses of {PHRASES} phrases, batches 1 to 32, all equal")
    assert count == PHRASES * beam_size
    backend.close()


@pytest.mark.parametrize("beam_size", [1, 4])
def test_tensorrt_matches_onnxruntime_with_half_caches(
    trained_graphs: Graphs, phrases: list[list[int]], beam_size: int
) -> None:
    backend = emulated_backend(trained_graphs, precision="fp16")
    options = SearchOptions(beam_size=beam_size)
    batches = list(batches_of(phrases, [1, 2, 5, 24]))
    assert_same_searches(backend, trained_graphs, batches, options, tolerance=SCORE_FP16)
    backend.close()


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_tensorrt_matches_eager_steps(
    trained_graphs: Graphs, phrases: list[list[int]], precision: Precision
) -> None:
    """Log-probabilities of every step, and searches, as the build checks a bundle."""
    backend = emulated_backend(trained_graphs, precision=precision)
    report = check_parity(trained_graphs.eager(), backend, phrases[:64], trained_graphs.special_ids)
    print(report.summary)
    report.require()
    backend.close()


def test_tensorrt_matches_onnxruntime_samples(random_graphs: Graphs) -> None:
    """log_probs come back as well, in the order of the sentences."""
    backend = emulated_backend(random_graphs, limits=SMALL)
    options = SearchOptions(sampling=True, num_hypotheses=3, seed=5)
    assert_same_searches(backend, random_graphs, [mixed_sources()], options)
    backend.close()


def mixed_sources() -> list[list[int]]:
    """Of lengths for which random weights end the searches one after the other."""
    generator = np.random.default_rng(7)
    return [[*generator.integers(4, 300, n).tolist(), 3] for n in LENGTHS]


def check_runner(graphs: Graphs) -> None:
    """What every mistake below must fail: caches, cross caches and beams that move all the time."""
    options = SearchOptions(beam_size=3, num_hypotheses=3)
    precisions: list[tuple[Precision, float]] = [("fp32", 0.0), ("fp16", SCORE_FP16)]
    for precision, tolerance in precisions:
        backend = emulated_backend(graphs, precision=precision, limits=SMALL)
        sources = mixed_sources()
        batches = [sources, sources[1:2], sources[::-1]]
        assert_same_searches(backend, graphs, batches, options, tolerance=tolerance)
        backend.close()


def test_tensorrt_matches_onnxruntime_as_sentences_leave(random_graphs: Graphs) -> None:
    check_runner(random_graphs)


Patch = Callable[[pytest.MonkeyPatch], None]


def a_stale_length(patch: pytest.MonkeyPatch) -> None:
    """T is told one step late."""
    original = tensorrt_backend.sizes

    def stale(**sizes: int) -> dict[str, int]:
        return original(**sizes | {"length": max(sizes["length"] - 1, 0)})

    patch.setattr(tensorrt_backend, "sizes", stale)


def a_past_of_the_wrong_batch(patch: pytest.MonkeyPatch) -> None:
    """P is told as B*K of this step; it is that of the step before."""
    original = tensorrt_backend.sizes

    def wrong(**sizes: int) -> dict[str, int]:
        return original(**sizes | {"past": sizes["batch"] * sizes["beam"]})

    patch.setattr(tensorrt_backend, "sizes", wrong)


def a_shape_that_is_not_set(patch: pytest.MonkeyPatch) -> None:
    """The shape of one cache is set at the first step only."""
    original = Workspace._make_context

    class Forgetful:
        def __init__(self, context: Any) -> None:
            self._context, self._set = context, False

        def __getattr__(self, name: str) -> Any:
            return getattr(self._context, name)

        def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
            if name == "self_v.1" and self._set:
                return True
            self._set |= name == "self_v.1"
            found: bool = self._context.set_input_shape(name, shape)
            return found

    patch.setattr(
        Workspace,
        "_make_context",
        lambda self, role, engine: Forgetful(original(self, role, engine)),
    )


def two_tensors_at_one_address(patch: pytest.MonkeyPatch) -> None:
    original = workspace._pack

    def overlapping(nbytes: dict[str, int]) -> tuple[dict[str, int], int]:
        offsets, total = original(nbytes)
        if "cross_k.1" in offsets:
            offsets["cross_k.1"] = offsets["cross_v.1"]
        return offsets, total

    patch.setattr(workspace, "_pack", overlapping)


def too_small_a_place(patch: pytest.MonkeyPatch) -> None:
    """Caches without room for the token that a step adds."""
    original = engine_pair.Capacity.sizes

    def short(self: Any) -> dict[str, int]:
        now = original(self)
        return now | {"T+1": 8}

    patch.setattr(engine_pair.Capacity, "sizes", short)


def caches_that_do_not_alternate(patch: pytest.MonkeyPatch) -> None:
    original = Workspace.step
    patch.setattr(
        Workspace, "step", lambda self, now, _turn, *rest, **kw: original(self, now, 0, *rest, **kw)
    )


def keys_swapped_with_values(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        workspace,
        "next_self_names",
        lambda layers: [f"next_self_{kind}.{i}" for i in range(layers) for kind in ("v", "k")],
    )


def a_half_cache_read_as_float(patch: pytest.MonkeyPatch) -> None:
    """Rows of float16 caches are moved as if they were float32."""
    patch.setattr(tensorrt_backend, "cache_dtype", lambda _precision: "float32")


def rows_that_do_not_move(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Workspace, "move_rows", lambda *_: None)


def a_mask_that_does_not_move(patch: pytest.MonkeyPatch) -> None:
    original = Workspace.move_rows

    def partly(self: Workspace, name: str, *rest: Any) -> None:
        if name != "src_mask":
            original(self, name, *rest)

    patch.setattr(Workspace, "move_rows", partly)


def beams_picked_from_moved_rows(patch: pytest.MonkeyPatch) -> None:
    """The past's rows are taken to be where the sentences are now."""
    original = TensorRtBackend.keep

    def wrong(self: TensorRtBackend, state: Any, sentences: Any) -> Any:
        state = original(self, state, sentences)
        state.past_rows = state.rows
        return state

    patch.setattr(TensorRtBackend, "keep", wrong)


def candidates_in_the_order_of_rows(patch: pytest.MonkeyPatch) -> None:
    original = TensorRtBackend.step

    def wrong(self: TensorRtBackend, state: Any, *rest: Any, **options: Any) -> Any:
        rows, state.rows = state.rows, np.sort(state.rows)
        found = original(self, state, *rest, **options)
        state.rows = state.past_rows = rows
        return found

    patch.setattr(TensorRtBackend, "step", wrong)


def candidates_read_too_early(patch: pytest.MonkeyPatch) -> None:
    """Before the stream is waited for."""
    original = Workspace.step

    def early(self: Workspace, *rest: Any, **options: Any) -> None:
        wait = self._stream.synchronize
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self._stream, "synchronize", lambda: None)
            original(self, *rest, **options)
        before = self._pinned.array.copy()
        wait()
        self._pinned.array[...] = before

    patch.setattr(Workspace, "step", early)


def scratch_memory_over_a_tensor(patch: pytest.MonkeyPatch) -> None:
    original = workspace._pack

    def overlapping(nbytes: dict[str, int]) -> tuple[dict[str, int], int]:
        offsets, total = original(nbytes)
        if "scratch" in offsets:
            offsets["scratch"] = offsets["cross_k.0"]
        return offsets, total

    patch.setattr(workspace, "_pack", overlapping)


def an_empty_past_without_an_address(patch: pytest.MonkeyPatch) -> None:
    original = Workspace._bind

    def null(self: Workspace, role: Any, context: Any, name: str, region: Any) -> None:
        if name == "self_k.0":
            region = workspace.Region(0, 0)
        original(self, role, context, name, region)

    patch.setattr(Workspace, "_bind", null)


def a_position_off_by_one(patch: pytest.MonkeyPatch) -> None:
    original = Workspace.step

    def wrong(self: Workspace, now: Any, turn: int, fed: Any, **options: Any) -> None:
        original(self, now, turn, fed | {"position": fed["position"] + 1}, **options)

    patch.setattr(Workspace, "step", wrong)


def a_profile_that_is_not_selected(patch: pytest.MonkeyPatch) -> None:
    """Every batch runs in the profile for one sentence."""
    original = Workspace.__init__

    def wrong(self: Workspace, device: Any, engines: Any, _profile: int, capacity: Any) -> None:
        original(self, device, engines, 0, capacity)

    patch.setattr(Workspace, "__init__", wrong)


def a_device_that_is_not_the_threads(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EmulatedDevice, "check_thread", EmulatedDevice.check_thread)
    patch.setattr(EmulatedDevice, "use", lambda _self: None)


MISTAKES: list[tuple[Patch, str]] = [
    (a_stale_length, "=="),
    (a_past_of_the_wrong_batch, "can't compute this: .*indices element out of data bounds"),
    (a_shape_that_is_not_set, "self_v.1 has T = 0, others 1"),
    (two_tensors_at_one_address, "cross_k.1 and cross_v.1 overlap"),
    (too_small_a_place, "self_k.0 and next_self_k.0 overlap"),
    (caches_that_do_not_alternate, "NaN at step 1"),
    (keys_swapped_with_values, "=="),
    (a_half_cache_read_as_float, "NaN"),
    (rows_that_do_not_move, "=="),
    (a_mask_that_does_not_move, "=="),
    (beams_picked_from_moved_rows, "=="),
    (candidates_in_the_order_of_rows, "=="),
    (candidates_read_too_early, "NaN at step 0"),
    (scratch_memory_over_a_tensor, "cross_k.0 and scratch memory overlap"),
    (an_empty_past_without_an_address, "took no address for self_k.0"),
    (a_position_off_by_one, "=="),
    (a_profile_that_is_not_selected, "took no shape .* for src_ids"),
    (a_device_that_is_not_the_threads, "this thread has not made the device its own"),
]


@pytest.mark.parametrize(("mistake", "words"), MISTAKES, ids=[m.__name__ for m, _ in MISTAKES])
def test_parity_fails_with(
    random_graphs: Graphs, monkeypatch: pytest.MonkeyPatch, mistake: Patch, words: str
) -> None:
    mistake(monkeypatch)
    with pytest.raises((AssertionError, BackendError)) as caught:
        check_runner(random_graphs)
    print(type(caught.value).__name__, str(caught.value).splitlines()[0])
    caught.match(words)
