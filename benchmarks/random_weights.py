"""The latency of a preset that nobody trained: random weights, a fixed number of forced steps.

Weights do not change how long a step takes. A random model does not end its sentences, so EOS is
banned up to the last step, and every search makes the same number of steps.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe_machine, now
from benchmarks.timing import interleave, paired_ratio, percentiles_ms
from calibration.calibrate import calibrate
from calibration.quantize import quantize_graph
from export.graphs import export_decoder_step, export_encoder, model_spec, special_token_ids
from model.checkpoint import random_model
from model.eager import EagerBackend
from model.transformer import Transformer
from runtime.backend import Backend
from runtime.manifest import Role, SpecialTokenIds
from runtime.onnxruntime_backend import OnnxRuntimeBackend
from runtime.options import SearchOptions
from runtime.search import Hypothesis, search

logger = logging.getLogger(__name__)

ROLES: tuple[Role, Role] = ("encoder", "decoder_step")
FP32, INT8 = "ONNX Runtime FP32", "ONNX Runtime INT8"
INT8_FLOAT_LOGITS = "ONNX Runtime INT8, logits float"
_FIRST_ID = 4  # past the special ids


@dataclass(frozen=True, kw_only=True)
class RandomRun:
    """What is timed: `sentences` sources of `source_length` ids each, `steps` target tokens each,
    one at a time, `rounds` times."""

    preset: str = "base"
    sentences: int = 8
    source_length: int = 20
    steps: int = 24
    beam_size: int = 4
    threads: int = 1
    rounds: int = 2

    def options(self) -> SearchOptions:
        """A search that can't end before its last step."""
        return SearchOptions(beam_size=self.beam_size, min_length=self.steps, max_length=self.steps)


def compare_random(run: RandomRun) -> dict[str, Any]:
    """Builds FP32 and INT8 graphs of the preset in a temporary directory and times both, and eager.

    The INT8 ranges come from short searches on random sources: good for the time, not for quality.
    Raises ConfigError for an unknown preset.
    """
    model = random_model(run.preset)
    special_ids = special_token_ids(model.config)
    sources = _random_sources(model, run.sentences, run.source_length)
    with tempfile.TemporaryDirectory(prefix="leanseq-") as name:
        directory = Path(name)
        graphs = _write_graphs(model, sources, directory)
        backends: dict[str, Backend] = {"PyTorch eager": EagerBackend(model, run.threads)}
        sizes = {"PyTorch eager": sum(p.numel() * p.element_size() for p in model.parameters())}
        for label, paths in graphs.items():
            backends[label] = OnnxRuntimeBackend(
                paths["encoder"],
                paths["decoder_step"],
                model_spec(model.config),
                special_ids,
                precision="fp32" if label == FP32 else "int8",
                threads=run.threads,
            )
            sizes[label] = sum(path.stat().st_size for path in paths.values())
        record = _time(run, backends, sizes, sources, special_ids)
        for backend in backends.values():
            backend.close()
    return record


def _write_graphs(
    model: Transformer, sources: Sequence[list[int]], directory: Path
) -> dict[str, dict[Role, Path]]:
    """Label -> the files of both graphs: FP32, INT8 as `export build` makes it, and INT8 with float
    logits, which is the same where the vocabulary is small."""
    fp32 = {role: directory / f"{role}.fp32.onnx" for role in ROLES}
    logger.info("exporting the FP32 graphs")
    export_encoder(model, fp32["encoder"])
    export_decoder_step(model, fp32["decoder_step"])
    logger.info("calibrating and quantizing")
    ranges = calibrate(
        fp32["encoder"],
        fp32["decoder_step"],
        model_spec(model.config),
        special_token_ids(model.config),
        sources[:4],
        options=SearchOptions(min_length=6, max_length=6),
    )
    graphs: dict[str, dict[Role, Path]] = {FP32: fp32}
    for label, quantize_logits in ((INT8, None), (INT8_FLOAT_LOGITS, False)):
        graphs[label] = {}
        for role in ROLES:
            path = (
                directory / f"{role}.int8.{'' if quantize_logits is None else 'float_logits.'}onnx"
            )
            quantize_graph(fp32[role], path, ranges, quantize_logits=quantize_logits)
            graphs[label][role] = path
    return graphs


def _time(
    run: RandomRun,
    backends: dict[str, Backend],
    sizes: dict[str, int],
    sources: list[list[int]],
    special_ids: SpecialTokenIds,
) -> dict[str, Any]:
    logger.info("timing %d sources on %s", len(sources), ", ".join(backends))
    runs = [_searcher(backend, run.options(), special_ids) for backend in backends.values()]
    seconds, found = interleave(runs, sources, rounds=run.rounds, warmup=1)
    subjects = []
    for index, (name, backend) in enumerate(backends.items()):
        subjects.append(
            {
                "name": name,
                "precision": backend.capabilities.precision,
                "size_bytes": sizes[name],
                "latency_ms": percentiles_ms(seconds[index]),
                "speedup": paired_ratio(seconds[0], seconds[index]).to_json(),
                "steps": len(found[index][0][0][0].token_ids),
            }
        )
    where = {name: index for index, name in enumerate(backends)}
    return {
        "schema": 1,
        "date": now(),
        "machine": describe_machine(),
        "run": asdict(run),
        "subjects": subjects,
        "int8_speedups": [
            {
                "fp32": FP32,
                "int8": name,
                "speedup": paired_ratio(seconds[where[FP32]], seconds[where[name]]).to_json(),
            }
            for name in (INT8, INT8_FLOAT_LOGITS)
        ],
    }


def _searcher(
    backend: Backend, options: SearchOptions, special_ids: SpecialTokenIds
) -> Callable[[list[int]], list[list[Hypothesis]]]:
    def run(source: list[int]) -> list[list[Hypothesis]]:
        return search(backend, [source], options, special_ids)

    return run


def _random_sources(model: Transformer, count: int, length: int) -> list[list[int]]:
    """`count` lists of `length` ids each, EOS last; the same at every call."""
    generator = np.random.default_rng(0)
    config = model.config
    ids = generator.integers(_FIRST_ID, config.src_vocab_size, size=(count, length - 1))
    return [[*row, config.special_ids.eos_id] for row in ids.tolist()]
