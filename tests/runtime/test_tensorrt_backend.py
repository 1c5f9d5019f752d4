"""The TensorRT backend on the emulator: states, threads, memory, limits, and what it says.

Whole searches are in tests/parity/test_engine_runner.py.
"""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from support.bundles import ROLES, Graphs
from support.emulated_backend import (
    emulated_backend,
    emulated_library,
    emulated_pair,
    write_emulated_engine,
    write_graph_bundle,
)
from support.trt_emulator import (
    EmulatedContext,
    EmulatedDevice,
    EmulatedEngine,
    EmulatedTensorRtRtx,
    TensorLocation,
)

from runtime.backend import Candidates
from runtime.engine_pair import EnginePair
from runtime.engines.profiles import EngineLimits
from runtime.errors import (
    BackendError,
    DeviceMemoryError,
    EngineError,
    MissingExtraError,
    SplitBatchError,
)
from runtime.options import SearchOptions
from runtime.registry import open_backend
from runtime.search import pad_sources, search
from runtime.tensorrt_backend import TensorRtBackend

SOURCES = [[5, 9, 30, 3], [77, 3], [8, 8, 8, 60, 61, 62, 200, 3], [40, 41, 42, 3]]
SMALL = EngineLimits(max_batch=4, max_beam=3, max_source=16, max_target=24)
OPTIONS = SearchOptions(beam_size=3, num_hypotheses=3, max_length=12)
ONE = np.zeros((1, 1), dtype=np.int32)
NOUGHT = np.zeros((1, 1), dtype=np.float32)


def begin(backend: TensorRtBackend, count: int = 1, beam_size: int = 1, length: int = 8) -> Any:
    return backend.begin(*pad_sources(SOURCES[:count], 0), beam_size, length)


def first_step(backend: TensorRtBackend, state: Any) -> Candidates:
    return backend.step(state, ONE + 2, ONE, NOUGHT, ban_eos=False)


def test_capabilities_tell_what_runs(random_graphs: Graphs) -> None:
    found = emulated_backend(random_graphs, precision="fp16", limits=SMALL).capabilities
    assert (found.name, found.device, found.precision) == ("tensorrt", "emulated:0", "fp16")
    assert found.vocab_size == random_graphs.spec.vocab_size
    assert (found.max_source, found.max_target) == (16, 24)
    assert found.detail == {"limits": "batch 4, beam 3, source 16, target 24"}


def test_only_candidates_come_back(random_graphs: Graphs) -> None:
    """A step copies once to the device and once from it, through pinned memory."""
    device = EmulatedDevice()
    backend = emulated_backend(random_graphs, limits=SMALL, device=device)
    state = begin(backend)
    device.copies.clear()
    found = first_step(backend, state)
    assert found.log_probs is None
    assert [(copy[0], copy[1]) for copy in device.copies] == [(True, False), (False, True)]
    assert device.copies[1][2] <= 3 * 256  # scores, ids and parents, aligned
    vocab = random_graphs.spec.vocab_size
    device.copies.clear()
    found = backend.step(state, ONE + 9, ONE, NOUGHT, ban_eos=True, need_log_probs=True)
    assert device.copies[2:] == [(False, True, 4 * vocab)]
    assert found.log_probs is not None
    assert found.log_probs.shape == (1, 1, vocab)
    assert np.exp(found.log_probs).sum() == pytest.approx(1, abs=1e-4)
    assert found.log_probs[0, 0, 3] < -1e8  # EOS is banned
    assert found.token_ids.dtype == found.parents.dtype == np.int32


def test_buffers_are_allocated_once_a_profile(random_graphs: Graphs) -> None:
    device = EmulatedDevice()
    backend = emulated_backend(random_graphs, limits=SMALL, device=device)
    for _ in range(3):
        search(backend, SOURCES[:1], OPTIONS, random_graphs.special_ids)
        search(backend, SOURCES, OPTIONS, random_graphs.special_ids)
    assert len(device.blocks) == 2
    assert device.blocks[0].nbytes < device.blocks[1].nbytes
    backend.close()
    assert device.used() == 0
    assert device.streams == {}


