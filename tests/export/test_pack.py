"""A bundle of one precision: what is in it, that it translates the same, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from support.bundles import Graphs
from support.fake_bundle import write_fake_bundle
from support.tiny_tokenizer import tiny_tokenizer

from export.check import check_graph
from export.cli import cli
from export.inspect import inspect_bundle, render
from export.pack import pack
from runtime.bundle import Bundle, finish_manifest, graph_file_name, sha256_of, write_bundle
from runtime.console import run
from runtime.errors import BundleError, OptionError
from runtime.manifest import Manifest, Precision, TextSpec
from runtime.options import SearchOptions
from runtime.translator import Translator

LINES = ["the cat", "in 3 days", "", "été 1 2 3", "number"]


def report(bundle: Bundle) -> dict[str, Any]:
    subjects = [
        {"name": "PyTorch eager", "backend": "eager", "precision": "fp32"},
        {"name": "ONNX Runtime FP32", "backend": "onnxruntime", "precision": "fp32"},
        {"name": "ONNX Runtime INT8", "backend": "onnxruntime", "precision": "int8"},
    ]
    return {
        "date": "2026-11-30T00:00:00+00:00",
        "subjects": subjects,
        "int8_speedup": {"fp32": "ONNX Runtime FP32", "int8": "ONNX Runtime INT8"},
        "int8_loss": {"int8": "ONNX Runtime INT8", "bleu": 0.1},
        "matmul_profile": {"fp32": {}, "int8": {}},
        "bundle_bytes": bundle.size(),
    }


@pytest.fixture
def whole(tmp_path: Path) -> Bundle:
    """Graphs that are empty files, in three precisions, the INT8 ones in two variants."""
    path = write_fake_bundle(tmp_path / "whole", precisions=("fp32", "fp16", "int8"))
    manifest = Bundle.open(path).manifest
    static = tuple(
        dataclasses.replace(
            graph,
            variant="cpu_static",
            files=(graph_file_name(graph.role, "int8", "cpu_static"),),
        )
        for graph in manifest.graphs
        if graph.precision == "int8"
    )
    values = dataclasses.replace(manifest, graphs=(*manifest.graphs, *static), raw={}).to_json()
    with write_bundle(path) as directory:
        (directory / "tokenizer.model").write_bytes(tiny_tokenizer().model_proto)
        for graph in values["graphs"]:
            (directory / graph["files"][0]).write_text(graph["files"][0])
        # A field of a later minor version.
        finish_manifest(directory, dataclasses.replace(manifest, raw={**values, "later": 1}))
    bundle = Bundle.open(path)
    bundle.write_report(report(bundle))
    return bundle


def names(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


def test_what_a_cpu_loads_is_kept(whole: Bundle, tmp_path: Path) -> None:
    out = tmp_path / "packed"
    record = pack(whole.path, "int8", out)
    packed = Bundle.open(out)
    packed.verify()
    kept = ["decoder_step.int8.cpu_static.onnx", "encoder.int8.cpu_static.onnx"]
    assert names(out) == [*kept, "manifest.json", "report.json", "tokenizer.model"]
    assert packed.precisions() == ("int8",)
    assert {graph.variant for graph in packed.manifest.graphs} == {"cpu_static"}
    assert packed.bundle_id != whole.bundle_id
    origin = {"bundle": whole.bundle_id, "precision": "int8", "variants": ["cpu_static"]}
    assert packed.manifest.source == {**whole.manifest.source, "packed_from": origin}
    assert packed.manifest.to_json()["later"] == 1
    for name, file in packed.manifest.files.items():
        assert file == whole.manifest.files[name]
    assert record == {
        "path": str(out),
        "bundle_id": packed.bundle_id,
        "bytes": packed.size(),
        "graphs": sorted(kept, reverse=True),
        "packed_from": {"bundle_id": whole.bundle_id, "bytes": whole.size()},
        "report": True,
    }


def test_variants_that_are_asked_for_are_kept(whole: Bundle, tmp_path: Path) -> None:
    for variants in (("portable",), ("cpu_static", "portable")):
        pack(whole.path, "int8", tmp_path / "packed", variants=variants)
        packed = Bundle.open(tmp_path / "packed")
        assert {graph.variant for graph in packed.manifest.graphs} == set(variants)
        assert len(packed.manifest.graphs) == 2 * len(variants)


def test_packing_twice_gives_the_same_bytes(whole: Bundle, tmp_path: Path) -> None:
    out = tmp_path / "packed"
    digests = []
    for _ in range(2):
        pack(whole.path, "fp32", out)
        digests.append({file.name: sha256_of(file) for file in out.iterdir()})
    assert digests[0] == digests[1]


def test_the_report_keeps_what_is_true(whole: Bundle, tmp_path: Path) -> None:
    for precision in ("int8", "fp32"):
        pack(whole.path, precision, tmp_path / precision)
        bundle = Bundle.open(tmp_path / precision)
        found = bundle.read_report()
        assert found is not None
        assert [subject["name"] for subject in found["subjects"]] == [
            "PyTorch eager", f"ONNX Runtime {precision.upper()}",
        ]  # fmt: skip
        assert (found["packed_from"], found["bundle_id"]) == (whole.bundle_id, bundle.bundle_id)
        assert found["bundle_bytes"] == bundle.size()
        assert found["date"] == "2026-11-30T00:00:00+00:00"
        assert found["int8_speedup"] is None
        assert "matmul_profile" not in found
        assert (found["int8_loss"] is None) == (precision == "fp32")


def test_no_report_where_nothing_in_it_is_true(whole: Bundle, tmp_path: Path) -> None:
    pack(whole.path, "fp16", tmp_path / "fp16")  # nothing was measured in FP16
    # Measured was the variant that a CPU loads.
    pack(whole.path, "int8", tmp_path / "portable", variants=["portable"])
    (whole.path / "report.json").unlink()
    pack(whole.path, "int8", tmp_path / "int8")
    for name in ("fp16", "portable", "int8"):
        assert "report.json" not in names(tmp_path / name)


def test_engines_stay_behind(whole: Bundle, tmp_path: Path) -> None:
    (whole.path / "engines" / "encoder.fp16.sm89.tensorrt").mkdir(parents=True)
    pack(whole.path, "fp16", tmp_path / "packed")
    assert "engines" not in names(tmp_path / "packed")


def test_inspect_shows_where_it_came_from(whole: Bundle, tmp_path: Path) -> None:
    pack(whole.path, "int8", tmp_path / "packed")
    found = inspect_bundle(tmp_path / "packed")
    assert found["problems"] == []
    assert f"\npacked from bundle {whole.bundle_id[:12]}: int8, cpu_static\n" in render(found)
    assert "packed from" not in render(inspect_bundle(whole.path))


def test_a_packed_bundle_can_be_packed(whole: Bundle, tmp_path: Path) -> None:
    pack(whole.path, "int8", tmp_path / "a", variants=["cpu_static", "portable"])
    first = Bundle.open(tmp_path / "a")
    pack(tmp_path / "a", "int8", tmp_path / "b")
    assert Bundle.open(tmp_path / "b").manifest.source["packed_from"]["bundle"] == first.bundle_id


def test_what_is_refused(whole: Bundle, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "letter.txt").write_text("dear")
    (tmp_path / "link").symlink_to(whole.path)
    for arguments, error, text in (
        (("int4", other), OptionError, "--only is 'int4'; expected one of fp32, fp16, int8, int8_"),
        (
            ("int8_fp16", other),
            OptionError,
            "--only is int8_fp16; .* has: fp32, fp16, int8. Choose",
        ),
        (("int8", whole.path), OptionError, "--out is the bundle itself"),
        (("int8", tmp_path / "link"), OptionError, "--out is the bundle itself"),
        (("int8", whole.path / "x"), OptionError, "--out .*x lies inside the bundle"),
        (("int8", other), BundleError, "holds letter.txt, which is no part of a bundle"),
    ):
        with pytest.raises(error, match=text):
            pack(whole.path, *arguments)  # type: ignore[arg-type]
    with pytest.raises(
        OptionError, match=r"--variant is 'cuda'; .* has: cpu_static, portable. Cho"
    ):
        pack(whole.path, "int8", tmp_path / "packed", variants=["cuda"])
    assert names(other) == ["letter.txt"]
    assert not (tmp_path / "packed").exists()


def test_a_damaged_file_is_not_packed(whole: Bundle, tmp_path: Path) -> None:
    pack(whole.path, "int8", out := tmp_path / "packed")
    before = Bundle.open(out).bundle_id
    (whole.path / "encoder.int8.cpu_static.onnx").write_bytes(b"encoder.int8.cpu_STATIC.onnx")
    with pytest.raises(BundleError, match=r"SHA-256 .* it was altered"):
        pack(whole.path, "int8", out)
    assert Bundle.open(out).bundle_id == before
    pack(whole.path, "fp32", out)  # of which nothing is damaged


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_it_translates_as_the_whole_bundle(
    random_graphs: Graphs, tmp_path: Path, precision: Precision
) -> None:
    path = write_real_bundle(random_graphs, tmp_path / "whole")
    assert run(cli, ["pack", "--bundle", str(path), "--only", precision, "--out", str(tmp_path / "p")]) == 0  # noqa: E501  # fmt: skip
    found = []
    for bundle in (path, tmp_path / "p"):
        with Translator.open(bundle, backend="onnxruntime", precision=precision) as translator:
            found.append(translator.translate(LINES, SearchOptions(max_length=12)))
    assert found[0] == found[1]
    assert any(translation.text for translation in found[0])


def write_real_bundle(graphs: Graphs, path: Path) -> Path:
    precisions: tuple[Precision, ...] = ("fp32", "int8")
    with write_bundle(path) as directory:
        (directory / "tokenizer.model").write_bytes(tiny_tokenizer().model_proto)
        specs = []
        for precision in precisions:
            for role in ("encoder", "decoder_step"):
                file = directory / graph_file_name(role, precision)
                file.write_bytes(graphs.path(role, precision).read_bytes())
                specs.append(check_graph(file, role, precision, graphs.spec, opset=20))
        text = TextSpec(
            source_tokenizer="tokenizer.model",
            target_tokenizer="tokenizer.model",
            normalizer_version=1,
        )
        manifest = Manifest(
            model=graphs.spec,
            special_ids=graphs.special_ids,
            text=text,
            graphs=tuple(specs),
            files={},
        )
        finish_manifest(directory, manifest)
    return path


def test_the_command(whole: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["pack", "--bundle", str(whole.path), "--only", "int8"]
    out = tmp_path / "p"
    assert run(cli, [*arguments, "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{out}: bundle {Bundle.open(out).bundle_id[:12]}, ")
    assert text.endswith(": encoder.int8.cpu_static.onnx, decoder_step.int8.cpu_static.onnx\n")
    assert run(cli, [*arguments, "--variant", "portable", "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["graphs"] == [
        "encoder.int8.onnx", "decoder_step.int8.onnx",
    ]  # fmt: skip
    assert run(cli, [*arguments, "--out", str(whole.path)]) == 2
    assert "error: --out is the bundle itself" in capsys.readouterr().err
