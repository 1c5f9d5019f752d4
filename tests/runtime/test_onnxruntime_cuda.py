"""What the backend does on a GPU: here with the CPU in the GPU's place, and on a real one (gpu).

In the GPU's place stands a placement that is not the host, so the code is the GPU's: tensors are
copied to it, outputs are asked for there, rows are picked there. Only its address is the host's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("torch")

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as ort_c
from support.bundles import Graphs

from runtime import onnxruntime_backend, ort_session
from runtime.errors import BackendError, DeviceMemoryError, OptionError, UnavailableError
from runtime.manifest import Precision
from runtime.onnxruntime_backend import OnnxRuntimeBackend
from runtime.options import SearchOptions
from runtime.placement import HOST, OrtTensor, Placement, check_cuda, place
from runtime.search import pad_sources, search

SOURCES = [[5, 9, 30, 3], [77, 3], [8, 8, 8, 60, 61, 62, 200, 3], [40, 41, 42, 3], [9, 3]]


def host_device() -> Any:
    """An object of its own, by which the tests tell it from the host's."""
    return ort_c.OrtDevice(ort_c.OrtDevice.cpu(), ort_c.OrtDevice.default_memory(), 0)


@dataclass(frozen=True, kw_only=True)
class GpuInName(Placement):
    """The CPU as a GPU. sent: every array that was copied to it; their memory is kept here."""

    device: Any = field(default_factory=host_device)
    sent: list[npt.NDArray[Any]] = field(default_factory=list)

    def tensor(self, array: npt.NDArray[Any]) -> OrtTensor:
        self.sent.append(array.copy())
        return super().tensor(self.sent[-1])


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> GpuInName:
    found = GpuInName(name="cuda:0", provider="CPUExecutionProvider")
    # The CPU's own backends, which the tests compare with, are opened as ever.
    monkeypatch.setattr(
        onnxruntime_backend, "place", lambda name: found if name == "cuda" else place(name)
    )
    return found


def opened(graphs: Graphs, precision: Precision, provider: str = "cuda") -> OnnxRuntimeBackend:
    return OnnxRuntimeBackend(
        graphs.path("encoder", precision),
        graphs.path("decoder_step", precision),
        graphs.spec,
        graphs.special_ids,
        precision,
        1,
        provider=provider,
    )


@pytest.mark.parametrize("beam_size", [1, 2, 5, 8])
def test_searches_are_those_of_the_cpu(
    random_graphs: Graphs, placed: GpuInName, beam_size: int
) -> None:
    """Bit for bit; sentences leave one after the other, since 2S + 20 bounds each."""
    options = SearchOptions(beam_size=beam_size, num_hypotheses=beam_size)
    ids = random_graphs.special_ids
    found = search(opened(random_graphs, "fp32"), SOURCES, options, ids)
    assert found == search(random_graphs.backend(), SOURCES, options, ids)
    assert len({len(hypotheses[0].token_ids) for hypotheses in found}) > 1


def test_sampling_is_that_of_the_cpu(random_graphs: Graphs, placed: GpuInName) -> None:
    """It looks at log_probs, which come to the host."""
    options = SearchOptions(sampling=True, num_hypotheses=3, seed=5, max_length=12)
    ids = random_graphs.special_ids
    found = search(opened(random_graphs, "fp32"), SOURCES, options, ids)
    assert found == search(random_graphs.backend(), SOURCES, options, ids)


def test_half_precision(random_graphs: Graphs, placed: GpuInName) -> None:
    options = SearchOptions(beam_size=3, max_length=10)
    backend = opened(random_graphs, "fp16")
    found = search(backend, SOURCES, options, random_graphs.special_ids)
    alone = [search(backend, [source], options, random_graphs.special_ids)[0] for source in SOURCES]
    for one, other in zip(found, alone, strict=True):
        assert one[0].score == pytest.approx(other[0].score, abs=0.05)
    assert backend.capabilities.device == "cuda:0"
    assert backend.capabilities.precision == "fp16"


