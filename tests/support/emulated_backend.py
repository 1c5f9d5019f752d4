"""The TensorRT backend over emulated engines of a model's FP32 graphs."""

from __future__ import annotations

import json
from pathlib import Path

from support.bundles import ROLES, Graphs
from support.trt_emulator import EmulatedDevice, EmulatedTensorRT, plan

from runtime.bundle import Bundle, finish_manifest, sha256_of, write_bundle
from runtime.engine_pair import EnginePair
from runtime.engines.engine import ENGINE_NAME, Engine, EngineFacts, engine_directory_name
from runtime.engines.library import Library, LibraryName
from runtime.engines.profiles import EngineLimits, engine_profiles
from runtime.engines.proof import Proof
from runtime.engines.store import places
from runtime.engines.worker import PLAN_NAME
from runtime.graph_contract import graph_inputs
from runtime.manifest import GraphSpec, Manifest, Precision, Role, TextSpec
from runtime.tensorrt_backend import TensorRtBackend


def emulated_pair(
    graphs: Graphs,
    device: EmulatedDevice,
    precision: Precision,
    limits: EngineLimits,
    trt: EmulatedTensorRT | None = None,
) -> EnginePair:
    """precision: of the caches, as the engines show them; they compute in float32."""
    trt = trt or EmulatedTensorRT(device)
    within = limits.within(graphs.spec)
    engines = {
        role: trt.Runtime().deserialize_cuda_engine(
            plan(graphs.path(role), role, graphs.spec, precision, within)
        )
        for role in ROLES
    }
    return EnginePair(trt=trt, model=graphs.spec, precision=precision, **engines)


def emulated_backend(
    graphs: Graphs,
    *,
    precision: Precision = "fp32",
    limits: EngineLimits | None = None,
    device: EmulatedDevice | None = None,
) -> TensorRtBackend:
    device = device or EmulatedDevice()
    device.use()
    pair = emulated_pair(graphs, device, precision, limits or EngineLimits())
    return TensorRtBackend(pair, graphs.special_ids, device)


def emulated_library(device: EmulatedDevice) -> Library:
    return Library(name="tensorrt", version="11.4", targets=(), module=EmulatedTensorRT(device))


def write_graph_bundle(graphs: Graphs, path: Path) -> Bundle:
    """FP32 and FP16 graphs, for engines of FP16; there is no tokenizer in it."""
    specs = [
        GraphSpec(
            role=role,
            precision=precision,
            variant="portable",
            files=(graphs.path(role, precision).name,),
            inputs=(),
            outputs=(),
            opset=20,
        )
        for role in ROLES
        for precision in ("fp32", "fp16")
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
            content = graphs.path(spec.role, spec.precision).read_bytes()
            (directory / spec.files[0]).write_bytes(content)
        finish_manifest(directory, manifest)
    return Bundle.open(path)


def write_emulated_engine(
    bundle: Bundle,
    graphs: Graphs,
    role: Role,
    *,
    plan_bytes: bytes | None = None,
    limits: EngineLimits | None = None,
    target: str = "sm89",
    library: LibraryName = "tensorrt",
    version: str = "11.4",
) -> Engine:
    """An FP16 engine on disk, as a build would leave it, which the emulator runs."""
    limits = (limits or EngineLimits()).within(graphs.spec)
    content = plan_bytes or plan(graphs.path(role), role, graphs.spec, "fp16", limits)
    name = engine_directory_name(role, "fp16", target, library)
    directory = places(bundle)[0] / name
    directory.mkdir(parents=True, exist_ok=True)
    (directory / PLAN_NAME).write_bytes(content)
    engine = Engine(
        directory=directory,
        role=role,
        precision="fp16",
        library=library,
        version=version,
        target=target,
        limits=limits,
        profiles=engine_profiles(graph_inputs(role, graphs.spec, "fp16"), limits),
        onnx_sha256=bundle.manifest.files[bundle.graph(role, "fp16").files[0]].sha256,
        plan_sha256=sha256_of(directory / PLAN_NAME),
        plan_size=len(content),
        settings_version=1,
        proof=Proof(
            proved=True,
            reason="",
            int8=(),
            float_weights=(),
            products=(),
            weights_bytes=None,
            weights_bound=0,
        ),
        facts=EngineFacts(seconds=0.0, activation_bytes=(), gather_bytes=(), weights_bytes=None),
    )
    (directory / ENGINE_NAME).write_text(json.dumps(engine.to_json()), encoding="utf-8")
    return engine
