"""Real engine builds for tests, where tensorrt_rtx is installed."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.bundles import ROLES, Graphs
from support.tiny_tokenizer import tiny_tokenizer

from export.check import check_graph
from export.graphs import OPSET
from runtime.bundle import TOKENIZER_NAME, Bundle, finish_manifest, write_bundle
from runtime.engines.layers import read_log
from runtime.engines.library import Library, load_library
from runtime.engines.profiles import EngineLimits, engine_profiles
from runtime.engines.proof import Proof, prove
from runtime.engines.worker import BuildRequest, run_build
from runtime.graph_contract import graph_inputs
from runtime.manifest import Manifest, ModelSpec, Role, TextSpec
from runtime.normalizer import NORMALIZER_VERSION

LIMITS = EngineLimits(max_batch=4, max_beam=4, max_source=16, max_target=16)


def rtx() -> Library:
    """Skips the test where it is not installed."""
    pytest.importorskip("tensorrt_rtx", reason="engines are built by tensorrt-rtx")
    return load_library("tensorrt_rtx")


def write_engine_bundle(graphs: Graphs, path: Path) -> Bundle:
    """A bundle of the FP16 and INT8+FP16 graphs."""
    with write_bundle(path) as directory:
        (directory / TOKENIZER_NAME).write_bytes(tiny_tokenizer().model_proto)
        specs = []
        for precision in ("fp16", "int8_fp16"):
            for role in ROLES:
                source = graphs.path(role, precision)
                (directory / source.name).write_bytes(source.read_bytes())
                specs.append(check_graph(source, role, precision, graphs.spec, opset=OPSET))
        manifest = Manifest(
            model=graphs.spec,
            special_ids=graphs.special_ids,
            text=TextSpec(
                source_tokenizer=TOKENIZER_NAME,
                target_tokenizer=TOKENIZER_NAME,
                normalizer_version=NORMALIZER_VERSION,
            ),
            graphs=tuple(specs),
            files={},
        )
        finish_manifest(directory, manifest)
    return Bundle.open(path)


def request_for(
    path: Path, role: Role, model: ModelSpec, target: str = "sm89", library: str = "tensorrt_rtx"
) -> BuildRequest:
    """A build of one file of int8_fp16."""
    return BuildRequest(
        name=f"{role} int8_fp16 {target}",
        library=library,  # type: ignore[arg-type]
        onnx_path=path,
        profiles=engine_profiles(graph_inputs(role, model, "int8_fp16"), LIMITS),
        target=target if library == "tensorrt_rtx" else None,
    )


def build_and_prove(
    path: Path,
    role: Role,
    model: ModelSpec,
    directory: Path,
    *,
    expected: int,
    target: str = "sm89",
) -> Proof:
    """The proof of a real engine of that file. Raises what building and proving raise."""
    request = request_for(path, role, model, target)
    result = run_build(request, directory, timeout_s=120)
    log = read_log(result.log_path.read_text(encoding="utf-8").split("\n"))
    return prove(
        log,
        result.network,
        expected=expected,
        profiles=len(request.profiles),
        graph=request.name,
    )
