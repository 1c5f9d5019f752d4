"""The TensorRT backend over emulated engines of a model's FP32 graphs."""

from __future__ import annotations

from support.bundles import ROLES, Graphs
from support.trt_emulator import EmulatedDevice, EmulatedTensorRT, plan

from runtime.engine_pair import EnginePair
from runtime.engines.profiles import EngineLimits
from runtime.manifest import Precision
from runtime.tensorrt_backend import TensorRtBackend


def emulated_pair(
    graphs: Graphs, device: EmulatedDevice, precision: Precision, limits: EngineLimits
) -> EnginePair:
    """precision: of the caches, as the engines show them; they compute in float32."""
    trt = EmulatedTensorRT(device)
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