def test_candidates_outlive_their_state(random_graphs: Graphs) -> None:
    backend = emulated_backend(random_graphs, limits=SMALL)
    found = first_step(backend, begin(backend))
    before = found.scores.copy()
    first_step(backend, backend.begin(*pad_sources(SOURCES[2:3], 0), 1, 8))
    assert np.array_equal(found.scores, before)


def test_states_side_by_side(random_graphs: Graphs) -> None:
    """Two searches in turns, in one thread: each has a workspace."""
    backend = emulated_backend(random_graphs, limits=SMALL)
    reference = random_graphs.backend()
    states = [
        [b.begin(*pad_sources([s], 0), 1, 8) for s in SOURCES[:2]] for b in (backend, reference)
    ]
    token = [ONE + 2, ONE + 2]
    for _ in range(6):
        for i in (0, 1):
            mine, theirs = (
                b.step(s[i], token[i], ONE, NOUGHT, ban_eos=True)
                for b, s in zip((backend, reference), states, strict=True)
            )
            assert np.array_equal(mine.scores, theirs.scores)
            token[i] = mine.token_ids[:, :1]


def test_a_batch_that_was_given_up_harms_nothing(random_graphs: Graphs) -> None:
    """Its copies are still queued when the next one begins in the same workspace."""
    backend = emulated_backend(random_graphs, limits=SMALL)
    begin(backend)
    expected = first_step(random_graphs.backend(), begin(random_graphs.backend()))
    for source in (SOURCES[2], SOURCES[3], SOURCES[0]):
        state = backend.begin(*pad_sources([source], 0), 1, 8)
    assert np.array_equal(first_step(backend, state).scores, expected.scores)


def test_sentences_leave_one_after_the_other(random_graphs: Graphs) -> None:
    """In an order that moves rows of rows that were moved, bit for bit as ONNX Runtime."""
    backend, reference = emulated_backend(random_graphs, limits=SMALL), random_graphs.backend()
    beam_size, shape = 2, (4, 2)
    states = [b.begin(*pad_sources(SOURCES, 0), beam_size, 12) for b in (backend, reference)]
    token_ids = np.full(shape, 2, dtype=np.int32)
    parents, sums = np.zeros(shape, dtype=np.int32), np.zeros(shape, dtype=np.float32)
    live = [0, 1, 2, 3]
    for leaving in (None, 0, None, 2, 3):
        if leaving is not None:
            going = np.flatnonzero(np.array(live) != leaving).astype(np.int32)
            states = [b.keep(s, going) for b, s in zip((backend, reference), states, strict=True)]
            live.remove(leaving)
            token_ids, parents, sums = token_ids[going], parents[going], sums[going]
        mine, theirs = (
            b.step(s, token_ids, parents, sums, ban_eos=False)
            for b, s in zip((backend, reference), states, strict=True)
        )
        assert np.array_equal(mine.scores, theirs.scores)
        assert np.array_equal(mine.token_ids, theirs.token_ids)
        token_ids = np.ascontiguousarray(mine.token_ids[:, :beam_size])
        parents = np.ascontiguousarray(mine.parents[:, beam_size - 1 : 2 * beam_size - 1])
        sums = np.ascontiguousarray(mine.scores[:, :beam_size])
    assert live == [1]


def test_sentences_leave_before_the_first_step(random_graphs: Graphs) -> None:
    backend, reference = emulated_backend(random_graphs, limits=SMALL), random_graphs.backend()
    found = []
    for some in (backend, reference):
        state = some.keep(begin(some, 4), np.array([1, 3], dtype=np.int32))
        two = np.zeros((2, 1), dtype=np.int32)
        found.append(some.step(state, two + 2, two, two.astype(np.float32), ban_eos=False))
    assert np.array_equal(found[0].scores, found[1].scores)


def test_keeping_all_changes_nothing(random_graphs: Graphs) -> None:
    backend = emulated_backend(random_graphs, limits=SMALL)
    state = begin(backend)
    assert backend.keep(state, np.array([0], dtype=np.int32)) is state


