"""Engines as a user builds and inspects them: real ones, by tensorrt-rtx."""

from __future__ import annotations

import json
import logging
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from support.bundles import Graphs, add_half, add_int8, fp32_graphs
from support.engines import LIMITS, rtx, write_engine_bundle
from support.tree import ROOT

from export.build import BuildSettings
from export.engines import EngineRecipe, build_engines, engine_line, engine_record, engine_table
from export.inspect import inspect_bundle, render
from runtime.bundle import Bundle
from runtime.console import run
from runtime.engines.choice import BuildFor
from runtime.engines.profiles import EngineLimits
from runtime.errors import OptionError

GOLDEN = ROOT / "tests" / "golden" / "bundle-schema-1"
TARGETS = ("sm75", "sm80", "sm86", "sm89", "sm120")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def recipe(*targets: str, limits: EngineLimits = LIMITS) -> EngineRecipe:
    library = rtx()
    builds = tuple(BuildFor(library=library, target=target) for target in targets)
    return EngineRecipe(builds=builds, limits=limits, timeout_s=120)


@pytest.fixture(scope="session")
def built(random_graphs: Graphs, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle with the engines of one target, which tests must not change."""
    bundle = write_engine_bundle(random_graphs, tmp_path_factory.mktemp("engines") / "bundle")
    build_engines(bundle, recipe("sm89"))
    return bundle


def test_engines_are_built_proved_and_told_of(
    built: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        engines = build_engines(built, recipe("sm89"))
    assert [(e.role, e.precision) for e in engines] == [
        ("encoder", "fp16"),
        ("decoder_step", "fp16"),
        ("encoder", "int8_fp16"),
        ("decoder_step", "int8_fp16"),
    ]
    lines = [record.getMessage() for record in caplog.records]
    assert all(line.endswith(", reused") for line in lines)
    assert re.fullmatch(
        r"engine: decoder_step int8_fp16 sm89 by tensorrt-rtx \S+: \d+\.\d s, plan \d+\.\d MB, "
        r"activations \d+\.\d / \d+\.\d MB \(\d+\.\d MB of it the cache Gather\), "
        r"16 of 17 weight MatMuls compiled as INT8, reused",
        lines[3],
    )
    step, fp16 = engines[3], engines[1]
    assert len(step.proof.int8) == built.graph("decoder_step", "int8_fp16").int8_matmuls == 16
    assert step.proof.float_weights == ("output",)
    assert fp16.proof.int8 == ()
    assert all(step.facts.gather_bytes)
    assert all(
        gathered < whole
        for gathered, whole in zip(
            step.facts.gather_bytes, step.facts.activation_bytes, strict=True
        )
    )
    assert step.facts.weights_bytes < fp16.facts.weights_bytes
    table = engine_table([engine_record(engine) for engine in engines])
    assert "16/17" in table
    assert f"up to {LIMITS.max_batch}" in table


def test_one_sentence_at_a_time_makes_one_profile(built: Bundle, tmp_path: Path) -> None:
    shutil.copytree(built.path, tmp_path / "bundle")
    limits = EngineLimits(max_batch=1, max_beam=2, max_source=8, max_target=8)
    engine = build_engines(Bundle.open(tmp_path / "bundle"), recipe("sm89", limits=limits))[3]
    assert len(engine.profiles) == len(engine.facts.activation_bytes) == 1
    assert "activations" in engine_line(engine)


def test_inspect_tells_all(built: Bundle) -> None:
    found = inspect_bundle(built.path)
    assert found["problems"] == []
    assert len(found["graphs"]) == len(found["engines"]) == 4
    json.dumps(found)
    engine = next(e for e in found["engines"] if (e["role"], e["precision"]) == ("decoder_step", "int8_fp16"))  # noqa: E501  # fmt: skip
    assert engine["claim"].startswith("compiled as INT8, by the builder's log")
    assert engine["target"] == "sm89"
    assert engine["profiles"][1]["self_k.0"]["max"] == [16, 4, 15, 8]
    text = render(found)
    for part in (
        "decoder_step int8_fp16 for sm89 by tensorrt-rtx",
        "limits: batch 4, beam 4, source 16, target 16",
        "profile 1: activations",
        "self_k.0 ... self_v.1: 1x4x0x8 to 16x4x15x8, best at 8x4x15x8",
        "INT8 MatMuls: 16, compiled as INT8",
        "decoder.layers.1: self_attention.q_proj, self_attention.k_proj",
        "kept float, since its weight is kept float in the graph: 1",
        "kept float, since it multiplies two activations: 8",
        "token_ids int32 BxK",
    ):
        assert part in text, text


def test_inspect_of_an_old_bundle_without_engines() -> None:
    text = render(inspect_bundle(GOLDEN))
    assert "TensorRT engines: none" in text
    assert "schema 1.0" in text
    assert "not named in bundles of schema 1.0" in text


def test_inspect_names_what_is_damaged(
    built: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(built.path, tmp_path / "bundle")
    (tmp_path / "bundle" / "engines" / "encoder.fp16.sm89.tensorrt_rtx" / "plan").unlink()
    with (tmp_path / "bundle" / "encoder.fp16.onnx").open("ab") as file:
        file.write(b"x")
    assert run("export.cli:cli", ["inspect", str(tmp_path / "bundle")]) == 1
    text = capsys.readouterr().out.partition("Problems:")[2]
    assert "plan can't be read" in text
    assert "encoder.fp16.onnx has" in text
    assert run("export.cli:cli", ["inspect", str(tmp_path / "nothing")]) == 1
    assert "expected a bundle" in capsys.readouterr().err


def test_inspect_needs_neither_torch_nor_onnx_nor_tensorrt(built: Bundle) -> None:
    code = f"""
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "onnx", "onnx_ir", "onnxruntime", "tensorrt_rtx"):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Blocker())
from runtime.console import run
sys.exit(run("export.cli:cli", ["inspect", {str(built.path)!r}, "--json"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["engines"]) == 4


@pytest.mark.slow
def test_the_command_line_builds_engines_and_uses_them_again(
    random_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rtx()
    lines = tmp_path / "lines"
    lines.write_text("".join(f"in {n} days\n" for n in range(2, 12)), encoding="utf-8")
    common = f"--checkpoint {random_checkpoint} --out {tmp_path / 'b'} --int8 --src {lines} --ref {lines} --calibration-src {lines}"  # noqa: E501
    limits = "--max-batch 2 --max-beam 2 --max-source 8 --max-target 8"
    arguments = ["build", *common.split(), *limits.split(), "--target", "sm80", "--json"]
    for reused in (False, True):
        assert run("export.cli:cli", arguments) == 0
        out, err = capsys.readouterr()
        engines = json.loads(out)["engines"]
        assert [engine["target"] for engine in engines] == ["sm80"] * 4
        assert engines[0]["limits"] == LIMITS.to_json() | {
            "max_batch": 2, "max_beam": 2, "max_source": 8, "max_target": 8,
        }  # fmt: skip
        assert all(engine["proof"]["proved"] for engine in engines)
        said = [line for line in err.splitlines() if line.startswith("engine: ")]
        assert len(said) == 4
        assert all(line.endswith(", reused") == reused for line in said)
    arguments.remove("--json")
    assert run("export.cli:cli", arguments) == 0
    assert "INT8 MatMuls" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text", "code"),
    [
        (["--target", "de"], "target is 'de'; expected a GPU's compute capability", 2),
        (["--target", "sm130"], "from sm75 to sm121", 2),
        (["--target", "sm90"], "can't build engines for sm90; it can for sm75", 1),
        (["--max-batch", "0"], "max_batch is 0; expected a whole number", 2),
        (["--max-beam", "2000"], "max_beam is 2000; expected", 2),
        (["--engine-timeout", "0"], "the timeout is 0.0; expected a number of seconds", 2),
        (["--target-language", "xx"], "Invalid value for '--target-language'", 2),
    ],
)
def test_wrong_arguments_are_refused_at_once(
    arguments: list[str],
    text: str,
    code: int,
    random_checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rtx()
    common = ["build", "--checkpoint", str(random_checkpoint), "--out", str(tmp_path / "b")]
    assert run("export.cli:cli", [*common, *arguments]) == code
    assert text in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


def test_settings_are_checked_when_made() -> None:
    with pytest.raises(OptionError, match="max_source is -3"):
        BuildSettings(max_source=-3)
    limits = BuildSettings(max_batch=5).engine_limits
    assert limits == EngineLimits(max_batch=5)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_target_in_both_precisions(tmp_path: Path) -> None:
    """The `tiny` preset: SM75 to SM120, both graphs, FP16 and INT8+FP16, all proved."""
    from model.checkpoint import random_model

    graphs = fp32_graphs(random_model("tiny"), tmp_path / "graphs")
    add_int8(graphs, [[5, 9, 30, 3], [77, 3], [40, 41, 60, 3]])
    add_half(graphs, "fp32", "fp16")
    add_half(graphs, "int8", "int8_fp16")
    bundle = write_engine_bundle(graphs, tmp_path / "bundle")
    engines = build_engines(bundle, recipe(*TARGETS, limits=EngineLimits()))
    assert len(engines) == len(TARGETS) * 2 * 2
    for engine in engines:
        promised = bundle.graph(engine.role, engine.precision).int8_matmuls
        assert engine.proof.proved
        assert len(engine.proof.int8) == promised
        assert (promised == 32) == (engine.precision == "int8_fp16")
    total = sum(engine.facts.seconds for engine in engines)
    assert total < 180
