"""What a search over the graphs of variant `cpu_static` could take at least, and what it takes.

A step reads all of its weights once, and multiplies each with every row: it can't take less than
either lasts at the best rate that this machine shows (Williams et al. 2009, "Roofline"). What it
takes beyond that is told by kinds of operators, from ONNX Runtime's own profiler. One thread.

Letters: B sentences, K beams, N = B*K rows, S source length.
"""

from __future__ import annotations

import json
import logging
import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from benchmarks.machine import describe_machine, now, warn_without_kernels
from benchmarks.peak_rates import PEAK_ROWS, bytes_per_second, products_per_second
from benchmarks.profile import node_runs
from benchmarks.table import align
from benchmarks.timing import timed
from runtime.bound_session import BoundSession
from runtime.bundle import Bundle
from runtime.errors import BundleError, OptionError
from runtime.graph_contract import BANNED, EOS_BIAS, POSITION, SRC_MASK, TOKEN_IDS
from runtime.manifest import Precision
from runtime.options import SearchOptions
from runtime.search import search
from runtime.static_backend import StaticBackend, greedy_path
from runtime.static_contract import VARIANT
from runtime.static_workspace import StaticWorkspace, new_block, shape_for

logger = logging.getLogger(__name__)

KINDS = {
    "BestContinuations": "products",  # which chooses among them too
    "MatMulIntegerToFloat": "products",
    "MatMulNBits": "products",
    "Gemm": "products",
    "FusedGemm": "products",
    "MatMul": "products",
    "FusedMatMul": "products",
    "SelfAttention": "self-attention",
    "SelfAttentionQuantize": "self-attention",
    "PackedSelfAttention": "self-attention",
    "PackedSelfAttentionQuantize": "self-attention",
    "DecoderMaskedMultiHeadAttention": "self-attention",
    "CrossAttention": "cross-attention",
    "CrossAttentionQuantize": "cross-attention",
    "MultiHeadAttention": "cross-attention",
    "BestCandidates": "candidates",
    "LogSoftmax": "candidates",
    "AddNorm": "norms",
    "AddNormQuantize": "norms",
    "LayerNormalization": "norms",
    "QuantizeLinear": "quantizing",
}
"""What a step's operators, leanseq's own and ONNX Runtime's, are for; all others are "other"."""
COLUMNS = (*dict.fromkeys(KINDS.values()), "other")


@dataclass(frozen=True, kw_only=True)
class RooflineRun:
    """bundle; or preset, with random weights. workloads: (B, K) of each. source: S. steps: target
    tokens of every search. rounds: how often each is timed."""

    bundle: Path | None = None
    preset: str | None = None
    precision: Precision | None = None
    workloads: tuple[tuple[int, int], ...] = ((1, 1), (1, 4), (32, 4))
    source: int = 20
    steps: int = 24
    rounds: int = 15


def measure_roofline(run: RooflineRun) -> dict[str, Any]:
    """Times the step, the encoder and whole searches of each workload.

    Raises OptionError unless there is a bundle or a preset, or for lengths that the model does not
    take, BundleError for one without graphs of this variant, and what opening it raises.
    """
    warn_without_kernels()
    with _bundle(run) as bundle:
        precision = _precision(bundle, run.precision)
        model = bundle.manifest.model
        for name, value, limit in (
            ("source", run.source, model.max_source),
            ("steps", run.steps, model.max_target),
        ):
            if limit is not None and value > limit:
                raise OptionError(f"{name} is {value}; this model takes at most {limit}")
        peak = products_per_second(precision)
        backend = StaticBackend.open(bundle, precision=precision, threads=1)
        try:
            workloads = [
                _workload(bundle, backend, precision, run, batch, beams, peak)
                for batch, beams in run.workloads
            ]
        finally:
            backend.close()
        return {
            "date": now(),
            "machine": describe_machine(),
            "bundle": bundle.bundle_id,
            "preset": run.preset,
            "precision": precision,
            "d_model": model.num_heads * model.head_dim,
            "decoder_layers": model.decoder_layers,
            "vocab_size": model.vocab_size,
            "source": run.source,
            "steps": run.steps,
            "rounds": run.rounds,
            "products_per_second": peak,
            "workloads": workloads,
        }


