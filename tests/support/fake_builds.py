"""Builds by tests/support/fake_tensorrt: what they do is written by the test."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.tree import ROOT

from runtime.bundle import Bundle, finish_manifest, graph_file_name, write_bundle
from runtime.graph_contract import graph_inputs, graph_outputs
from runtime.manifest import GraphSpec, Manifest, ModelSpec, Role, SpecialTokenIds, TextSpec

FAKE = ROOT / "tests" / "support" / "fake_tensorrt"

GEMM = (
    "Name: {name}_myl{profile}_2, LayerType: gemm, Inputs: [ {{ Name: x, Dimensions: [1,-1,4], "
    "Strides: [4,4,1], Datatype: {dtype}, Format: (Linear) }}], Constants: [ {{ Name: w, "
    "Dimensions: [4,4], Strides: [4,1], Datatype: {dtype}, Format: (Linear) }}], Outputs: [], "
    "TacticName: x, StreamId: 0, Metadata: [ONNX Layer: {name}]"
)


def proved_log(profiles: int = 2) -> str:
    """The log of a build in which `fc` is INT8."""
    lines = [GEMM.format(name="fc", profile=place, dtype="Int8") for place in range(profiles)]
    return "\n".join(["Layers:", *lines, "Total Activation Memory: 8 bytes"])


GOOD_BUILD = f"log({proved_log()!r}, 'VERBOSE'); plan = b'a plan'"
Fake = Callable[[str], Path]


def install_fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    """Puts the fake where `tensorrt` is looked for, and gives a function that says what it does."""
    file = tmp_path / "fake_build.py"

    def say(code: str) -> Path:
        file.write_text(textwrap.dedent(code), encoding="utf-8")
        return file

    monkeypatch.syspath_prepend(FAKE)
    monkeypatch.delitem(sys.modules, "tensorrt", raising=False)
    monkeypatch.setenv("LEANSEQ_FAKE_BUILD", str(file))
    say(GOOD_BUILD)
    yield say
    sys.modules.pop("tensorrt", None)


def write_bundle_for_fakes(path: Path, onnx: bytes = b"a graph") -> Bundle:
    """A bundle of FP16 graphs that are no ONNX, each promising one quantized MatMul."""
    model = ModelSpec(
        encoder_layers=1,
        decoder_layers=1,
        num_heads=2,
        head_dim=4,
        vocab_size=64,
        max_source=32,
        max_target=32,
    )
    roles: tuple[Role, Role] = ("encoder", "decoder_step")
    manifest = Manifest(
        model=model,
        special_ids=SpecialTokenIds(pad=0, unk=1, bos=2, eos=3, decoder_start=2),
        text=TextSpec(
            source_tokenizer="tokenizer.model",
            target_tokenizer="tokenizer.model",
            normalizer_version=1,
        ),
        graphs=tuple(
            GraphSpec(
                role=role,
                precision="fp16",
                variant="portable",
                files=(graph_file_name(role, "fp16"),),
                inputs=graph_inputs(role, model, "fp16"),
                outputs=graph_outputs(role, model, "fp16"),
                opset=20,
                int8_matmuls=1,
            )
            for role in roles
        ),
        files={},
    )
    with write_bundle(path) as directory:
        (directory / "tokenizer.model").write_bytes(b"")
        for graph in manifest.graphs:
            (directory / graph.files[0]).write_bytes(onnx + graph.role.encode())
        finish_manifest(directory, manifest)
    return Bundle.open(path)
