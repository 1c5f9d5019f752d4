"""Real graphs of a small random model, and a bundle that holds them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from runtime.bundle import finish_manifest, graph_file_name, write_bundle
from runtime.graph_contract import graph_inputs, graph_outputs
from runtime.manifest import GraphSpec, Manifest, ModelSpec, SpecialTokenIds, TextSpec
from runtime.normalizer import NORMALIZER_VERSION

pytest.importorskip("torch")


@dataclass(frozen=True, kw_only=True)
class Graphs:
    """FP32 graphs of a model of 2+2 layers, d 32, and sources for it."""

    directory: Path
    encoder: Path
    step: Path
    model: ModelSpec
    special_ids: SpecialTokenIds
    sources: list[list[int]]
    width: int = 32


@pytest.fixture(scope="session")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Graphs:
    from support.tiny_model import random_transformer

    from export.graphs import export_decoder_step, export_encoder, model_spec, special_token_ids

    directory = tmp_path_factory.mktemp("graphs")
    model = random_transformer()
    encoder, step = directory / "encoder.fp32.onnx", directory / "decoder_step.fp32.onnx"
    export_encoder(model, encoder)
    export_decoder_step(model, step)
    special_ids = special_token_ids(model.config)
    generator = np.random.default_rng(0)
    sources = [
        [*generator.integers(4, model.config.src_vocab_size, length).tolist(), special_ids.eos]
        for length in (1, 3, 9, 5, 2, 14, 7, 4, 6, 3)
    ]
    return Graphs(
        directory=directory,
        encoder=encoder,
        step=step,
        model=model_spec(model.config),
        special_ids=special_ids,
        sources=sources,
    )


@pytest.fixture(scope="session")
def bundle_path(graphs: Graphs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from support.tiny_tokenizer import tiny_tokenizer

    path = tmp_path_factory.mktemp("bundle") / "bundle"
    with write_bundle(path) as directory:
        (directory / "tokenizer.model").write_bytes(tiny_tokenizer().model_proto)
        for role, graph in (("encoder", graphs.encoder), ("decoder_step", graphs.step)):
            (directory / graph_file_name(role, "fp32")).write_bytes(graph.read_bytes())
        finish_manifest(directory, manifest_of(graphs))
    return path


def manifest_of(graphs: Graphs) -> Manifest:
    return Manifest(
        model=graphs.model,
        special_ids=graphs.special_ids,
        text=TextSpec(
            source_tokenizer="tokenizer.model",
            target_tokenizer="tokenizer.model",
            normalizer_version=NORMALIZER_VERSION,
        ),
        graphs=tuple(
            GraphSpec(
                role=role,
                precision="fp32",
                variant="portable",
                files=(graph_file_name(role, "fp32"),),
                inputs=graph_inputs(role, graphs.model, "fp32"),
                outputs=graph_outputs(role, graphs.model, "fp32"),
                opset=20,
            )
            for role in ("encoder", "decoder_step")
        ),
        files={},
    )