def render(record: dict[str, Any]) -> str:
    """The same as tables."""
    found = record["workloads"]
    bounds: list[tuple[str, ...]] = [
        (
            one["label"],
            f"{one['weight_bytes'] / 1e6:.1f}",
            f"{one['bytes_per_second'] / 1e9:.0f}",
            f"{one['products'] / 1e6:.1f}",
            f"{one['bound_us']:,.0f}",
            f"{one['kinds']['products']:,.0f}",
            f"{one['step_us']:,.0f}",
            f"{one['bound_us'] / one['step_us']:.0%}",
        )
        for one in found
    ]
    kinds: list[tuple[str, ...]] = [
        (
            one["label"],
            *(f"{one['kinds'][kind]:,.0f}" for kind in COLUMNS),
            str(one["nodes"]),
        )
        for one in found
    ]
    searches: list[tuple[str, ...]] = [
        (
            one["label"],
            f"{one['encoder_us'] / 1e3:.2f}",
            f"{record['steps']} x {one['step_us'] / 1e3:.3f}",
            f"{one['outside_us'] / 1e3:.2f}",
            f"{one['search_us'] / 1e3:.2f}",
        )
        for one in found
    ]
    machine = record["machine"]
    bound_header = ("a step, us", "weights MB", "GB/s", "M products", "at least", "its products")
    return "\n".join(
        [
            *align([(*bound_header, "all of it", "bound")], bounds),
            "",
            *align([("by operators, us", *COLUMNS, "nodes")], kinds),
            "",
            *align([("a search, ms", "encoder", "steps", "outside", "all of it")], searches),
            "",
            f"at least: the weights read once at that rate, or their products at "
            f"{record['products_per_second'] / 1e9:.0f} G multiply-adds a second ({PEAK_ROWS} rows",
            "    and large weights), whichever lasts longer; bound: its share of the step",
            "by operators: from the profiler, less its own time, the same for each node",
            "outside: all that is not in the graphs; medians of "
            f"{record['rounds']} rounds, one thread, {record['source']} source tokens",
            f"{record['precision']} ({VARIANT}), d {record['d_model']}, "
            f"{record['decoder_layers']} decoder layers, V {record['vocab_size']:,}",
            f"measured {record['date']} on {machine['cpu']}, "
            f"onnxruntime {machine['versions'].get('onnxruntime', '?')}",
        ]
    )


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Of a step's products. count: multiply-adds a row. size: bytes."""

    count: int
    size: int


def weights_of(path: Path) -> Weights:
    """What the products of a graph multiply with."""
    count = size = 0
    for node in ir.load(path).graph:
        if KINDS.get(node.op_type) != "products":
            continue
        weight = node.inputs[1]
        while weight is not None and weight.const_value is None and weight.producer() is not None:
            weight = weight.producer().inputs[0]
        if weight is None or weight.const_value is None:
            continue  # a product of two activations
        count += math.prod(weight.const_value.shape)
        size += weight.const_value.nbytes
    return Weights(count=count, size=size)


def kinds_of(
    events: list[dict[str, Any]], steps: int, step_us: float
) -> tuple[dict[str, float], int]:
    """Microseconds of a step by kind, and its nodes, from profiler events of rounds of `steps`
    steps: of each node and step the median round, of these the mean.

    step_us: what a step takes without the profiler. What the nodes take with it beyond that is the
    profiler's own time, the same for each node, and is taken off.
    """
    durations: dict[tuple[str, str], list[float]] = {}
    for node, args, node_us in node_runs(events):
        durations.setdefault((args["op_name"], node), []).append(node_us)
    found = [
        (operator, float(np.median(np.array(times).reshape(-1, steps), axis=0).mean()))
        for (operator, _), times in durations.items()
    ]
    surplus = _surplus([node_us for _, node_us in found], step_us)
    kinds = dict.fromkeys(COLUMNS, 0.0)
    for operator, node_us in found:
        kinds[KINDS.get(operator, "other")] += max(node_us - surplus, 0)
    return kinds, len(found)


def _surplus(times: list[float], total: float) -> float:
    """What to take off each of some times, none of which goes below 0, so that they sum up to
    total; 0 where they come to no more."""
    left = sorted(times, reverse=True)
    while left and left[-1] * len(left) < sum(left) - total:
        left.pop()  # the smallest is all surplus
    return max(sum(left) - total, 0) / max(len(left), 1)


@dataclass(frozen=True, kw_only=True)
class _Search:
    """The graphs over one workspace, without a search: encode, then steps by number."""

    encode: Callable[[], None]
    step: Callable[[int], None]
    end_profiling: Callable[[], list[dict[str, Any]]]


