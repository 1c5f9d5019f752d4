"""The backend over graphs for CPUs: states, slots, memory, errors, and which variant is opened."""

from __future__ import annotations

import gc
import logging
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from support.bundles import ROLES, Graphs
from support.static_graphs import open_static, write_static
from support.steps import some_sources

from runtime import bound_session, static_backend, static_workspace
from runtime.bundle import (
    Bundle,
    finish_manifest,
    graph_file_name,
    weights_file_name,
    write_bundle,
)
from runtime.cpu_variant import open_on_cpu
from runtime.errors import BackendError, BundleError, OptionError
from runtime.manifest import GraphSpec, Manifest, TextSpec
from runtime.onnxruntime_backend import OnnxRuntimeBackend
from runtime.options import SearchOptions
from runtime.search import pad_sources, search
from runtime.static_backend import StaticBackend


@pytest.fixture(scope="module")
def directory(random_graphs: Graphs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("static")
    write_static(random_graphs, path, "fp32")
    return path


@pytest.fixture(scope="module")
def backend(random_graphs: Graphs, directory: Path) -> StaticBackend:
    return open_static(random_graphs, directory, "fp32")


def zeros(sentences: int, beams: int) -> tuple[Any, Any, Any]:
    ids = np.full((sentences, beams), 5, dtype=np.int32)
    return ids, np.zeros_like(ids), np.zeros((sentences, beams), dtype=np.float32)


def test_it_says_what_it_is(backend: StaticBackend) -> None:
    found = backend.capabilities
    assert (found.name, found.device, found.precision) == ("onnxruntime", "cpu", "fp32")
    assert (found.detail["variant"], found.detail["threads"]) == ("cpu_static", 1)


def test_sentences_that_leave_move_as_few_rows_as_leave(
    random_graphs: Graphs, backend: StaticBackend
) -> None:
    """The last ones take the slots that are free; all others stay where they are."""
    sources = some_sources(np.random.default_rng(0), [4, 5, 6, 7, 8], 300)
    state: Any = backend.begin(*pad_sources(sources, 0), 2, 6)
    backend.step(state, *zeros(5, 2), ban_eos=False)
    before = {name: state.workspace.whole.arrays[name].copy() for name in ("self_k.0", "cross_v.1")}
    state = backend.keep(state, np.array([0, 2, 4], dtype=np.int32))
    assert state.slots.tolist() == [0, 2, 1]
    assert state.bound.arrays["self_k.0"].shape[0] == 6
    moved, kept = state.workspace.whole.arrays["self_k.0"], before["self_k.0"]
    np.testing.assert_array_equal(moved[2:4, :, :1], kept[8:10, :, :1])
    for rows in (slice(0, 2), slice(4, 6)):
        np.testing.assert_array_equal(moved[rows, :, :1], kept[rows, :, :1])
    np.testing.assert_array_equal(
        state.workspace.whole.arrays["cross_v.1"][:3], before["cross_v.1"][[0, 4, 2]]
    )
    state = backend.keep(state, np.array([0, 2], dtype=np.int32))
    assert state.slots is None  # in order again


def test_a_small_workspace_waits_for_the_next_batch_of_its_shape(backend: StaticBackend) -> None:
    def begin(lengths: list[int], beam_size: int) -> Any:
        sources = some_sources(np.random.default_rng(1), lengths, 300)
        return backend.begin(*pad_sources(sources, 0), beam_size, 20)

    state = begin([6, 9], 2)
    first = state.workspace
    backend.step(state, *zeros(2, 2), ban_eos=False)
    backend.step(state, *zeros(2, 2), ban_eos=False)  # both beams go on from the first
    assert first.whole.arrays["cache_indirection"][0, :, 0].tolist() == [0, 0]
    beside = begin([6, 9], 2)
    assert beside.workspace is not first  # which is in use
    del state, beside
    gc.collect()
    others = [begin([6, 9, 9], 2), begin([6, 9], 1), begin([6, 17], 2)]
    assert all(other.workspace is not first for other in others)
    state, beside = begin([6, 10], 2), begin([6, 10], 2)
    assert first in (state.workspace, beside.workspace)
    assert first.whole.arrays["cache_indirection"][1, :, 0].tolist() == [0, 1]
    assert first.whole.arrays["src_mask"][:, 6:].tolist() == [[False] * 6, [True] * 4 + [False] * 2]


def test_a_large_workspace_is_let_go(
    backend: StaticBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(static_workspace, "KEPT_FLOATS", 1000)
    sources = some_sources(np.random.default_rng(1), [6, 9, 14], 300)
    state: Any = backend.begin(*pad_sources(sources, 0), 2, 20)
    gone = weakref.ref(state.workspace)
    del state
    gc.collect()
    assert gone() is None


def test_a_closed_backend_keeps_no_workspace(random_graphs: Graphs, directory: Path) -> None:
    backend = open_static(random_graphs, directory, "fp32")
    sources = some_sources(np.random.default_rng(1), [6, 9], 300)
    states: list[Any] = [backend.begin(*pad_sources(sources, 0), 2, 20) for _ in range(2)]
    gone = [weakref.ref(state.workspace) for state in states]
    del states[0]
    backend.close()
    states.clear()
    gc.collect()
    assert [one() for one in gone] == [None, None]


@pytest.mark.parametrize("beam_size", [1, 3])
def test_caches_that_grow_change_nothing(
    random_graphs: Graphs,
    backend: StaticBackend,
    beam_size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From room for 9 tokens on, past sentences that leave, to the model's limit of 64."""
    sources = some_sources(np.random.default_rng(3), [3, 12, 20, 25], 300)
    options = SearchOptions(beam_size=beam_size, num_hypotheses=beam_size, min_length=26)
    moved = []
    grow = StaticBackend._grow
    monkeypatch.setattr(
        StaticBackend, "_grow", lambda self, *rest: (moved.append(self), grow(self, *rest))
    )
    found = {}
    for room in (8, 64):
        monkeypatch.setattr(static_backend, "FIRST_POSITIONS", room)
        found[room] = search(backend, sources, options, random_graphs.special_ids)
        assert len(moved) == 3  # at 9, 25 and 57 tokens; not again with room from the start
    assert found[8] == found[64]


def test_log_probs_are_there_when_asked_for(random_graphs: Graphs, backend: StaticBackend) -> None:
    """Sampling needs them; asking changes nothing else."""
    sources = some_sources(np.random.default_rng(2), [6, 9, 3], 300)
    states = [backend.begin(*pad_sources(sources, 0), 3, 6) for _ in range(2)]
    for _ in range(3):
        plain, full = (
            backend.step(state, *zeros(3, 3), ban_eos=True, need_log_probs=need)
            for state, need in zip(states, (False, True), strict=True)
        )
        assert plain.log_probs is None
        assert full.log_probs is not None
        assert full.log_probs.shape == (3, 3, random_graphs.spec.vocab_size)
        np.testing.assert_array_equal(plain.scores, full.scores)
        np.testing.assert_array_equal(plain.token_ids, full.token_ids)
    options = SearchOptions(sampling=True, num_hypotheses=2, max_length=8, seed=3)
    ids = random_graphs.special_ids
    found = search(backend, sources, options, ids)
    assert [len(of_source) for of_source in found] == [2, 2, 2]
    assert found == search(backend, sources, options, ids)


def test_limits_are_told(backend: StaticBackend) -> None:
    ids, mask = pad_sources([[5] * 65], 0)
    with pytest.raises(BackendError, match="65 source tokens asked for; the model has positions"):
        backend.begin(ids, mask, 1, 4)
    with pytest.raises(BackendError, match=r"65 target tokens \(max_length\) asked for"):
        backend.begin(ids[:, :5], mask[:, :5], 1, 65)
    state = backend.begin(ids[:, :5], mask[:, :5], 1, 1)
    backend.step(state, *zeros(1, 1), ban_eos=False)
    with pytest.raises(BackendError, match=r"step 2 after begin\(max_length=1\)"):
        backend.step(state, *zeros(1, 1), ban_eos=False)


def test_what_fails_in_a_graph_is_told(backend: StaticBackend) -> None:
    state = backend.begin(*pad_sources([[5, 6, 3]], 0), 1, 4)
    token_ids, beams, sums = zeros(1, 1)
    token_ids[:] = 100_000
    with pytest.raises(BackendError, match=r"failed in decoder_step\.fp32\.cpu_static\.onnx"):
        backend.step(state, token_ids, beams, sums, ban_eos=False)


def test_a_closed_backend_says_so(random_graphs: Graphs, directory: Path) -> None:
    backend = open_static(random_graphs, directory, "fp32")
    state = backend.begin(*pad_sources([[5, 6, 3]], 0), 1, 4)
    backend.close()
    backend.close()
    with pytest.raises(BackendError, match="the onnxruntime backend is closed"):
        backend.begin(*pad_sources([[5, 6, 3]], 0), 1, 4)
    with pytest.raises(BackendError, match="the onnxruntime backend is closed"):
        backend.step(state, *zeros(1, 1), ban_eos=False)


def test_what_is_no_graph_of_this_variant_is_refused(
    random_graphs: Graphs, directory: Path, tmp_path: Path
) -> None:
    rest = (random_graphs.spec, random_graphs.special_ids)
    portable = (random_graphs.path("encoder"), random_graphs.path("decoder_step"))
    with pytest.raises(BackendError, match=r"has nothing for beam_width, expected tensor\(int32\)"):
        StaticBackend(*portable, *rest)
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no graph")
    with pytest.raises(BackendError, match=r"can't load broken\.onnx"):
        StaticBackend(portable[0], broken, *rest)
    with pytest.raises(OptionError, match="threads is 0"):
        open_static(random_graphs, directory, "fp32", threads=0)


def write_bundle_of(graphs: Graphs, static: Path, path: Path, *, damaged: bool = False) -> Bundle:
    """FP32 in both variants; damaged: the step for CPUs is no graph."""
    specs = []
    for role in ROLES:
        for variant, source in (("portable", graphs.directory), ("cpu_static", static)):
            files = [graph_file_name(role, "fp32", variant)]
            if variant == "cpu_static":
                files.append(weights_file_name("fp32", variant))
            specs.append((source, GraphSpec(
                role=role, precision="fp32", variant=variant, files=tuple(files),  # type: ignore[arg-type]
                inputs=(), outputs=(), opset=20,
            )))  # fmt: skip
    manifest = Manifest(
        model=graphs.spec,
        special_ids=graphs.special_ids,
        text=TextSpec(source_tokenizer="t", target_tokenizer="t", normalizer_version=1),
        graphs=tuple(spec for _, spec in specs),
        files={},
    )
    with write_bundle(path) as directory:
        (directory / "t").write_bytes(b"")
        for source, spec in specs:
            for name in spec.files:
                (directory / name).write_bytes((source / name).read_bytes())
        if damaged:
            (directory / graph_file_name("decoder_step", "fp32", "cpu_static")).write_bytes(b"x")
        finish_manifest(directory, manifest)
    return Bundle.open(path)


def test_a_cpu_takes_the_variant_made_for_it(
    random_graphs: Graphs, directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="runtime")
    bundle = write_bundle_of(random_graphs, directory, tmp_path / "bundle")
    backend = open_on_cpu(bundle, threads=1)
    assert isinstance(backend, StaticBackend)
    (told,) = caplog.records
    assert told.levelname == "DEBUG"
    assert told.getMessage().startswith("graphs: cpu_static, fp32; kernels: ")
    sources = some_sources(np.random.default_rng(4), [4, 9], 300)
    options = SearchOptions(max_length=10)
    found = search(backend, sources, options, random_graphs.special_ids)
    portable = OnnxRuntimeBackend.open(bundle, threads=1)
    expected = search(portable, sources, options, random_graphs.special_ids)
    assert [h[0].token_ids for h in found] == [h[0].token_ids for h in expected]
    with pytest.raises(BundleError, match="holds no portable encoder graph in int8"):
        open_on_cpu(bundle, precision="int8")


def test_without_a_usable_one_it_takes_the_portable_one_and_says_so(
    random_graphs: Graphs, directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="runtime")
    bundle = write_bundle_of(random_graphs, directory, tmp_path / "damaged", damaged=True)
    assert isinstance(open_on_cpu(bundle, threads=1), OnnxRuntimeBackend)
    assert "the cpu_static graphs can't be used" in caplog.text
    assert "taking the portable ones" in caplog.text


def many_sources() -> list[list[int]]:
    rng = np.random.default_rng(4)
    return some_sources(rng, rng.integers(2, 12, 20).tolist(), 300)


def test_slots_close_up_once_an_eighth_is_free(backend: StaticBackend) -> None:
    sources = many_sources()[:16]
    state: Any = backend.begin(*pad_sources(sources, 0), 2, 6)
    backend.step(state, *zeros(16, 2), ban_eos=False)
    state = backend.keep(state, np.delete(np.arange(16), 3).astype(np.int32))
    assert (state.sentences, state.bound_slots) == (15, 16)
    backend.step(state, *zeros(15, 2), ban_eos=False)
    state = backend.keep(state, np.delete(np.arange(15), 3).astype(np.int32))
    assert (state.sentences, state.bound_slots) == (14, 14)


def test_a_search_is_the_same_beside_others_that_leave(
    random_graphs: Graphs, backend: StaticBackend
) -> None:
    """So long that caches grow, and so many that some slots stay behind for a while."""
    options = SearchOptions(beam_size=3, num_hypotheses=3, min_length=2)
    sources = many_sources()
    together = search(backend, sources, options, random_graphs.special_ids)
    for source, found in zip(sources, together, strict=True):
        assert search(backend, [source], options, random_graphs.special_ids) == [found]


def test_with_and_without_kernels_fp32_finds_the_same(
    random_graphs: Graphs,
    directory: Path,
    backend: StaticBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bound_session, "use_native_kernels", lambda options: False)
    plain = open_static(random_graphs, directory, "fp32")
    options = SearchOptions(beam_size=4, num_hypotheses=2)
    sources = many_sources()
    found = [
        [
            [hypothesis.token_ids for hypothesis in hypotheses]
            for hypotheses in search(each, sources, options, random_graphs.special_ids)
        ]
        for each in (plain, backend)
    ]
    assert found[0] == found[1]


def test_memory_of_large_batches_waits_until_it_is_trimmed(
    random_graphs: Graphs, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(static_workspace, "KEPT_FLOATS", 0)  # each batch is large
    backend = open_static(random_graphs, directory, "fp32")
    options = SearchOptions(beam_size=2)
    first = search(backend, many_sources(), options, random_graphs.special_ids)
    gc.collect()
    blocks = backend._pool._blocks
    assert len(blocks) >= 1
    waiting = blocks[-1]
    state: Any = backend.begin(*pad_sources(many_sources()[:4], 0), 2, 6)
    assert state.workspace.block is waiting  # a smaller batch takes it
    backend.trim()
    assert not backend._pool._blocks
    del state
    gc.collect()
    assert search(backend, many_sources(), options, random_graphs.special_ids) == first
    backend.close()
    backend.trim()  # nothing is left to trim