def test_only_the_candidates_come_back(
    random_graphs: Graphs, placed: GpuInName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Caches, cross keys and values and kept rows are asked for on the device, the rest here."""
    asked: list[dict[str, bool]] = []
    run = ort_session._run

    def recording(*arguments: Any) -> list[OrtTensor]:
        outputs, devices = arguments[-2:]
        assert len(outputs) == len(devices)
        for device in devices:
            assert device is placed.device or device is HOST
        asked.append({n: d is HOST for n, d in zip(outputs, devices, strict=True)})
        return run(*arguments)

    monkeypatch.setattr(ort_session, "_run", recording)
    backend = opened(random_graphs, "fp32")
    state = backend.begin(*pad_sources(SOURCES, 0), 2, 8)
    token_ids = np.full((len(SOURCES), 2), 2, dtype=np.int32)
    sums = np.zeros((len(SOURCES), 2), dtype=np.float32)
    backend.step(
        state, token_ids, np.zeros_like(token_ids), sums, ban_eos=True, need_log_probs=True
    )
    backend.keep(state, np.array([0, 3], dtype=np.int32))
    encoder, step, kept = asked
    assert not any(encoder.values())
    assert [name for name, on_host in step.items() if on_host] == [
        "scores",
        "candidate_ids",
        "parents",
        "log_probs",
    ]
    assert len(step) == 4 + 2 * random_graphs.spec.decoder_layers
    assert not any(kept.values())
    assert next(iter(kept)) == "kept.src_mask"
    # Of all that a search sends, only the mask stays there: the rest goes along with each call.
    (mask,) = placed.sent
    assert mask.dtype == np.bool_


def test_kept_rows_are_the_sentences_asked_for(random_graphs: Graphs, placed: GpuInName) -> None:
    there, here = opened(random_graphs, "fp32"), random_graphs.backend()
    kept = np.array([1, 2, 4], dtype=np.int32)
    states: Any = [
        backend.keep(backend.begin(*pad_sources(SOURCES, 0), 2, 8), kept)
        for backend in (there, here)
    ]
    for one, other in zip(
        [states[0].src_mask, *states[0].cross], [states[1].src_mask, *states[1].cross], strict=True
    ):
        assert np.array_equal(one.numpy(), other.numpy())
    assert np.array_equal(states[0].first_rows, states[1].first_rows)


@pytest.mark.parametrize("precision", ["int8", "int8_fp16"])
def test_int8_is_for_tensorrt(random_graphs: Graphs, precision: Precision) -> None:
    with pytest.raises(
        OptionError,
        match=rf"precision is {precision}; ONNX Runtime's CUDA provider fuses no INT8 MatMuls .*"
        "take the tensorrt backend",
    ):
        opened(random_graphs, precision)


@pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(),
    reason="this onnxruntime has the CUDA provider",
)
def test_a_wheel_without_cuda_is_told_before_graphs_are_read(tmp_path: Path) -> None:
    absent: Any = tmp_path / "absent.onnx"
    with pytest.raises(UnavailableError, match="has no CUDA provider"):
        OnnxRuntimeBackend(absent, absent, *([None] * 2), "fp16", 1, provider="cuda")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("CUDA failure 2: out of memory ; GPU=0", DeviceMemoryError),
        ("BFCArena::AllocateRawInternal Failed to allocate memory for", DeviceMemoryError),
        ("CUDA failure 700: an illegal memory access was encountered", BackendError),
    ],
)
def test_memory_that_runs_out_is_an_error_of_its_own(
    text: str, kind: type[BackendError], random_graphs: Graphs, placed: GpuInName
) -> None:
    backend = opened(random_graphs, "fp32")
    assert backend._graphs is not None

    class Failing:
        def run_with_ortvaluevector(self, *arguments: Any) -> None:
            raise RuntimeError(text)

    backend._graphs["encoder"]._session = Failing()
    with pytest.raises(
        BackendError, match=r"failed in encoder.fp32.onnx .*--batch-tokens"
    ) as found:
        backend.begin(*pad_sources(SOURCES, 0), 2, 8)
    assert type(found.value) is kind


@pytest.fixture
def gpu() -> None:
    try:
        check_cuda()
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.gpu
@pytest.mark.parametrize("beam_size", [1, 4, 8])
def test_onnxruntime_cuda_matches_cpu_searches(
    random_graphs: Graphs, gpu: None, beam_size: int
) -> None:
    options = SearchOptions(beam_size=beam_size, num_hypotheses=beam_size, max_length=16)
    ids = random_graphs.special_ids
    found = search(opened(random_graphs, "fp32"), SOURCES, options, ids)
    expected = search(random_graphs.backend(), SOURCES, options, ids)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(
            [hypothesis.score for hypothesis in one],
            [hypothesis.score for hypothesis in other],
            atol=1e-4,
        )


@pytest.mark.gpu
def test_onnxruntime_cuda_half_matches_cpu(random_graphs: Graphs, gpu: None) -> None:
    options = SearchOptions(beam_size=4, max_length=16)
    ids = random_graphs.special_ids
    found = search(opened(random_graphs, "fp16"), SOURCES, options, ids)
    expected = search(random_graphs.backend(), SOURCES, options, ids)
    for one, other in zip(found, expected, strict=True):
        assert one[0].score == pytest.approx(other[0].score, abs=0.05)


@pytest.mark.gpu
def test_onnxruntime_cuda_caches_stay_on_the_gpu(random_graphs: Graphs, gpu: None) -> None:
    backend = opened(random_graphs, "fp16")
    state: Any = backend.begin(*pad_sources(SOURCES, 0), 2, 8)
    token_ids = np.full((len(SOURCES), 2), 2, dtype=np.int32)
    sums = np.zeros((len(SOURCES), 2), dtype=np.float32)
    backend.step(state, token_ids, np.zeros_like(token_ids), sums, ban_eos=True)
    state = backend.keep(state, np.array([0, 3], dtype=np.int32))
    for tensor in (state.src_mask, *state.cross, *state.past):
        assert tensor.device_name().lower() == "cuda"