def _workload(
    bundle: Bundle,
    backend: StaticBackend,
    precision: Precision,
    run: RooflineRun,
    batch: int,
    beams: int,
    peak: float,
) -> dict[str, Any]:
    logger.info("%d x %d", batch, beams)
    rows, steps = batch * beams, range(run.steps)
    plain = _open(bundle, precision, run, batch, beams, None)
    ids = bundle.manifest.special_ids
    sources = [[*_ids(run.source, bundle).tolist()[:-1], ids.eos] for _ in range(batch)]
    options = SearchOptions(beam_size=beams, min_length=run.steps, max_length=run.steps)
    whole = partial(search, backend, sources, options, ids)
    whole()
    times: dict[str, list[float]] = {"encoder": [], "step": [], "search": []}
    with tempfile.TemporaryDirectory(prefix="leanseq-") as name:
        profiled = _open(bundle, precision, run, batch, beams, Path(name) / "step")
        profiled.encode()
        for _ in range(run.rounds):  # in turn, so that a busy machine disturbs all alike
            times["encoder"].append(timed(plain.encode))
            times["step"].append(sum(timed(partial(plain.step, n)) for n in steps) / run.steps)
            times["search"].append(timed(whole))
            for number in steps:
                profiled.step(number)
        events = profiled.end_profiling()
    encoder_us, step_us, search_us = (float(np.median(found)) * 1e6 for found in times.values())
    kinds, nodes = kinds_of(events, run.steps, step_us)
    weights = weights_of(_step_path(bundle, precision, beams))
    rate = bytes_per_second(weights.size)
    return {
        "label": f"{batch} x {beams}",
        "batch": batch,
        "beam_size": beams,
        "weight_bytes": weights.size,
        "products": weights.count * rows,
        "bytes_per_second": rate,
        "bound_us": max(weights.size / rate, weights.count * rows / peak) * 1e6,
        "step_us": step_us,
        "kinds": kinds,
        "nodes": nodes,
        "encoder_us": encoder_us,
        "search_us": search_us,
        "outside_us": search_us - encoder_us - run.steps * step_us,
    }


def _open(
    bundle: Bundle,
    precision: Precision,
    run: RooflineRun,
    batch: int,
    beams: int,
    profile: Path | None,
) -> _Search:
    """profile: where the profile of the step is written."""
    model = bundle.manifest.model
    encoder_path = bundle.graph_path(bundle.graph("encoder", precision, VARIANT))
    encoder = BoundSession("encoder", encoder_path, model, precision, 1)
    step_path = _step_path(bundle, precision, beams)
    step = BoundSession("decoder_step", step_path, model, precision, 1, profile=profile)
    workspace = StaticWorkspace(
        shape_for(batch, beams, run.source, run.steps), model, encoder, step, new_block
    )
    workspace.start()
    arrays = workspace.whole.arrays
    workspace.src_ids[:] = _ids(run.source, bundle)
    arrays[TOKEN_IDS][:] = _ids(1, bundle)
    arrays[SRC_MASK][:] = np.arange(arrays[SRC_MASK].shape[1]) < run.source
    arrays[EOS_BIAS][0] = BANNED

    def at(number: int) -> None:
        arrays[POSITION][0] = number
        workspace.whole.run()

    def events() -> list[dict[str, Any]]:
        found = json.loads(Path(step.session.end_profiling()).read_text(encoding="utf-8"))
        return list(found)

    return _Search(encode=workspace.encode, step=at, end_profiling=events)


def _ids(count: int, bundle: Bundle) -> npt.NDArray[np.int32]:
    """Random pieces of the vocabulary's second half, so no control pieces."""
    size = bundle.manifest.model.vocab_size
    return np.random.default_rng(0).integers(size // 2, size, count).astype(np.int32)


def _step_path(bundle: Bundle, precision: Precision, beams: int) -> Path:
    """The step that serves that many beams, as StaticBackend picks it."""
    path = greedy_path(bundle, precision) if beams == 1 else None
    return path or bundle.graph_path(bundle.graph("decoder_step", precision, VARIANT))


def _precision(bundle: Bundle, asked: Precision | None) -> Precision:
    precisions: tuple[Precision, ...] = ("int8", "fp32")
    have = [p for p in precisions if any(g.variant == VARIANT for g in bundle.graphs_of(p))]
    precision = asked or next(iter(have), None)
    if precision is None or precision not in have:
        raise BundleError(
            f"{bundle.path} holds no graphs of variant {VARIANT} in {precision or 'any precision'} "
            f"(it has: {', '.join(have) or 'none'}); build it again with `python -m export build`"
        )
    return precision


@contextmanager
def _bundle(run: RooflineRun) -> Iterator[Bundle]:
    if (run.bundle is None) == (run.preset is None):
        raise OptionError("give either --bundle or --preset")
    if run.bundle is not None:
        yield Bundle.open(run.bundle)
        return
    from benchmarks.peers.materials import random_bundle

    assert run.preset is not None
    with tempfile.TemporaryDirectory(prefix="leanseq-") as name:
        yield random_bundle(run.preset, Path(name))
