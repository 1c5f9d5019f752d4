"""Subjects in processes of their own, over the golden bundle: no model is built here."""

from __future__ import annotations

import copy
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from benchmarks.peers.memory import disk_bytes, measure_footprint
from benchmarks.peers.subjects import (
    SUBJECTS,
    Materials,
    Threads,
    choose_subjects,
    import_libraries,
)
from benchmarks.peers.worker import Worker
from runtime.bundle import Bundle
from runtime.errors import BackendError, BundleError, MissingExtraError, OptionError
from runtime.manifest import Manifest
from runtime.options import SearchOptions

GOLDEN = Path(__file__).parents[2] / "golden" / "bundle-schema-1"
ONE = Threads(count=1)


def materials(bundle: Path = GOLDEN) -> Materials:
    return Materials(bundle=bundle, checkpoint=Path("none"), ctranslate2={})


def test_a_worker_opens_translates_and_tells_its_memory() -> None:
    with Worker("leanseq-int8", materials(), ONE) as worker:
        loaded = worker.open()
        assert loaded.seconds > 0
        assert 10_000_000 < loaded.rss_before < loaded.rss_after
        assert loaded.description["precision"] == "int8"
        assert "1 worker" in loaded.description["schedule"]
        timed = worker.translate(["in 3 days", ""], SearchOptions(), want_found=True)
        assert timed.found is not None
        assert [found.text for found in timed.found] == ["in 3 Tagen", ""]
        assert timed.num_tokens[1] == 1
        assert timed.seconds > 0
        assert worker.translate(["in 3 days"], SearchOptions()).found is None
        assert worker.rss() > loaded.rss_before
        pid = worker.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_what_goes_wrong_there_is_told_here(tmp_path: Path) -> None:
    with Worker("leanseq-fp32", materials(tmp_path / "no"), ONE) as worker:
        for _ in range(2):  # it lives on
            with pytest.raises(BackendError, match=r"leanseq FP32: .*no does not exist; expected"):
                worker.open()


def test_a_worker_that_was_killed_is_told() -> None:
    with Worker("leanseq-fp32", materials(), ONE) as worker:
        worker.open()
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(
            BackendError, match=r"the process of leanseq FP32 ended by signal 9; leave it out with"
        ):
            worker.open()


def test_an_error_of_ours_is_told_by_its_kind() -> None:
    with (
        Worker("leanseq-fp32", materials(), ONE) as worker,
        pytest.raises(BackendError, match="leanseq FP32: AttributeError"),
    ):
        worker.translate(["a"], 3)  # type: ignore[arg-type]


def test_footprint_is_of_a_fresh_process() -> None:
    subject = SUBJECTS["plain-int8"]
    batches = [["in 3 days"], ["in 4 weeks"] * 4]
    found = measure_footprint(subject, materials(), ONE, None, batches, SearchOptions())
    assert 0 < found.rss_used <= found.rss_peak
    assert found.rss_used < found.rss_total
    assert found.load_seconds > 0
    assert found.disk_bytes == Bundle.open(GOLDEN).precision_size("int8")
    assert found.description["threads"] == 1


def test_disk_is_of_the_files_that_are_read(tmp_path: Path) -> None:
    tokenizer = (GOLDEN / "tokenizer.model").stat().st_size
    (tmp_path / "model.bin").write_bytes(b"0" * 1000)
    (tmp_path / "model.safetensors").write_bytes(b"0" * 500)
    made = Materials(bundle=GOLDEN, checkpoint=tmp_path, ctranslate2={"ctranslate2-int8": tmp_path})
    assert disk_bytes(SUBJECTS["ctranslate2-int8"], made, {}) == tokenizer + 1500
    assert disk_bytes(SUBJECTS["eager"], made, {}) == tokenizer + 500
    fp32 = Bundle.open(GOLDEN).precision_size("fp32")
    # A variant that a graph has not is not what it was loaded from.
    for description in ({}, {"variant": "portable"}, {"variant": "cpu_static"}):
        assert disk_bytes(SUBJECTS["leanseq-fp32"], made, description) == fp32