def test_two_threads_share_a_backend(random_graphs: Graphs) -> None:
    device = EmulatedDevice()
    backend = emulated_backend(random_graphs, limits=SMALL, device=device)
    batches = [SOURCES, SOURCES[::-1], SOURCES[1:3], [[9, 9, 3]]]
    ids = random_graphs.special_ids
    expected = [search(random_graphs.backend(), batch, OPTIONS, ids) for batch in batches]
    failures: list[object] = []

    def work(offset: int) -> None:
        for turn in range(8):
            index = (turn + offset) % len(batches)
            try:
                if search(backend, batches[index], OPTIONS, ids) != expected[index]:
                    failures.append((offset, turn))
            except Exception as error:  # a thread's error would be lost
                failures.append(error)

    threads = [threading.Thread(target=work, args=(offset,)) for offset in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(device.blocks) <= 6  # three threads, two profiles
    backend.close()
    assert device.used() == 0


def test_two_backends_in_one_process(random_graphs: Graphs) -> None:
    device = EmulatedDevice()
    one = emulated_backend(random_graphs, limits=SMALL, device=device)
    other = emulated_backend(random_graphs, limits=SMALL, device=device, precision="fp16")
    found = [search(b, SOURCES, OPTIONS, random_graphs.special_ids) for b in (one, other, one)]
    assert found[0] == found[2]
    one.close()
    assert device.used() > 0
    other.close()
    assert device.used() == 0


def test_large_batches_are_split(random_graphs: Graphs) -> None:
    backend = emulated_backend(random_graphs, limits=SMALL)
    with pytest.raises(
        SplitBatchError, match="9 sentences; the engines take 4 at a time; begin with 4 of them"
    ) as caught:
        backend.begin(*pad_sources(SOURCES[:3] * 3, 0), 1, 8)
    assert caught.value.groups == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
    many = [*SOURCES, *SOURCES, SOURCES[1]]
    ids = random_graphs.special_ids
    expected = search(random_graphs.backend(), many, OPTIONS, ids)
    assert search(backend, many, OPTIONS, ids) == expected


def workspace_bytes(graphs: Graphs, limits: EngineLimits) -> list[int]:
    """Of each profile."""
    device = EmulatedDevice()
    backend = emulated_backend(graphs, limits=limits, device=device)
    for count in (1, limits.max_batch):
        search(backend, SOURCES[:count], OPTIONS, graphs.special_ids)
    backend.close()
    return [block.nbytes for block in device.blocks]


def test_less_memory_makes_smaller_batches(
    random_graphs: Graphs, caplog: pytest.LogCaptureFixture
) -> None:
    _, large = workspace_bytes(random_graphs, SMALL)
    device = EmulatedDevice(memory=large * 3 // 4)
    backend = emulated_backend(random_graphs, limits=SMALL, device=device)
    ids = random_graphs.special_ids
    expected = search(random_graphs.backend(), SOURCES, OPTIONS, ids)
    assert search(backend, SOURCES, OPTIONS, ids) == expected
    assert "emulated:0 has no memory for batches of 4 in profile 1: going on with 2" in caplog.text
    caplog.clear()
    assert search(backend, SOURCES, OPTIONS, ids) == expected
    assert caplog.text == ""
    backend.close()


def test_free_workspaces_make_room(random_graphs: Graphs, caplog: pytest.LogCaptureFixture) -> None:
    """That of the other profile is freed before the batch is made smaller."""
    small, large = workspace_bytes(random_graphs, SMALL)
    device = EmulatedDevice(memory=large + small // 2)
    backend = emulated_backend(random_graphs, limits=SMALL, device=device)
    for sources in (SOURCES[:1], SOURCES, SOURCES[:1]):
        search(backend, sources, OPTIONS, random_graphs.special_ids)
    assert caplog.text == ""


def test_memory_for_one_sentence_at_a_time(
    random_graphs: Graphs, caplog: pytest.LogCaptureFixture
) -> None:
    """Scratch memory of the profile for batches is too much: the other one is used."""
    small, _ = workspace_bytes(random_graphs, SMALL)
    device = EmulatedDevice(memory=small)
    backend = emulated_backend(random_graphs, limits=SMALL, device=device)
    ids = random_graphs.special_ids
    found = search(backend, SOURCES, OPTIONS, ids)
    assert found == search(random_graphs.backend(), SOURCES, OPTIONS, ids)
    assert "batches of 1 in profile 1: going on with the others" in caplog.text


def test_no_memory_at_all_is_an_error(random_graphs: Graphs) -> None:
    backend = emulated_backend(random_graphs, limits=SMALL, device=EmulatedDevice(memory=10_000))
    for count in (1, 4):
        with pytest.raises(DeviceMemoryError, match=r"emulated:0 has no .* left"):
            search(backend, SOURCES[:count], OPTIONS, random_graphs.special_ids)


def test_no_memory_in_the_only_profile_that_fits_is_an_error(random_graphs: Graphs) -> None:
    device = EmulatedDevice(memory=10_000)
    device.use()
    pair = emulated_pair(random_graphs, device, "fp32", SMALL)
    object.__setattr__(pair.decoder_step.profiles[0]["token_ids"], "max", (1, 1))
    backend = TensorRtBackend(pair, random_graphs.special_ids, device)
    with pytest.raises(
        DeviceMemoryError,
        match="emulated:0 has no memory for one sentence of beam 3, source 4, target 8; free some",
    ):
        begin(backend, beam_size=3)


def test_a_context_that_is_not_made_is_an_error(
    random_graphs: Graphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EmulatedEngine, "create_execution_context", lambda *_: None)
    device = EmulatedDevice()
    backend = emulated_backend(random_graphs, limits=SMALL, device=device)
    with pytest.raises(
        DeviceMemoryError,
        match=r"TensorRT made no execution context for the encoder engine \(it does not say why\)",
    ):
        begin(backend)
    assert device.used() == 0


def test_limits_are_named(random_graphs: Graphs) -> None:
    backend = emulated_backend(random_graphs, limits=SMALL)
    ids, mask = np.full((1, 17), 5, dtype=np.int32), np.ones((1, 17), dtype=np.bool_)
    for asked in (
        (ids, mask, 1, 8),
        (ids[:, :4], mask[:, :4], 4, 8),
        (ids[:, :4], mask[:, :4], 1, 25),
    ):
        with pytest.raises(
            BackendError,
            match=r"beam \d, source \d+, target \d+ asked for; the engines were built for batch 4, "
            r"beam 3, source 16, target 24: .*--max-beam, --max-source, --max-target",
        ):
            backend.begin(*asked)
    state = begin(backend, length=1)
    first_step(backend, state)
    with pytest.raises(
        BackendError, match=r"step 2 after begin\(max_length=1\); begin with a larger max_length"
    ):
        first_step(backend, state)


@pytest.mark.parametrize("length", [1, 7, 8, 9, 15, 16])
def test_sources_up_to_the_limit_run(random_graphs: Graphs, length: int) -> None:
    """Rounding S up never leaves the profile, which need not be a multiple of it."""
    limits = EngineLimits(max_batch=2, max_beam=1, max_source=15, max_target=8)
    backend = emulated_backend(random_graphs, limits=limits if length < 16 else SMALL)
    ids = np.full((1, length), 5, dtype=np.int32)
    state = backend.begin(ids, np.ones((1, length), dtype=np.bool_), 1, 4)
    assert np.isfinite(first_step(backend, state).scores).all()


def test_closing_twice_does_no_harm(random_graphs: Graphs) -> None:
    device = EmulatedDevice()
    backend = emulated_backend(random_graphs, limits=SMALL, device=device)
    state = begin(backend, 2)
    backend.close()
    backend.close()
    assert device.used() > 0  # the state's
    closed = "the tensorrt backend is closed; open it again"
    with pytest.raises(BackendError, match=closed):
        first_step(backend, state)
    with pytest.raises(BackendError, match=closed):
        backend.keep(state, np.array([0], dtype=np.int32))
    with pytest.raises(BackendError, match=closed):
        begin(backend)
    assert backend.capabilities.name == "tensorrt"
    del state
    gc.collect()
    assert device.used() == 0


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("set_tensor_address", "the encoder engine took no address for src_ids"),
        ("set_input_shape", r"the encoder engine took no shape \(1, 8\) for src_ids"),
        ("set_optimization_profile_async", "the encoder engine did not take profile 0"),
        ("execute_async_v3", "the encoder engine did not run"),
    ],
)
def test_what_tensorrt_refuses_is_told(
    random_graphs: Graphs, monkeypatch: pytest.MonkeyPatch, method: str, words: str
) -> None:
    monkeypatch.setattr(EmulatedContext, method, lambda *_: False)
    backend = emulated_backend(random_graphs, limits=SMALL)
    with pytest.raises(
        BackendError,
        match=rf"{words}, with profile 0 \(batch 1, beam 3, source 16, target 24\); build the",
    ):
        begin(backend)


def test_missing_shapes_are_told(random_graphs: Graphs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EmulatedContext, "infer_shapes", lambda _: ["src_mask"])
    with pytest.raises(BackendError, match="the encoder engine still lacks src_mask, with profile"):
        begin(emulated_backend(random_graphs, limits=SMALL))


def test_shapes_that_can_not_be_are_told(
    random_graphs: Graphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_self: EmulatedContext) -> None:
        raise RuntimeError("dimensions do not broadcast")

    monkeypatch.setattr(EmulatedContext, "infer_shapes", fail)
    with pytest.raises(BackendError, match="can't have these shapes: dimensions do not broadcast"):
        begin(emulated_backend(random_graphs, limits=SMALL))


def test_tensorrt_rtx_compiles_no_kernels_for_the_shapes_of_a_step(random_graphs: Graphs) -> None:
    device = EmulatedDevice()
    device.use()
    pair = emulated_pair(random_graphs, device, "fp32", SMALL, EmulatedTensorRtRtx(device))
    backend = TensorRtBackend(pair, random_graphs.special_ids, device)
    found = search(backend, SOURCES, OPTIONS, random_graphs.special_ids)
    assert found == search(random_graphs.backend(), SOURCES, OPTIONS, random_graphs.special_ids)
    strategies = [
        config.dynamic_shapes_kernel_specialization_strategy.name
        for config in pair.decoder_step.configs
    ]
    assert strategies == ["NONE"]
    assert pair.encoder.configs == []


def test_outputs_of_another_size_are_told(
    random_graphs: Graphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EmulatedContext, "get_tensor_shape", lambda *_: (1, 4, 9, 8))
    with pytest.raises(
        BackendError, match=r"gives cross_k.0 as \(1, 4, 9, 8\), expected \(1, 4, 8, 8\)"
    ):
        begin(emulated_backend(random_graphs, limits=SMALL))


def test_engines_of_another_graph_are_told(
    random_graphs: Graphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = EmulatedDevice()
    pair = emulated_pair(random_graphs, device, "fp16", SMALL)
    step, rest = pair.decoder_step, {"trt": pair.trt, "model": pair.model}
    with pytest.raises(
        EngineError,
        match=r"the encoder engine has OUTPUT HALF DEVICE for cross_k.0, expected OUTPUT FLOAT "
        "DEVICE: it was built from another graph; build the engines again",
    ):
        EnginePair(encoder=pair.encoder, decoder_step=step, precision="fp32", **rest)
    pair.encoder.tensors = pair.encoder.inputs
    with pytest.raises(BackendError, match=r"the encoder engine has nothing for cross_k.0"):
        EnginePair(encoder=pair.encoder, decoder_step=step, precision="fp16", **rest)
    monkeypatch.setattr(EmulatedEngine, "get_tensor_location", lambda *_: TensorLocation.HOST)
    with pytest.raises(
        BackendError, match="has INPUT INT32 HOST for src_ids, expected INPUT INT32"
    ):
        emulated_pair(random_graphs, device, "fp16", SMALL)


def test_profiles_that_do_not_begin_at_nothing_are_told(random_graphs: Graphs) -> None:
    device = EmulatedDevice()
    pair = emulated_pair(random_graphs, device, "fp32", SMALL)
    dims = pair.decoder_step.profiles[1]["self_k.0"]
    object.__setattr__(dims, "min", (1, 4, 1, 8))
    with pytest.raises(
        BackendError,
        match=r"profile 1 of an engine begins at \(1, 4, 1, 8\) for self_k.0, expected",
    ):
        pair.capacities()
    pair = emulated_pair(random_graphs, device, "fp32", SMALL)
    pair.encoder.profiles = pair.encoder.profiles[:1]
    with pytest.raises(BackendError, match="the engines have 1 and 2 profiles, expected the same"):
        pair.capacities()


def test_what_is_beyond_the_engines_runs_on_onnxruntime(
    random_graphs: Graphs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A source, a target, and a beam that the profiles don't take, among others that they do."""
    bundle = write_graph_bundle(random_graphs, tmp_path / "bundle")
    backend = emulated_backend(random_graphs, limits=SMALL).with_fallback(bundle, threads=1)
    assert (backend.capabilities.max_source, backend.capabilities.max_target) == (64, 64)
    sources = [SOURCES[0], [5] * 30 + [3], SOURCES[1]]
    ids = random_graphs.special_ids
    for beam_size, length in ((2, 12), (2, 40), (5, 8)):
        options = SearchOptions(beam_size=beam_size, num_hypotheses=2, max_length=length)
        found = search(backend, sources, options, ids)
        assert found == search(random_graphs.backend(), sources, options, ids)
    assert "source 31 is beyond the 16 that the tensorrt engines were built for" in caplog.text
    assert "it runs on onnxruntime; build them with --max-source to keep it on" in caplog.text
    assert "target 25 is beyond the 24" in caplog.text
    assert "beam 5 is beyond the 3" in caplog.text
    backend.close()


def test_without_tensorrt_the_extra_is_named(
    random_graphs: Graphs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.tensorrt_check.is_installed", lambda _name: False)
    bundle = write_graph_bundle(random_graphs, tmp_path / "bundle")
    with pytest.raises(MissingExtraError, match=r"pip install -e '\.\[trt\]'"):
        TensorRtBackend.open(bundle)


@pytest.fixture
def emulated_machine(monkeypatch: pytest.MonkeyPatch) -> EmulatedDevice:
    """A machine with TensorRT and a GPU, as far as everything above them can tell."""
    device = EmulatedDevice()
    library = emulated_library(device)
    for module in ("runtime.tensorrt_check", "runtime.tensorrt_backend"):
        monkeypatch.setattr(f"{module}.check_tensorrt", lambda: library)
    monkeypatch.setattr("runtime.tensorrt_backend.CudaDevice", lambda: device)
    return device


@pytest.mark.parametrize("name", ["auto", "tensorrt"])
def test_the_registry_opens_it(
    random_graphs: Graphs, tmp_path: Path, emulated_machine: EmulatedDevice, name: str
) -> None:
    bundle = write_graph_bundle(random_graphs, tmp_path / "bundle")
    for role in ROLES:
        write_emulated_engine(bundle, random_graphs, role, limits=SMALL)
    backend = open_backend(bundle, name)
    found = backend.capabilities
    assert (found.name, found.device, found.precision) == ("tensorrt", "emulated:0", "fp16")
    assert found.detail["tensorrt"] == "11.4"
    ids = random_graphs.special_ids
    results = search(backend, SOURCES, OPTIONS, ids)
    expected = search(random_graphs.backend(), SOURCES, OPTIONS, ids)
    assert [r[0].score for r in results] == pytest.approx([e[0].score for e in expected], abs=1e-2)
    backend.close()


def test_without_engines_and_builds_onnxruntime_goes_on(
    random_graphs: Graphs,
    tmp_path: Path,
    emulated_machine: EmulatedDevice,
    caplog: pytest.LogCaptureFixture,
) -> None:
    bundle = write_graph_bundle(random_graphs, tmp_path / "bundle")
    backend = open_backend(bundle, "tensorrt", build=False)
    assert backend.capabilities.name == "onnxruntime"
    assert "no encoder engine in fp16 has been built for" in caplog.text
    assert "nothing is built (--no-build): going on with ONNX Runtime" in caplog.text
