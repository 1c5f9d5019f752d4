"""The TensorRT backend on a real GPU: engines built there, whole searches, memory, threads.

What tests/parity/test_engine_runner.py does on the emulator. Skipped where TensorRT can't run;
`benchmarks/gpu.sh` runs these and says what it could not run.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from support.bundles import Graphs
from support.tiny_model import trained_corpus

from export.build import BuildSettings, build
from export.parity import check_parity
from model.checkpoint import load_checkpoint
from model.eager import EagerBackend
from runtime.backend import Backend
from runtime.bundle import Bundle
from runtime.engines.engine import ENGINE_PRECISIONS, EnginePrecision
from runtime.engines.store import ROLES, places
from runtime.errors import LeanseqError
from runtime.manifest import SpecialTokenIds
from runtime.options import SearchOptions
from runtime.search import search
from runtime.tensorrt_backend import TensorRtBackend
from runtime.tensorrt_check import check_tensorrt
from runtime.tokenizer import Tokenizer
from runtime.translator import Translator


def why_not() -> str:
    """What keeps TensorRT from running here; empty if nothing does."""
    try:
        check_tensorrt()
    except LeanseqError as error:
        return str(error)
    return ""


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]


@pytest.fixture(scope="module")
def bundle(trained_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """All precisions of the trained model; engines come into it as they are needed."""
    out = tmp_path_factory.mktemp("gpu") / "bundle"
    build(BuildSettings(int8=True, checkpoint=trained_checkpoint, out=out))
    return Bundle.open(out)


@pytest.fixture(scope="module")
def eager(trained_checkpoint: Path) -> EagerBackend:
    return EagerBackend(load_checkpoint(trained_checkpoint).model)


@pytest.fixture(scope="module")
def sources(tokenizer: Tokenizer) -> list[list[int]]:
    corpus = trained_corpus()
    lines = [source for split in ("test", "valid", "train") for source, _ in corpus.pairs(split)]
    return [tokenizer.encode_source(line) for line in lines[:528]]


@pytest.fixture(scope="module", params=ENGINE_PRECISIONS)
def backend(bundle: Bundle, request: pytest.FixtureRequest) -> Iterator[Backend]:
    precision: EnginePrecision = request.param
    opened = TensorRtBackend.open(bundle, precision=precision)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def special_ids(bundle: Bundle) -> SpecialTokenIds:
    return bundle.manifest.special_ids


@pytest.mark.parametrize("beam_size", range(1, 9))
def test_tensorrt_matches_eager_searches(
    backend: Backend,
    eager: EagerBackend,
    sources: list[list[int]],
    special_ids: SpecialTokenIds,
    beam_size: int,
) -> None:
    options = SearchOptions(beam_size=beam_size)
    some = sources if beam_size == 4 else sources[:150]
    report = check_parity(eager, backend, some, special_ids, options)
    print(f"{report.precision}, beam {beam_size}: {report.summary}")
    report.require()


@pytest.mark.parametrize("beam_size", [1, 4, 8])
def test_tensorrt_rows_are_nearly_the_same_at_every_batch_size(
    backend: Backend, sources: list[list[int]], special_ids: SpecialTokenIds, beam_size: int
) -> None:
    """Batches of 1, 2, ... 32. Kernels may differ with the batch: a tie may fall the other way."""
    options = SearchOptions(beam_size=beam_size)
    alone = [search(backend, [source], options, special_ids)[0][0] for source in sources]
    start, differing = 0, 0
    for size in range(1, 33):
        batch = sources[start : start + size]
        for place, found in enumerate(search(backend, batch, options, special_ids)):
            differing += found[0].token_ids != alone[start + place].token_ids
        start += size
    print(f"beam {beam_size}: {differing} of {start} differ from what they are alone")
    assert differing <= start // 50


def test_engines_are_in_the_bundle_and_used_again(bundle: Bundle, backend: Backend) -> None:
    precision = backend.capabilities.precision
    found = sorted(path.name for path in places(bundle)[0].glob(f"*.{precision}.*"))
    assert [name.split(".")[0] for name in found] == sorted(ROLES)
    TensorRtBackend.open(bundle, precision=precision, build=False).close()  # type: ignore[arg-type]


def test_three_threads_share_a_backend(
    backend: Backend, sources: list[list[int]], special_ids: SpecialTokenIds
) -> None:
    batches = [sources[:1], sources[1:9], sources[9:41]]
    options = SearchOptions()
    expected = [search(backend, batch, options, special_ids) for batch in batches]
    failures: list[object] = []

    def work(offset: int) -> None:
        for turn in range(9):
            index = (turn + offset) % len(batches)
            try:
                if search(backend, batches[index], options, special_ids) != expected[index]:
                    failures.append((offset, turn))
            except Exception as error:  # a thread's error would be lost
                failures.append(error)

    threads = [threading.Thread(target=work, args=(offset,)) for offset in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_memory_is_given_back(bundle: Bundle, sources: list[list[int]]) -> None:
    """Opened and closed ten times, no more memory is used than after the second time."""
    from cuda.bindings import runtime as cudart

    def free_bytes() -> int:
        _, free, _ = cudart.cudaMemGetInfo()
        return int(free)

    free = []
    for _ in range(10):
        opened = TensorRtBackend.open(bundle, precision="fp16")
        search(opened, sources[:32], SearchOptions(), bundle.manifest.special_ids)
        opened.close()
        del opened
        gc.collect()
        free.append(free_bytes())
    print("free MiB after each:", [n >> 20 for n in free])
    assert free[-1] >= free[1] - (64 << 20)


def test_a_damaged_plan_is_built_again(bundle: Bundle, sources: list[list[int]]) -> None:
    plan = next(places(bundle)[0].glob("encoder.fp16.*")) / "plan"
    content = bytearray(plan.read_bytes())
    content[len(content) // 2] ^= 0xFF
    plan.write_bytes(content)
    with pytest.raises(LeanseqError, match="it was altered; build the engine again"):
        TensorRtBackend.open(bundle, precision="fp16", build=False)
    opened = TensorRtBackend.open(bundle, precision="fp16")
    assert search(opened, sources[:2], SearchOptions(), bundle.manifest.special_ids)
    opened.close()


def test_text_is_translated_as_onnxruntime_translates_it(
    bundle: Bundle, trained_graphs: Graphs
) -> None:
    pairs = trained_corpus().pairs("test")[:100]
    lines = [source for source, _ in pairs]
    with Translator.open(bundle, backend="tensorrt") as translator:
        found = [translation.text for translation in translator.translate(lines)]
    with Translator.open(bundle, backend="onnxruntime", precision="fp32") as translator:
        expected = [translation.text for translation in translator.translate(lines)]
    same = sum(one == other for one, other in zip(found, expected, strict=True))
    print(f"{same} of {len(lines)} texts are the same")
    assert same >= 98