def test_disk_of_a_variant_is_of_all_its_graphs(tmp_path: Path) -> None:
    """One role may have several, such as a step for one beam; shared files count once."""
    manifest = copy.deepcopy(Bundle.open(GOLDEN).manifest.raw)
    manifest["files"] |= {
        name: {"sha256": "0" * 64, "size": size}
        for name, size in (("a", 1), ("b", 10), ("c", 100), ("weights", 1000))
    }
    for role, variant, name in (
        ("encoder", "cpu_static", "a"),
        ("decoder_step", "cpu_static", "b"),
        ("decoder_step", "cpu_static_greedy", "c"),
    ):
        (like,) = [
            graph
            for graph in manifest["graphs"]
            if (graph["role"], graph["precision"], graph["variant"]) == (role, "int8", "portable")
        ]
        manifest["graphs"].append({**like, "variant": variant, "files": [name, "weights"]})
    (tmp_path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    tokenizer = (GOLDEN / "tokenizer.model").stat().st_size
    found = disk_bytes(SUBJECTS["leanseq-int8"], materials(tmp_path), {"variant": "cpu_static"})
    assert found == tokenizer + 1111
    portable = disk_bytes(SUBJECTS["plain-int8"], materials(tmp_path), {})
    assert portable == disk_bytes(SUBJECTS["plain-int8"], materials(), {})


def test_subjects_are_chosen_by_name(tmp_path: Path) -> None:
    bundle = Bundle.open(GOLDEN)
    assert choose_subjects((), bundle) == list(SUBJECTS.values())
    chosen = choose_subjects(("leanseq-int8", "eager"), bundle)
    assert [subject.name for subject in chosen] == ["eager", "leanseq-int8"]
    with pytest.raises(OptionError, match="subject 'marian' is unknown; expected one of eager,"):
        choose_subjects(("marian",), bundle)
    bundle.manifest.raw["graphs"] = []
    lacking = Bundle(tmp_path, type(bundle.manifest).from_json(bundle.manifest.raw))
    with pytest.raises(
        BundleError, match=r"holds no graphs in fp32, int8, which is to be measured; build it with"
    ):
        choose_subjects((), lacking)


def test_a_bundle_with_fewer_graphs_has_fewer_subjects(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    raw = copy.deepcopy(Bundle.open(GOLDEN).manifest.raw)
    raw["graphs"] = [graph for graph in raw["graphs"] if graph["precision"] == "int8"]
    int8 = Bundle(tmp_path, Manifest.from_json(raw))
    names = [subject.name for subject in choose_subjects((), int8)]
    assert names == ["torch-int8", "plain-int8", "ctranslate2-int8", "leanseq-int8"]
    assert "no graphs in fp32: not measured are eager, plain-fp32, ctranslate2" in caplog.text
    with pytest.raises(BundleError, match="holds no graphs in fp32, which is to be measured"):
        choose_subjects(("leanseq-int8", "leanseq-fp32"), int8)
    for graph in raw["graphs"]:
        graph["variant"] = "cpu_static"
    static = Bundle(tmp_path, Manifest.from_json(raw))
    names = [subject.name for subject in choose_subjects((), static)]
    assert names == ["torch-int8", "ctranslate2-int8", "leanseq-int8"]
    with pytest.raises(BundleError, match="holds no graphs in portable int8, which"):
        choose_subjects(("plain-int8",), static)


@pytest.mark.parametrize(
    ("subject", "module", "extra"),
    [
        ("ctranslate2-int8", "ctranslate2", "peers"),
        ("leanseq-int8", "onnxruntime", "cpu"),
        ("eager", "torch", "train"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(
    subject: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"package {module},.*'\.\[{extra}\]"):
        import_libraries(subject)
