"""The ONNX Runtime backend: states, threads, limits, observers, and what is said when it fails."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("torch")

import onnxruntime
from support.bundles import Graphs

from runtime import onnxruntime_backend
from runtime.backend import Candidates
from runtime.bundle import Bundle, finish_manifest, write_bundle
from runtime.errors import BackendError, BundleError, OptionError
from runtime.graph_contract import INT8_DISABLED_OPTIMIZERS
from runtime.manifest import GraphSpec, Manifest, TextSpec
from runtime.onnxruntime_backend import OnnxRuntimeBackend
from runtime.options import SearchOptions
from runtime.search import pad_sources, search

SOURCES = [[5, 9, 30, 3], [77, 3], [8, 8, 8, 60, 61, 62, 200, 3], [40, 41, 42, 3]]
ONE = np.zeros((1, 1), dtype=np.int32)


def first_step(backend: OnnxRuntimeBackend, state: Any) -> Candidates:
    return backend.step(state, ONE + 2, ONE, np.zeros((1, 1), dtype=np.float32), ban_eos=False)


def begin(backend: OnnxRuntimeBackend, *, max_length: int = 8) -> Any:
    return backend.begin(*pad_sources(SOURCES[:1], 0), 1, max_length)


def test_capabilities_tell_what_runs(random_graphs: Graphs) -> None:
    found = random_graphs.open("int8", threads=3).capabilities
    assert (found.name, found.device, found.precision) == ("onnxruntime", "cpu", "int8")
    assert found.vocab_size == random_graphs.spec.vocab_size
    assert (found.max_source, found.max_target) == (64, 64)
    assert found.detail == {"onnxruntime": onnxruntime.__version__, "threads": 3}


def test_threads_default_to_physical_cores(
    random_graphs: Graphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnxruntime_backend.cores, "physical_cores", lambda: 7)
    assert random_graphs.open(threads=None).capabilities.detail["threads"] == 7


def test_log_probs_come_only_where_asked_for(random_graphs: Graphs) -> None:
    backend = random_graphs.backend()
    state = begin(backend)
    assert first_step(backend, state).log_probs is None
    found = backend.step(
        state,
        ONE + 9,
        ONE,
        np.zeros((1, 1), dtype=np.float32),
        ban_eos=False,
        need_log_probs=True,
    )
    assert found.log_probs is not None
    assert found.log_probs.shape == (1, 1, random_graphs.spec.vocab_size)
    assert np.exp(found.log_probs).sum() == pytest.approx(1, abs=1e-4)
    assert found.token_ids.dtype == found.parents.dtype == np.int32
    assert found.scores.dtype == np.float32


def test_sentences_leave_one_after_the_other(random_graphs: Graphs) -> None:
    """Rows that stay compute what they would have computed alone, bit for bit."""
    backend = random_graphs.backend()
    beam_size = 2
    states = [backend.begin(*pad_sources([source], 0), beam_size, 12) for source in SOURCES]
    together = backend.begin(*pad_sources(SOURCES, 0), beam_size, 12)
    live = list(range(len(SOURCES)))
    shape = (len(SOURCES), beam_size)
    token_ids = np.full(shape, 2, dtype=np.int32)
    parents = np.zeros(shape, dtype=np.int32)
    sums = np.zeros(shape, dtype=np.float32)
    for leaving in (None, 1, None, 2, 0):
        if leaving is not None:
            going = np.flatnonzero(np.array(live) != leaving).astype(np.int32)
            together = backend.keep(together, going)
            live.remove(leaving)
            token_ids, parents, sums = token_ids[going], parents[going], sums[going]
        found = backend.step(together, token_ids, parents, sums, ban_eos=False)
        for row, sentence in enumerate(live):
            alone = backend.step(
                states[sentence],
                token_ids[row : row + 1],
                parents[row : row + 1],
                sums[row : row + 1],
                ban_eos=False,
            )
            assert np.array_equal(found.scores[row : row + 1], alone.scores)
            assert np.array_equal(found.token_ids[row : row + 1], alone.token_ids)
        token_ids = np.ascontiguousarray(found.token_ids[:, :beam_size])
        parents = np.ascontiguousarray(found.parents[:, beam_size - 1 : 2 * beam_size - 1])
        sums = np.ascontiguousarray(found.scores[:, :beam_size])


def test_keeping_all_changes_nothing(random_graphs: Graphs) -> None:
    backend = random_graphs.backend()
    state = begin(backend)
    assert backend.keep(state, np.array([0], dtype=np.int32)) is state


def test_two_threads_share_a_backend(random_graphs: Graphs) -> None:
    backend = random_graphs.backend()
    options = SearchOptions(beam_size=3, num_hypotheses=3, max_length=20)
    batches = [SOURCES, SOURCES[::-1], SOURCES[1:3], [[9, 9, 3]]]
    expected = [search(backend, batch, options, random_graphs.special_ids) for batch in batches]
    failures: list[object] = []

    def work(offset: int) -> None:
        for turn in range(12):
            index = (turn + offset) % len(batches)
            found = search(backend, batches[index], options, random_graphs.special_ids)
            if found != expected[index]:
                failures.append((offset, turn))

    threads = [threading.Thread(target=work, args=(offset,)) for offset in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def with_extra_output(path: Path, name: str, target: Path) -> Path:
    model = onnx.load(path)
    model.graph.output.append(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
    )
    onnx.save(model, target)
    return target


def test_observers_see_extra_outputs(random_graphs: Graphs, tmp_path: Path) -> None:
    name = "decoder.layers.1.ffn.relu:0"
    step = with_extra_output(random_graphs.path("decoder_step"), name, tmp_path / "step.onnx")
    encoder = with_extra_output(
        random_graphs.path("encoder"), "encoder.embedding.add:0", tmp_path / "encoder.onnx"
    )
    seen: list[tuple[str, tuple[int, ...]]] = []
    parts = (encoder, step, random_graphs.spec, random_graphs.special_ids, "fp32", 1)
    backend = OnnxRuntimeBackend(*parts, lambda name, value: seen.append((name, value.shape)))
    ids, mask = pad_sources(SOURCES[:2], 0)
    state = backend.begin(ids[:, :3], mask[:, :3], 2, 8)
    token_ids = np.full((2, 2), 2, dtype=np.int32)
    sums = np.zeros((2, 2), dtype=np.float32)
    found = backend.step(state, token_ids, np.zeros_like(token_ids), sums, ban_eos=True)
    assert seen == [("encoder.embedding.add:0", (2, 3, 32)), (name, (4, 64))]
    unobserved = OnnxRuntimeBackend(*parts)
    state = unobserved.begin(ids[:, :3], mask[:, :3], 2, 8)
    other = unobserved.step(state, token_ids, np.zeros_like(token_ids), sums, ban_eos=True)
    np.testing.assert_allclose(other.scores, found.scores, atol=1e-5)
    assert len(seen) == 2


def test_ban_eos_makes_eos_unreachable(random_graphs: Graphs) -> None:
    backend = random_graphs.backend()
    for ban_eos in (True, False):
        found = backend.step(
            begin(backend),
            ONE + 2,
            ONE,
            np.zeros((1, 1), dtype=np.float32),
            ban_eos=ban_eos,
            need_log_probs=True,
        )
        assert found.log_probs is not None
        assert (found.log_probs[0, 0, 3] < -1e8) == ban_eos
        assert (found.log_probs[0, 0, [0, 1, 2]] < -1e8).all()
        assert (found.log_probs[0, 0, 4:300] > -1e8).all()


@pytest.mark.parametrize(
    ("precision", "disabled"), [("fp32", None), ("int8", list(INT8_DISABLED_OPTIMIZERS))]
)
def test_what_undoes_int8_is_off(
    random_graphs: Graphs,
    monkeypatch: pytest.MonkeyPatch,
    precision: Any,
    disabled: list[str] | None,
) -> None:
    """calibration.fused counts what would become of them."""
    seen: list[Any] = []

    class Recording(onnxruntime.InferenceSession):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            seen.append(options["disabled_optimizers"])
            super().__init__(*arguments, **options)

    monkeypatch.setattr(onnxruntime, "InferenceSession", Recording)
    random_graphs.open(precision)
    assert seen == [disabled, disabled]


def test_limits_are_named(random_graphs: Graphs) -> None:
    backend = random_graphs.backend()
    ids = np.full((1, 65), 5, dtype=np.int32)
    with pytest.raises(
        BackendError, match="65 source tokens asked for; the model has positions for 64: shorten"
    ):
        backend.begin(ids, np.ones((1, 65), dtype=np.bool_), 1, 8)
    with pytest.raises(
        BackendError, match=r"65 target tokens \(max_length\) asked for; .* lower max_length"
    ):
        begin(backend, max_length=65)
    state = begin(backend, max_length=1)
    first_step(backend, state)
    with pytest.raises(
        BackendError, match=r"step 2 after begin\(max_length=1\); begin with a larger max_length"
    ):
        first_step(backend, state)


@pytest.mark.parametrize("length", [1, 3, 4, 61, 63, 64])
def test_sources_up_to_the_limit_run(random_graphs: Graphs, length: int) -> None:
    """Rounding S up never leaves the model's positions."""
    backend = random_graphs.backend()
    ids = np.full((1, length), 5, dtype=np.int32)
    state: Any = backend.begin(ids, np.ones((1, length), dtype=np.bool_), 1, 4)
    assert state.cross[0].shape()[2] in (length, -(-length // 4) * 4)
    assert np.isfinite(first_step(backend, state).scores).all()


def test_closing_twice_does_no_harm(random_graphs: Graphs) -> None:
    backend = random_graphs.open()
    state = begin(backend)
    backend.close()
    backend.close()
    with pytest.raises(BackendError, match="the onnxruntime backend is closed; open it again"):
        first_step(backend, state)


@pytest.mark.parametrize("content", [b"", b"no graph at all", None], ids=["empty", "text", "cut"])
def test_a_damaged_graph_is_named(
    random_graphs: Graphs, tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "decoder_step.fp32.onnx"
    whole = random_graphs.path("decoder_step").read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(
        BackendError,
        match=r"ONNX Runtime [\d.]+ can't load decoder_step.fp32.onnx \(.*\); the file is damaged",
    ):
        OnnxRuntimeBackend(
            random_graphs.path("encoder"), path, random_graphs.spec, random_graphs.special_ids
        )


def test_graphs_of_another_kind_are_named(random_graphs: Graphs) -> None:
    encoder, step = random_graphs.path("encoder"), random_graphs.path("decoder_step")
    rest = (random_graphs.spec, random_graphs.special_ids)
    with pytest.raises(
        BackendError, match=r"encoder.fp32.onnx has nothing for token_ids, expected tensor\(int32\)"
    ):
        OnnxRuntimeBackend(encoder, encoder, *rest)
    with pytest.raises(
        BackendError,
        match=r"encoder.fp32.onnx has tensor\(float\) for cross_k.0, expected tensor\(float16\): "
        "it is no encoder graph in fp16 of this version; build the bundle again",
    ):
        OnnxRuntimeBackend(encoder, step, *rest, "fp16")


def test_a_failing_run_is_told_in_plain_words(
    random_graphs: Graphs, capfd: pytest.CaptureFixture[str]
) -> None:
    """Once: ONNX Runtime's own log stays quiet."""
    backend = random_graphs.backend()
    state = begin(backend)
    with pytest.raises(
        BackendError,
        match=r"ONNX Runtime [\d.]+ failed in decoder_step.fp32.onnx \(.*\); if memory",
    ):
        backend.step(state, ONE + 10_000, ONE, np.zeros((1, 1), dtype=np.float32), ban_eos=False)
    assert capfd.readouterr().err == ""


def test_options_that_cannot_be(random_graphs: Graphs) -> None:
    parts = (random_graphs.path("encoder"), random_graphs.path("decoder_step"))
    rest = (random_graphs.spec, random_graphs.special_ids)
    with pytest.raises(OptionError, match="provider is 'tpu'; expected cpu"):
        OnnxRuntimeBackend(*parts, *rest, provider="tpu")
    with pytest.raises(OptionError, match="threads is 0; expected a whole number of at least 1"):
        OnnxRuntimeBackend(*parts, *rest, threads=0)


def write_bundle_of(graphs: Graphs, path: Path) -> Path:
    specs = [
        GraphSpec(
            role=role,
            precision="int8",
            variant="portable",
            files=(graphs.path(role, "int8").name,),
            inputs=(),
            outputs=(),
            opset=20,
        )
        for role in ("encoder", "decoder_step")
    ]
    manifest = Manifest(
        model=graphs.spec,
        special_ids=graphs.special_ids,
        text=TextSpec(source_tokenizer="t", target_tokenizer="t", normalizer_version=1),
        graphs=tuple(specs),
        files={},
    )
    with write_bundle(path) as directory:
        (directory / "t").write_bytes(b"")
        for spec in specs:
            source = graphs.path(spec.role, "int8")
            (directory / source.name).write_bytes(source.read_bytes())
        finish_manifest(directory, manifest)
    return path


def test_a_bundle_opens_in_a_precision_it_has(random_graphs: Graphs, tmp_path: Path) -> None:
    bundle = Bundle.open(write_bundle_of(random_graphs, tmp_path / "bundle"))
    backend = OnnxRuntimeBackend.open(bundle, precision="int8", threads=1)
    options = SearchOptions(max_length=10)
    found = search(backend, SOURCES, options, random_graphs.special_ids)
    assert found == search(
        random_graphs.backend("int8"), SOURCES, options, random_graphs.special_ids
    )
    with pytest.raises(BundleError, match="holds no portable encoder graph in fp32; it has: int8"):
        OnnxRuntimeBackend.open(bundle)
    with pytest.raises(BundleError, match="holds no cpu_static encoder graph in int8"):
        OnnxRuntimeBackend.open(bundle, precision="int8", variant="cpu_static")
