"""The command, from options to a record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ctranslate2")

from benchmarks.cli import cli
from benchmarks.peers.cli import check_writable
from benchmarks.peers.ctranslate2_peer import check_options
from benchmarks.peers.materials import prepare, random_lines, word_tokenizer
from benchmarks.peers.report import render
from benchmarks.peers.rounds import Effort
from benchmarks.peers.run import PeersRun, measure_peers
from benchmarks.peers.settings import Setting
from benchmarks.peers.subjects import SUBJECTS, Threads
from benchmarks.peers.worker import Worker
from export.pack import pack
from model.errors import ConfigError
from runtime.console import run
from runtime.errors import BundleError, OptionError
from runtime.options import SearchOptions
from runtime.tokenizer import Tokenizer

GOLDEN = Path(__file__).parents[2] / "golden" / "bundle-schema-1"
FAST = ("ctranslate2-float32", "ctranslate2-int8", "leanseq-fp32", "leanseq-int8")


def test_words_are_tokens() -> None:
    tokenizer = Tokenizer(word_tokenizer(300))
    assert tokenizer.size == 300
    lines = random_lines(3, 300)
    assert lines == random_lines(3, 300)
    for line in lines:
        ids = tokenizer.encode_source(line)
        assert len(ids) == 20
        assert min(ids[:-1]) >= 4
        assert tokenizer.decode(ids) == line


def test_threads_are_one_and_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.peers.run.usable_cpus", lambda: [0, 1, 2, 3])
    found = PeersRun().chosen_threads()
    assert found == [Threads(count=1), Threads(count=4, all_cores=True)]
    assert PeersRun(threads=(2, 4, 2)).chosen_threads() == [
        Threads(count=2), Threads(count=4, all_cores=True),
    ]  # fmt: skip
    monkeypatch.setattr("benchmarks.peers.run.usable_cpus", lambda: [0])
    assert PeersRun().chosen_threads() == [Threads(count=1)]


def test_random_lines_are_no_file() -> None:
    names = [workload.name for workload in PeersRun(preset="base").chosen_workloads()]
    assert names == ["1x1", "1x4", "32x4"]
    assert len(PeersRun(bundle=GOLDEN).chosen_workloads()) == 4
    chosen = PeersRun(preset="base", workloads=("file", "1x1")).chosen_workloads()
    assert [workload.name for workload in chosen] == ["1x1", "file"]


def test_what_ctranslate2_does_not_search_by() -> None:
    check_options(SearchOptions(beam_size=3, length_penalty=0.0))
    with pytest.raises(OptionError, match=r"length_penalty_kind 'gnmt'; CTranslate2 has 'power'"):
        check_options(SearchOptions(length_penalty_kind="gnmt"))
    with pytest.raises(OptionError, match=r"'power' and sampling; CTranslate2 has"):
        check_options(SearchOptions(sampling=True))


def test_runs_that_are_none() -> None:
    with pytest.raises(OptionError, match="workload '2x2' is unknown; expected one of 1x1, 1x4"):
        measure_peers(PeersRun(preset="tiny", workloads=("2x2",)))
    with pytest.raises(ConfigError, match="unknown preset 'huge'; expected one of tiny"):
        measure_peers(PeersRun(preset="huge"))
    with pytest.raises(OptionError, match="give a bundle, its checkpoint and a file of lines"):
        measure_peers(PeersRun(bundle=GOLDEN))


def test_bundle_of_another_checkpoint_is_refused(random_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(
        BundleError, match=r"was built from checkpoint c171bee495be, and .* is [0-9a-f]{12}; give"
    ):
        prepare(GOLDEN, random_checkpoint, ["a"], None, tmp_path, FAST)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ([], "--bundle, --checkpoint, --src not given; peers needs --bundle, --checkpoint and"),
        (["--random", "--src", "x"], "--src can't be used with --random; leave it out"),
        (["--preset", "base"], "--preset can't be used with files; add --random"),
        (["--random", "--preset", "huge"], "unknown preset 'huge'"),
        (["--random", "--plot", "a.png"], "--plot is given, but there is nothing to draw"),
        (["--random", "--cost", "--plot", "a.svg"], "--plot is a.svg; expected the name of a PNG"),
        (["--random", "--threads", "0"], "0 is not in the range"),
        (["--random", "--threads", "99999"], "threads is 99999; expected a whole number"),
        (["--random", "--subjects", "marian"], "'marian' is not one of"),
    ],
)
def test_wrong_options_exit_with_2(
    command: list[str], text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(cli, ["peers", *command], prog_name="python -m benchmarks") == 2
    assert text in " ".join(capfd.readouterr().err.split())


@pytest.mark.parametrize("flag", ["--json", "--plot"])
@pytest.mark.parametrize("place", ["", "file/below.png"])
def test_results_that_could_not_be_written_are_refused_before_measuring(
    flag: str, place: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("kept", encoding="utf-8")
    path = tmp_path / place if place else tmp_path / "directory.png"
    if not place:
        path.mkdir()
    # The preset is unknown too, which is found out once the measuring has begun.
    command = ["peers", "--random", "--preset", "huge", "--cost", flag, str(path)]
    assert run(cli, command) == 2
    assert f"{flag} is {path}, which can't be written; name a file" in capfd.readouterr().err


def test_results_go_to_files_and_directories_that_are_not_there_yet(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "newer" / "record.json", "--json")
    assert list(tmp_path.iterdir()) == []


def test_missing_files_exit_with_1(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = ["--bundle", str(GOLDEN), "--checkpoint", "x", "--src", str(tmp_path / "no.en")]
    assert run(cli, ["peers", *files]) == 1
    assert "no.en" in capfd.readouterr().err


def test_random_lines_hold_no_unknown_words(prepared: Any) -> None:
    """Though the model has more ids (256) than the vocabulary has words (200)."""
    tokenizer = Tokenizer(prepared.bundle.tokenizer_protos()[0])
    assert tokenizer.size < prepared.bundle.manifest.model.vocab_size
    for ids in prepared.sources():
        assert "<unk>" not in tokenizer.pieces(ids)


@pytest.mark.slow
def test_a_trained_bundle_is_measured(prepared: Any, tmp_path: Path) -> None:
    """Weights are random, but it takes the way of trained ones: files, real ends, BLEU."""
    materials = prepared.materials
    source, reference, out = (tmp_path / name for name in ("src", "ref", "record.json"))
    lines = [*prepared.lines[:6], "", "w9"]
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    reference.write_text("\n".join(lines) + "\n", encoding="utf-8")
    options = [
        "--bundle", str(materials.bundle), "--checkpoint", str(materials.checkpoint),
        "--src", str(source), "--ref", str(reference), "--threads", "1", "--rounds", "2",
        "--sentences", "2", "--batches", "1", "--workloads", "1x4", "--workloads", "file",
        "--json", str(out), "--plot", str(tmp_path / "peers.png"),
    ]  # fmt: skip
    assert run(cli, ["peers", *options]) == 0
    record = json.loads(out.read_text(encoding="utf-8"))
    (equality,) = record["equality"]
    assert equality["equal"] + equality["ties"] == 8
    assert equality["alone"] == 1  # the last line: its search is cut at a length of its own
    (block,) = record["threads"]
    for workload in block["workloads"].values():
        assert set(workload["subjects"]) == set(SUBJECTS)
        for name, found in workload["subjects"].items():
            assert found["rounds"] == (1 if SUBJECTS[name].slow else 2)
            assert found["ms"]["p50"] > 0
            assert found["peer_ratio"]["median"] > 0
    file = block["workloads"]["file"]["subjects"]
    assert len({file[name]["tokens"] for name in ("eager", "plain-fp32", "leanseq-fp32")}) == 1
    assert all(found["quality"]["bleu"] >= 0 for found in record["subjects"].values())
    int8, fp32 = (record["subjects"][f"ctranslate2-{n}"]["footprint"] for n in ("int8", "float32"))
    assert int8["disk_bytes"] < fp32["disk_bytes"]
    assert len(record["bars"]) == 3 + 1 + 3
    assert (tmp_path / "peers.png").is_file()


@pytest.mark.slow
def test_a_bundle_packed_for_int8_is_measured_in_int8_alone(
    prepared: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    packed, source = tmp_path / "packed", tmp_path / "src"
    pack(prepared.materials.bundle, "int8", packed)
    source.write_text("\n".join(prepared.lines[:2]) + "\n", encoding="utf-8")
    asked = PeersRun(
        bundle=packed, checkpoint=prepared.materials.checkpoint, src=source, workloads=("1x1",),
        threads=(1,), effort=Effort(rounds=1, sentences=1, batches=1),
    )  # fmt: skip
    record = measure_peers(asked)
    assert set(record["subjects"]) == {"torch-int8", "ctranslate2-int8", "leanseq-int8"}
    (block,) = record["threads"]
    assert block["workloads"]["1x1"]["subjects"]["leanseq-int8"]["peer_ratio"]["median"] > 0
    assert "give the same tokens: not checked, since the bundle holds no FP32" in render(record)
    assert "that both compute the same in FP32 is not checked" in caplog.text


@pytest.mark.slow
def test_forced_steps_and_cost_of_random_weights(prepared: Any) -> None:
    """Over the bundle that is there already."""
    from benchmarks.peers import run as module

    effort = Effort(rounds=1, sentences=1, batches=1)
    asked = PeersRun(
        preset="nano", steps=5, subjects=FAST, workloads=("1x1",), threads=(1,), effort=effort,
        cost=True,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "prepare_random", lambda *_: prepared)
        record = measure_peers(asked)
    (block,) = record["threads"]
    found = block["workloads"]["1x1"]["subjects"]
    assert {one["tokens"] for one in found.values()} == {5}
    assert set(record["cost"]["lengths"]) == set(FAST)
    assert record["cost"]["lengths"]["leanseq-int8"]["sizes"][-1] == 128
    assert record["what"]["steps"] == 5


@pytest.mark.slow
def test_every_subject_finds_the_same_in_fp32(prepared: Any) -> None:
    options = SearchOptions(beam_size=3, min_length=7, max_length=7)
    lines = [*prepared.lines[:5], "", "w5 w6", "w7 " * 400]
    found = {}
    for name in ("eager", "plain-fp32", "leanseq-fp32", "ctranslate2-float32"):
        setting = Setting(compute_type="float32") if name.startswith("ct") else None
        with Worker(name, prepared.materials, Threads(count=1)) as worker:
            found[name] = worker.translate(lines, options, setting, want_found=True).found
    assert found["eager"] is not None
    assert [one.num_tokens for one in found["eager"]] == [7] * 5 + [1, 7, 7]
    assert all(one == found["eager"] for one in found.values())
